"""What a QNN context binary says of its graphs: names, inputs, outputs, data types, quantisation.

The format of a context binary is not published, so QNN's own system library reads it, in a process of its own
(`qnnbridge_host.wrap`). These are the records that come back. Pure; any thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

# What `onnx.TensorProto` calls the type of an application's array, by QNN's number. Four bits have no array that
# QNN's packed layout fits, and of strings and unknown types nothing is known.
ONNX_TYPES: Final[Mapping[int, str]] = {
    0x0008: "INT8",
    0x0016: "INT16",
    0x0032: "INT32",
    0x0064: "INT64",
    0x0108: "UINT8",
    0x0116: "UINT16",
    0x0132: "UINT32",
    0x0164: "UINT64",
    0x0216: "FLOAT16",
    0x0232: "FLOAT",
    0x0264: "DOUBLE",
    0x0308: "INT8",
    0x0316: "INT16",
    0x0332: "INT32",
    0x0408: "UINT8",
    0x0416: "UINT16",
    0x0432: "UINT32",
    0x0508: "BOOL",
}
_KINDS: Final = {0: "int", 1: "uint", 2: "float", 3: "sfixed", 4: "ufixed", 5: "bool", 6: "string"}
# Backends of QNN by their number, as far as binaries of them are met.
BACKENDS: Final[Mapping[int, str]] = {3: "cpu", 4: "gpu", 6: "htp", 7: "htp on Linux without a driver", 5: "dsp"}


def type_words(number: int) -> str:
    """A data type for people: ``ufixed8``, ``float16``. The low byte has the bits in decimal digits."""
    kind = _KINDS.get(number >> 8)
    return f"{kind}{number & 0xFF:x}" if kind is not None and number <= 0xFFFF else f"type {number:#x}"


@dataclasses.dataclass(frozen=True, slots=True)
class Quantisation:
    """``real = (stored + offset) * scale``. One scale and offset for all, or one for each index of `axis`.

    bits: used of the type's, ``None`` for all of them. encoding: QNN's number of another scheme, whose scales are
    not read; the other fields are empty then.
    """

    scales: tuple[float, ...] = ()
    offsets: tuple[int, ...] = ()
    axis: int | None = None
    bits: int | None = None
    encoding: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TensorDescription:
    """data_type, kind: QNN's. layout: 0 is a plain array. dynamic: a size may change from run to run."""

    name: str
    data_type: int
    dimensions: tuple[int, ...]
    quantisation: Quantisation | None = None
    kind: int = 0
    layout: int = 0
    dynamic: bool = False

    @property
    def onnx_type(self) -> str | None:
        """``None``: an application has no array of this type."""
        return ONNX_TYPES.get(self.data_type)

    @property
    def is_fixed_point(self) -> bool:
        return self.data_type >> 8 in (3, 4)

    @property
    def is_optional(self) -> bool:
        """It may be left out of a run, which ONNX Runtime cannot do."""
        # The optional kinds of Qnn_TensorType_t: written, read, or both by the application.
        return 11 <= self.kind <= 13

    @property
    def words(self) -> str:
        """``ufixed8[1,3,64,64] scale 0.0078 offset -128``."""
        text = f"{type_words(self.data_type)}[{','.join(map(str, self.dimensions))}]"
        given = self.quantisation
        if given is None:
            return text
        if given.encoding is not None:
            return f"{text} quantised by scheme {given.encoding}"
        bits = f" of {given.bits} bits" if given.bits is not None else ""
        if given.axis is not None:
            return f"{text} {len(given.scales)} scales along axis {given.axis}{bits}"
        return f"{text} scale {given.scales[0]:.6g} offset {given.offsets[0]}{bits}"


@dataclasses.dataclass(frozen=True, slots=True)
class GraphDescription:
    """updateable: how many tensors a client of QNN could exchange; ONNX Runtime leaves them as they are."""

    name: str
    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    updateable: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class BinaryDescription:
    """backend, soc_model: QNN's numbers; 0 is unknown. build: of the SDK that made it.

    library: version of the system library's interface that read it. layout: versions of the structures that it
    answered with, for evidence.
    """

    graphs: tuple[GraphDescription, ...]
    build: str = ""
    backend: int = 0
    soc_model: int = 0
    core_api: tuple[int, ...] = ()
    library: str = ""
    layout: str = ""
    context_tensors: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(graph.name for graph in self.graphs)

    @property
    def backend_words(self) -> str:
        return BACKENDS.get(self.backend, f"number {self.backend}")

    def to_plain(self) -> dict[str, Any]:
        """In JSON's types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> BinaryDescription:
        """Raises `LookupError`, `TypeError` or `ValueError` for what `to_plain` did not make."""
        return cls(
            graphs=tuple(
                GraphDescription(
                    str(graph["name"]),
                    _tensors(graph["inputs"]),
                    _tensors(graph["outputs"]),
                    int(graph["updateable"]),
                )
                for graph in plain["graphs"]
            ),
            build=str(plain["build"]),
            backend=int(plain["backend"]),
            soc_model=int(plain["soc_model"]),
            core_api=tuple(int(part) for part in plain["core_api"]),
            library=str(plain["library"]),
            layout=str(plain["layout"]),
            context_tensors=int(plain["context_tensors"]),
        )


def _tensors(plain: Sequence[Mapping[str, Any]]) -> tuple[TensorDescription, ...]:
    return tuple(
        TensorDescription(
            name=str(one["name"]),
            data_type=int(one["data_type"]),
            dimensions=tuple(int(size) for size in one["dimensions"]),
            quantisation=_quantisation(one["quantisation"]),
            kind=int(one["kind"]),
            layout=int(one["layout"]),
            dynamic=bool(one["dynamic"]),
        )
        for one in plain
    )


def _quantisation(plain: Mapping[str, Any] | None) -> Quantisation | None:
    if plain is None:
        return None
    return Quantisation(
        scales=tuple(float(one) for one in plain["scales"]),
        offsets=tuple(int(one) for one in plain["offsets"]),
        axis=None if plain["axis"] is None else int(plain["axis"]),
        bits=None if plain["bits"] is None else int(plain["bits"]),
        encoding=None if plain["encoding"] is None else int(plain["encoding"]),
    )
