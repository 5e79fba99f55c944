"""One inference session: its recipe, its creation in a host, its runs, and its re-creation in a later host.

Overview. The host reads the model. The application's side keeps a `SessionRecipe`: the model's path or
bytes, the options, and the facts that the host reported when it first created the session. The recipe is sufficient
to create the session again.

`remote_runner.RemoteRunner` implements `run`, `run_bound` and `verify`. It makes repeated calls (same names, types
and shapes) with `fast_calls` (see `_fastpath`), and all other calls with `remote_session.RemoteSession`, which
sends a `session.run` request. `replay` repeats this request in the next host after a crash. `create` sends
`session.create` and reports the progress.

Invariants: a call either returns its result or raises an error that explains the failure. One immutable object
stores both the host process and the session's number in that process, so the two always belong together. Recipes
are frozen, so any thread may read them.

`runs` contains the options of a run and the classes of a model's metadata; `numbers_check` compares results with
results of the CPU. `InferenceSession`, `_buckets`, the daemon and the modules of the API use this package, which
imports `_host`, `_supervision`, `_transport`, `_fastpath` and the modules of values and options.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge_protocol.model_records import CacheSettings, ModelIdentity, absolute_model_path
from qnnbridge_protocol.settings import cache_settings
from qnnbridge_protocol.specs import CPU, QNN, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._threads import CalledFunction, Terminable


# How a session reacts to results that differ from the CPU's results.
Verify = Literal["off", "warn", "raise"]
# Identity of a model that no host has read yet: path (or hash of the bytes), size, number from dates and inode.
Source = tuple[str, int, int]


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # the working folder was deleted; absolute paths can still be used
        return os.path.abspath(os.sep)


@dataclasses.dataclass(frozen=True)
class SessionRecipe:
    """Everything needed to create a session.

    Args:
        spec: options, providers and the model's absolute path.
        data: the bytes of a model without a path.
        initializers: values for the initializers that `spec` lists.
        cache: whether a compiled model from the cache may replace the model; ``None`` leaves the decision to the
            cache. The daemon uses the settings of the requesting application.
        seed: seed of random operators; ``None``: ONNX Runtime chooses it.
        folder: base folder of relative paths inside a model that is given as bytes.
        identity: the host's description of the model, ``None`` until the host has sent it.
        verify: reaction to results that differ from the CPU's; ``None``: use the environment variable.
        functions: functions of the application, by name, that the host may call while it creates the session.
        cancellation: flag that cancels the first creation.
        context_check: whether a compiled model that cannot run is refused; default: the environment's setting.
        prepared: the specification with the path of the prepared folder from which the host chose the model;
            ``None`` for a model that was given directly.
        variant: the file chosen from the prepared folder and the reason, for `Placement.variant`.
    """

    spec: SessionSpec
    data: bytes | None = None
    initializers: Sequence[Any] = ()
    cache: bool | CacheSettings | None = False
    seed: int | None = None
    folder: str = dataclasses.field(default_factory=_working_folder)
    identity: ModelIdentity | None = None
    verify: Verify | None = None
    context_check: str | None = None
    functions: Mapping[str, CalledFunction] = dataclasses.field(default_factory=dict)
    cancellation: Terminable | None = None
    prepared: SessionSpec | None = None
    variant: str = ""

    @property
    def label(self) -> str:
        """Name of the model in messages."""
        if self.identity is not None:
            return self.identity.label
        if self.spec.model_path is None:
            return f"<{len(self.data or b'')} bytes>"
        return os.path.basename(self.spec.model_path)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model, "" until the host has reported it."""
        return self.identity.fingerprint if self.identity is not None else ""

    @property
    def compiled(self) -> bool:
        """Whether the model is known to be compiled for QNN. No other provider can run such a model."""
        return self.identity is not None and self.identity.compiled

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is the only requested provider."""
        return [provider.name for provider in self.spec.providers] == [CPU]

    @property
    def without_qnn(self) -> bool:
        """Whether providers were requested and QNN is not one of them."""
        names = [provider.name for provider in self.spec.providers]
        return bool(names) and QNN not in names

    @property
    def options_hash(self) -> str:
        """Hash of all options, without the model. The quarantine applies to a model together with its options."""
        return self.spec.options_hash

    def cache_settings(self) -> CacheSettings:
        """Return the cache settings for the host. The environment variables are read at each call."""
        return self.cache if isinstance(self.cache, CacheSettings) else cache_settings(wanted=self.cache)

    def source(self, fingerprint: str) -> Source | None:
        """Return path or hash, size and dates of the model, which identify it before a host has read it."""
        path = self.spec.model_path
        if path is None:
            # Use the fingerprint as the hash of the bytes: both are equal for a model without external files.
            return fingerprint, len(self.data or b""), 0
        try:
            status = os.stat(path)
        except OSError:
            return None
        # Include the inode, which changes if the file is replaced by a file of the same size and date, and the
        # ctime, which changes on POSIX if the file is written. If a number has changed, the host compares the
        # contents.
        dates = (status.st_mtime_ns << 128) + (status.st_ctime_ns << 64) + status.st_ino
        return path, status.st_size, dates

    def was_read_from(self, source: Source) -> bool:
        """Return whether `source` is the current `source()` of this model. To save time, bytes are hashed only if
        their length is equal."""
        if self.spec.model_path is not None:
            return source == self.source("")
        if self.data is None or source[1:] != (len(self.data), 0):
            return False
        import hashlib

        return hashlib.sha256(self.data).hexdigest() == source[0]

    def command(self, name: str) -> str:
        """Return the command line of `qnnbridge NAME` with the model, sizes and chip of this session; "" for a
        model given as bytes.

        name: "verify" or "analyze". Both commands accept the same options.
        """
        spec = self.spec
        return spec.in_commands(spec.model_path).examine(name) if spec.model_path is not None else ""

    def forget_model(self) -> SessionRecipe:
        """Return the recipe without the model's identity, which the next creation determines again. If the model
        came from a prepared folder, the next creation also chooses the file again."""
        return dataclasses.replace(self, spec=self.prepared or self.spec, identity=None, prepared=None, variant="")


def model_parts(path_or_bytes: object, *, prepared: bool = False) -> tuple[str | None, bytes | None]:
    """Return (absolute path, bytes) of the model; one of the two is set. `prepared`: see `absolute_model_path`.
    Raise its errors, and `TypeError` for other types."""
    if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
        return None, bytes(path_or_bytes)
    if not isinstance(path_or_bytes, (str, os.PathLike)):
        # ONNX Runtime's message
        raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
    if not os.fspath(path_or_bytes):
        # ONNX Runtime also raises `TypeError` here. As an absolute path, "" would be the working folder.
        raise TypeError("The path of the model is empty.")
    return absolute_model_path(path_or_bytes, prepared=prepared), None
