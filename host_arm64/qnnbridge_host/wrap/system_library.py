"""Read the description of a context binary with QNN's system library, through ctypes.

The library is native code that reads a foreign file, so it runs in a worker only. Every structure that it returns
begins with a version. An unknown version is refused before anything after it is read. Layouts: QnnTypes.h,
System/QnnSystemContext.h and System/QnnSystemInterface.h of QNN's core API 2 (tested with 2.36 to 2.40); new
releases add versions and support old ones. Nothing is loaded onto an NPU.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, Union, c_char_p, c_float, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, Final

from qnnbridge_host.model.context_binary import (
    BinaryDescription,
    GraphDescription,
    Quantisation,
    TensorDescription,
)
from qnnbridge_protocol.errors import ContextUnusable, ProviderUnavailable
from qnnbridge_protocol.installing import install_command

LIBRARY: Final = "QnnSystem.dll" if sys.platform == "win32" else "libQnnSystem.so"
# Maximum counts. A larger count means that the library did not detect a damaged file.
_MOST_GRAPHS: Final = 4096
_MOST_TENSORS: Final = 65536
_MOST_DIMENSIONS: Final = 64
_MOST_SCALES: Final = 1 << 20

# `Qnn_QuantizationEncoding_t`. Other encodings are reported by number.
_SCALE_OFFSET, _AXIS, _BITS, _BITS_AXIS = range(4)
# `Qnn_Definition_t`: the encoding is defined.
_DEFINED: Final = 1


class _Version(Structure):
    _fields_ = (("major", c_uint32), ("minor", c_uint32), ("patch", c_uint32))


class _ScaleOffset(Structure):
    _fields_ = (("scale", c_float), ("offset", c_int32))


class _AxisScaleOffset(Structure):
    _fields_ = (("axis", c_int32), ("count", c_uint32), ("values", POINTER(_ScaleOffset)))


class _BitsScaleOffset(Structure):
    _fields_ = (("bits", c_uint32), ("scale", c_float), ("offset", c_int32))


class _BitsAxisScaleOffset(Structure):
    _fields_ = (
        ("bits", c_uint32),
        ("axis", c_int32),
        ("count", c_uint32),
        ("scales", POINTER(c_float)),
        ("offsets", POINTER(c_int32)),
    )


class _Encoding(Union):
    _fields_ = (
        ("one", _ScaleOffset),
        ("axis", _AxisScaleOffset),
        ("bits", _BitsScaleOffset),
        ("bits_axis", _BitsAxisScaleOffset),
    )


class _QuantizeParams(Structure):
    _fields_ = (("definition", c_uint32), ("encoding", c_uint32), ("values", _Encoding))


class _ClientBuffer(Structure):
    _fields_ = (("data", c_void_p), ("size", c_uint32))


class _TensorV1(Structure):
    _fields_ = (
        ("id", c_uint32),
        ("name", c_char_p),
        ("kind", c_uint32),
        ("layout", c_uint32),
        ("data_type", c_uint32),
        ("quantize", _QuantizeParams),
        ("rank", c_uint32),
        ("dimensions", POINTER(c_uint32)),
        ("memory", c_uint32),
        ("buffer", _ClientBuffer),
    )


class _SparseParams(Structure):
    _fields_ = (("type", c_uint32), ("elements", c_uint32), ("dimensions", c_uint32))


# Version 2 begins with the fields of version 1.
class _TensorV2(Structure):
    _fields_ = (
        *_TensorV1._fields_,
        ("is_dynamic", POINTER(c_uint8)),
        ("sparse", _SparseParams),
        ("is_produced", c_uint8),
    )


class _TensorUnion(Union):
    _fields_ = (("v1", _TensorV1), ("v2", _TensorV2))


class _Tensor(Structure):
    _fields_ = (("version", c_uint32), ("of", _TensorUnion))


_GRAPH_V1: Final = (
    ("name", c_char_p),
    ("input_count", c_uint32),
    ("inputs", POINTER(_Tensor)),
    ("output_count", c_uint32),
    ("outputs", POINTER(_Tensor)),
)
_GRAPH_V2: Final = (*_GRAPH_V1, ("updateable_count", c_uint32), ("updateable", POINTER(_Tensor)))


class _GraphV1(Structure):
    _fields_ = _GRAPH_V1


class _GraphV2(Structure):
    _fields_ = _GRAPH_V2


class _GraphV3(Structure):
    _fields_ = (
        *_GRAPH_V2,
        ("blob_info_size", c_uint32),
        ("blob_info", c_void_p),
        ("start_op", c_uint32),
        ("end_op", c_uint32),
    )


class _GraphUnion(Union):
    _fields_ = (("v1", _GraphV1), ("v2", _GraphV2), ("v3", _GraphV3))


class _Graph(Structure):
    _fields_ = (("version", c_uint32), ("of", _GraphUnion))


_BINARY_HEAD: Final = (
    ("backend", c_uint32),
    ("build", c_char_p),
    ("core_api", _Version),
    ("backend_api", _Version),
    ("soc_version", c_char_p),
)
_BINARY_GRAPHS: Final = (
    ("context_size", c_uint64),
    ("context_tensor_count", c_uint32),
    ("context_tensors", POINTER(_Tensor)),
    ("graph_count", c_uint32),
    ("graphs", POINTER(_Graph)),
)
_BINARY_V1: Final = (
    *_BINARY_HEAD,
    ("hardware_version", _Version),
    ("context_version", _Version),
    ("hardware_size", c_uint32),
    ("hardware", c_void_p),
    *_BINARY_GRAPHS,
)


class _BinaryV1(Structure):
    _fields_ = _BINARY_V1


class _BinaryV2(Structure):
    _fields_ = (*_BINARY_V1, ("platform", c_void_p))


# V3 lacks the hardware's description of V2, so all later fields have other offsets.
class _BinaryV3(Structure):
    _fields_ = (
        *_BINARY_HEAD,
        ("context_version", _Version),
        *_BINARY_GRAPHS,
        ("platform", c_void_p),
        ("metadata_size", c_uint32),
        ("metadata", c_void_p),
        ("soc_model", c_uint32),
    )


class _BinaryUnion(Union):
    _fields_ = (("v1", _BinaryV1), ("v2", _BinaryV2), ("v3", _BinaryV3))


class _Binary(Structure):
    _fields_ = (("version", c_uint32), ("of", _BinaryUnion))


_Create = ctypes.CFUNCTYPE(c_uint64, POINTER(c_void_p))
_GetBinaryInfo = ctypes.CFUNCTYPE(
    c_uint64, c_void_p, c_void_p, c_uint64, POINTER(POINTER(_Binary)), POINTER(c_uint64)
)
_Free = ctypes.CFUNCTYPE(c_uint64, c_void_p)


class _Interface(Structure):
    """QNN's interface up to the last function used here; later releases append functions."""

    _fields_ = (
        ("backend", c_uint32),
        ("provider", c_char_p),
        ("api", _Version),
        ("create", c_void_p),
        ("get_binary_info", c_void_p),
        ("get_metadata", c_void_p),
        ("free", c_void_p),
    )


