"""What a session says of itself: the getters of ``onnxruntime.InferenceSession``, and our own properties.

Belongs to `InferenceSession`, which fills the fields. Any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qnnbridge._node import ModelMetadata, NodeArg
from qnnbridge_protocol.model_records import CacheStatus
from qnnbridge_protocol.specs import Placement

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._remote_session import RemoteSession
    from qnnbridge._session_options import SessionOptions


class SessionMetadata:
    """See the module."""

    _remote: RemoteSession
    _options: SessionOptions
    _inputs: list[NodeArg]
    _outputs: list[NodeArg]
    _overridable: list[NodeArg]

    def get_inputs(self) -> list[NodeArg]:
        """Name, type and shape of each input."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Name, type and shape of each output."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that may be given as inputs."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model file says of itself."""
        return ModelMetadata(self._remote.info.modelmeta)

    def get_providers(self) -> list[str]:
        """The session's execution providers. Which of them has the nodes: see `placement`."""
        return list(self._remote.info.providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each provider, with the defaults that the host filled in."""
        return {name: dict(options) for name, options in self._remote.info.provider_options.items()}

    def get_session_options(self) -> SessionOptions:
        return self._options

    @property
    def placement(self) -> Placement:
        """How many nodes run on QNN and how many on the CPU, and why."""
        return self._remote.info.placement

    @property
    def cache(self) -> CacheStatus:
        """Whether the session was made from a compiled model of the cache, and why not."""
        return self._remote.cache_status

    @property
    def generation(self) -> int:
        """How many host processes it took to keep this session alive."""
        return self._remote.generation

    @property
    def host(self) -> Host:
        return self._remote.host

    def get_profiling_start_time_ns(self) -> int:
        """Nanoseconds, on the host's clock."""
        return self._remote.info.profiling_start_time_ns
