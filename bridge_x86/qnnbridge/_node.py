"""A model's metadata: `NodeArg` and `ModelMetadata`, with the attributes of ONNX Runtime's.

Plain data from the host's report, not changed afterwards; any thread may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qnnbridge_protocol.errors import RemoteTypeError
from qnnbridge_protocol.specs import NodeInfo


def checked_name(name: object, what: str) -> str:
    """The name of an input or output as text; bytes are UTF-8, as for ONNX Runtime. Raises `RemoteTypeError`."""
    if isinstance(name, (bytes, bytearray)):
        name = name.decode()
    if not isinstance(name, str):
        raise RemoteTypeError(f"{what} must be str, not {name!r:.100} ({type(name).__name__}).")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise RemoteTypeError(f"{what} must be text, which {name!r:.100} is not: it has half a pair.") from None
    return name


class NodeArg:
    """An input, an output or an overridable initializer of a model."""

    __slots__ = ("_info",)

    def __init__(self, info: NodeInfo) -> None:
        self._info = info

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def type(self) -> str:
        """As ONNX Runtime writes it: ``tensor(float)``, ``seq(tensor(int64))``."""
        return self._info.type

    @property
    def shape(self) -> list[int | str | None]:
        """One entry per dimension: a number, a name, or ``None``. Empty also where the model gives no shape."""
        return list(self._info.shape or ())

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return self._info == other._info if isinstance(other, NodeArg) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._info)


class ModelMetadata:
    """The metadata of the model's author."""

    __slots__ = (
        "custom_metadata_map",
        "description",
        "domain",
        "graph_description",
        "graph_name",
        "producer_name",
        "version",
    )

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        """data: `SessionInfo.modelmeta`. Unknown keys are those of a newer host and are ignored."""
        known = data or {}
        self.producer_name = str(known.get("producer_name", ""))
        self.graph_name = str(known.get("graph_name", ""))
        self.graph_description = str(known.get("graph_description", ""))
        self.domain = str(known.get("domain", ""))
        self.description = str(known.get("description", ""))
        self.version = int(known.get("version", 0))
        self.custom_metadata_map: dict[str, str] = dict(known.get("custom_metadata_map", {}))