def read_binary(path: str, folder: str | None = None) -> BinaryDescription:
    """Return the system library's description of a context binary. Call this in a worker only.

    Args:
        path: path of the binary.
        folder: folder of the library; default: `library_folder()`.

    Raises:
        ContextUnusable: the library cannot read the binary, or returns an unknown layout.
        ProviderUnavailable: the library is missing or does not start.
        OSError: the file cannot be read.
    """
    # Some damaged binaries crash QNN's library, so only a worker may call it.
    api, version = _interface(folder if folder is not None else library_folder())
    # `from_buffer` requires writable memory. ACCESS_COPY does not change the file.
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        view = (c_uint8 * len(mapped)).from_buffer(mapped)
        handle = c_void_p()
        code = _Create(api.create)(ctypes.byref(handle))
        # The low 16 bits are QNN's own error code (`code & 0xFFFF`).
        if code:
            raise ProviderUnavailable(f"QNN's system library does not start: error {code & 0xFFFF}.")
        try:
            found, size = POINTER(_Binary)(), c_uint64()
            code = _GetBinaryInfo(api.get_binary_info)(
                handle, ctypes.addressof(view), len(mapped), ctypes.byref(found), ctypes.byref(size)
            )
            if code or not found:
                raise _cannot_read(path, f"QnnSystemContext_getBinaryInfo: error {code & 0xFFFF}", version)
            return _binary(found.contents, path, version)
        # Free the handle, which owns the memory of the description: the description has been copied.
        finally:
            _Free(api.free)(handle)
            del view  # the map cannot be closed while a view of it exists


def has_library(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, LIBRARY))


def library_folder() -> str:
    """Return the folder of the QNN that a host with this Python loads; raise `ProviderUnavailable` without QNN."""
    from qnnbridge_host.engine import sources
    from qnnbridge_host.machine import installed

    found = installed()
    if found.generation == "builtin":
        # Find the folder of onnxruntime without importing it.
        import importlib.util

        spec = importlib.util.find_spec("onnxruntime")
        folders = [os.path.join(root, "capi") for root in (spec.submodule_search_locations or ())] if spec else []
    else:
        # On Windows x64 the wheel has a folder for each architecture, and `sources` chooses one.
        folders = [os.path.dirname(sources.choose(found).library)]
    for folder in folders:
        if has_library(folder):
            return folder
    raise ProviderUnavailable(
        f"QNN's system library {LIBRARY} was not found next to the QNN of the host's Python, {sys.executable}.",
        cause="Only this library can read the contents of a context binary.",
        fix=install_command("host", python=sys.executable, options="--force-reinstall"),
        evidence=folders,
    )


def _interface(folder: str) -> tuple[_Interface, str]:
    path = os.path.join(folder, LIBRARY)
    try:
        library = ctypes.CDLL(path)
        get_providers: Callable[..., int] = library.QnnSystemInterface_getProviders
    except (OSError, AttributeError) as error:
        raise ProviderUnavailable(f"QNN's system library {path} cannot be loaded.", cause=f"{error}.") from None
    providers, count = POINTER(POINTER(_Interface))(), c_uint32()
    # Declare the result type: otherwise ctypes reads a C int, the low half of QNN's 64-bit error code.
    code = get_providers(ctypes.byref(providers), ctypes.byref(count))
    for number in range(count.value if not code else 0):
        api = providers[number].contents
        # Interface 1.0 lacks the function that frees a handle.
        if api.api.major == 1 and api.api.minor >= 1 and api.create and api.get_binary_info and api.free:
            return api, f"{api.api.major}.{api.api.minor}.{api.api.patch}"
    raise ProviderUnavailable(
        f"QNN's system library {path} has no interface that qnnbridge supports.",
        cause="qnnbridge supports the interface versions from 1.1 on and below 2.0.",
    )


def _cannot_read(path: str, evidence: str, version: str) -> ContextUnusable:
    return ContextUnusable(
        f"QNN's system library cannot read {os.path.basename(path)} as a context binary.",
        cause="The file is damaged, has another format, or was made by a newer QNN SDK than the host's.",
        evidence=(evidence, f"system interface {version}"),
        fix="Copy or download the file again; `qnnbridge inspect` reports its SDK, if its header is readable.",
        details={"path": path},
    )


class _Reader:
    """Reader of one description; records the structure versions that occur."""

    def __init__(self, path: str, version: str) -> None:
        self.path, self.library = path, version
        self.layout: dict[str, None] = {}

    def known(self, what: str, version: int, versions: Sequence[int]) -> int:
        """Return the version if it is supported. Raise `ContextUnusable` otherwise."""
        if version not in versions:
            raise ContextUnusable(
                f"The QNN SDK of this host returns a description of {os.path.basename(self.path)} that qnnbridge "
                "does not support.",
                cause=f"{what} has version {version}; supported versions: {', '.join(map(str, versions))}.",
                fix="Update qnnbridge, or use the onnxruntime-qnn release that made the binary.",
                evidence=(f"system interface {self.library}",),
                details={"path": self.path},
            )
        self.layout[f"{what} V{version}"] = None
        return version

    def count(self, number: int, most: int, pointer: Any, what: str) -> int:
        # A count without an array is an error, too: ctypes would raise a ValueError, which lacks the file's name.
        if number > most or (number and not pointer):
            raise _cannot_read(self.path, f"{number} {what}", self.library)
        return number

    def text(self, value: bytes | None, what: str) -> str:
        try:
            return (value or b"").decode("utf-8")
        except UnicodeDecodeError:
            raise _cannot_read(self.path, f"{what} is {value!r}", self.library) from None


def _binary(found: _Binary, path: str, version: str) -> BinaryDescription:
    reader = _Reader(path, version)
    # The version selects the member of the union; the other members use the same memory with other layouts.
    kind = reader.known("BinaryInfo", found.version, (1, 2, 3))
    info = getattr(found.of, f"v{kind}")
    count = reader.count(info.graph_count, _MOST_GRAPHS, info.graphs, "graphs")
    graphs = tuple(_graph(reader, info.graphs[number]) for number in range(count))
    return BinaryDescription(
        graphs=graphs,
        build=reader.text(info.build, "the build"),
        backend=info.backend,
        soc_model=info.soc_model if kind == 3 else 0,
        core_api=(info.core_api.major, info.core_api.minor, info.core_api.patch),
        library=version,
        layout=", ".join(reader.layout),
        context_tensors=info.context_tensor_count,
    )


def _graph(reader: _Reader, found: _Graph) -> GraphDescription:
    kind = reader.known("GraphInfo", found.version, (1, 2, 3))
    info = getattr(found.of, f"v{kind}")
    inputs = reader.count(info.input_count, _MOST_TENSORS, info.inputs, "inputs")
    outputs = reader.count(info.output_count, _MOST_TENSORS, info.outputs, "outputs")
    return GraphDescription(
        name=reader.text(info.name, "the name of a graph"),
        inputs=tuple(_tensor(reader, info.inputs[number]) for number in range(inputs)),
        outputs=tuple(_tensor(reader, info.outputs[number]) for number in range(outputs)),
        updateable=0 if kind == 1 else info.updateable_count,
    )


def _tensor(reader: _Reader, found: _Tensor) -> TensorDescription:
    kind = reader.known("Tensor", found.version, (1, 2))
    info = getattr(found.of, f"v{kind}")
    rank = reader.count(info.rank, _MOST_DIMENSIONS, info.dimensions, "dimensions")
    dynamic = kind == 2 and bool(info.is_dynamic) and any(info.is_dynamic[number] for number in range(rank))
    return TensorDescription(
        name=reader.text(info.name, "the name of a tensor"),
        data_type=info.data_type,
        dimensions=tuple(info.dimensions[number] for number in range(rank)),
        quantisation=_quantisation(reader, info.quantize),
        kind=info.kind,
        layout=info.layout,
        dynamic=dynamic,
    )


def _quantisation(reader: _Reader, found: _QuantizeParams) -> Quantisation | None:
    if found.definition != _DEFINED:
        return None
    values = found.values
    if found.encoding == _SCALE_OFFSET:
        return Quantisation((values.one.scale,), (values.one.offset,))
    if found.encoding == _BITS:
        return Quantisation((values.bits.scale,), (values.bits.offset,), bits=values.bits.bits)
    if found.encoding == _AXIS:
        count = reader.count(values.axis.count, _MOST_SCALES, values.axis.values, "scales")
        pairs = [values.axis.values[number] for number in range(count)]
        return Quantisation(
            tuple(pair.scale for pair in pairs), tuple(pair.offset for pair in pairs), axis=values.axis.axis
        )
    if found.encoding == _BITS_AXIS:
        given = values.bits_axis
        count = reader.count(given.count, _MOST_SCALES, given.scales, "scales")
        # Missing offsets are zero.
        offsets = tuple(given.offsets[number] for number in range(count)) if given.offsets else (0,) * count
        return Quantisation(tuple(given.scales[number] for number in range(count)), offsets, given.axis, given.bits)
    return Quantisation(encoding=found.encoding)
