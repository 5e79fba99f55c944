"""Call the C interface of onnxruntime-genai through ctypes.

The Python module of onnxruntime-genai holds the GIL during every native call, even for a prompt that takes seconds.
Meanwhile the host could neither run another session nor read a cancel request. ctypes releases the GIL. The C
interface is in the library on which the module is built; the functions declared here are the same from 0.13 to
0.18. A newer release is tried in a worker first (`trial`).

Native objects are freed with their Python objects. Any thread may use an object, but only one thread at a time.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections.abc import Sequence
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, Final

import numpy as np

from qnnbridge_host.engine.ort_errors import MEMORY_CAUSE, MEMORY_FIX, details_of
from qnnbridge_host.model.genai_folder import EVERY_LAYOUT, OLDEST, GenaiFolder, beside_table, installed_version
from qnnbridge_protocol.elements import LAYOUTS, ElementType
from qnnbridge_protocol.errors import (
    BridgeError,
    GenerationError,
    GenerationFolderInvalid,
    GenerationUnsupported,
    PromptRefused,
    ProviderUnavailable,
)
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.tensors import Typed

# Without a declared type, ctypes passes an int as a C int of 32 bits, which truncates pointers. So the types of
# every called function are declared here.
_TEXT = c_char_p
_OUT = POINTER(c_void_p)
_INTS = POINTER(c_int32)
_HANDLE = c_void_p

# Functions that return an error or NULL, with the types of their arguments.
_CALLS: Final[dict[str, tuple[Any, ...]]] = {
    "OgaCreateConfig": (_TEXT, _OUT),
    "OgaConfigClearProviders": (_HANDLE,),
    "OgaConfigAppendProvider": (_HANDLE, _TEXT),
    "OgaConfigSetProviderOption": (_HANDLE, _TEXT, _TEXT, _TEXT),
    "OgaConfigAddModelData": (_HANDLE, _TEXT, c_char_p, c_size_t),
    "OgaConfigRemoveModelData": (_HANDLE, _TEXT),
    "OgaConfigOverlay": (_HANDLE, _TEXT),
    "OgaConfigSetDecoderProviderOptionsHardwareDeviceType": (_HANDLE, _TEXT, _TEXT),
    "OgaConfigSetDecoderProviderOptionsHardwareDeviceId": (_HANDLE, _TEXT, c_uint32),
    "OgaConfigSetDecoderProviderOptionsHardwareVendorId": (_HANDLE, _TEXT, c_uint32),
    "OgaConfigClearDecoderProviderOptionsHardwareDeviceType": (_HANDLE, _TEXT),
    "OgaConfigClearDecoderProviderOptionsHardwareDeviceId": (_HANDLE, _TEXT),
    "OgaConfigClearDecoderProviderOptionsHardwareVendorId": (_HANDLE, _TEXT),
    "OgaCreateModelFromConfig": (_HANDLE, _OUT),
    "OgaModelGetType": (_HANDLE, POINTER(c_void_p)),
    "OgaModelGetDeviceType": (_HANDLE, POINTER(c_void_p)),
    "OgaCreateGeneratorParams": (_HANDLE, _OUT),
    "OgaGeneratorParamsSetSearchNumber": (_HANDLE, _TEXT, c_double),
    "OgaGeneratorParamsSetSearchBool": (_HANDLE, _TEXT, c_bool),
    "OgaGeneratorParamsSetGuidance": (_HANDLE, _TEXT, _TEXT, c_bool),
    "OgaCreateGenerator": (_HANDLE, _HANDLE, _OUT),
    "OgaGenerator_AppendTokens": (_HANDLE, _INTS, c_size_t),
    "OgaGenerator_GenerateNextToken": (_HANDLE,),
    "OgaGenerator_GetNextTokens": (_HANDLE, POINTER(_INTS), POINTER(c_size_t)),
    "OgaGenerator_SetRuntimeOption": (_HANDLE, _TEXT, _TEXT),
    "OgaGenerator_RewindTo": (_HANDLE, c_size_t),
    "OgaGenerator_GetOutput": (_HANDLE, _TEXT, _OUT),
    "OgaGenerator_GetInput": (_HANDLE, _TEXT, _OUT),
    "OgaGenerator_GetLogits": (_HANDLE, _OUT),
    "OgaGenerator_SetLogits": (_HANDLE, _HANDLE),
    "OgaGenerator_SetInputs": (_HANDLE, _HANDLE),
    "OgaGenerator_SetModelInput": (_HANDLE, _TEXT, _HANDLE),
    "OgaCreateTokenizer": (_HANDLE, _OUT),
    "OgaUpdateTokenizerOptions": (_HANDLE, POINTER(_TEXT), POINTER(_TEXT), c_size_t),
    "OgaTokenizerGetBosTokenId": (_HANDLE, _INTS),
    "OgaTokenizerGetPadTokenId": (_HANDLE, _INTS),
    "OgaTokenizerGetEosTokenIds": (_HANDLE, POINTER(_INTS), POINTER(c_size_t)),
    "OgaTokenizerEncode": (_HANDLE, _TEXT, _HANDLE),
    "OgaTokenizerToTokenId": (_HANDLE, _TEXT, _INTS),
    "OgaTokenizerDecode": (_HANDLE, _INTS, c_size_t, POINTER(c_void_p)),
    "OgaTokenizerApplyChatTemplate": (_HANDLE, _TEXT, _TEXT, _TEXT, c_bool, POINTER(c_void_p)),
    "OgaCreateTokenizerStream": (_HANDLE, _OUT),
    "OgaTokenizerStreamDecode": (_HANDLE, c_int32, POINTER(_TEXT)),
    "OgaCreateSequences": (_OUT,),
    "OgaCreateTensorFromBuffer": (c_void_p, POINTER(c_int64), c_size_t, ctypes.c_int, _OUT),
    "OgaTensorGetType": (_HANDLE, POINTER(ctypes.c_int)),
    "OgaTensorGetShapeRank": (_HANDLE, POINTER(c_size_t)),
    "OgaTensorGetShape": (_HANDLE, POINTER(c_int64), c_size_t),
    "OgaTensorGetData": (_HANDLE, POINTER(c_void_p)),
    "OgaCreateNamedTensors": (_OUT,),
    "OgaNamedTensorsSet": (_HANDLE, _TEXT, _HANDLE),
    "OgaNamedTensorsGet": (_HANDLE, _TEXT, _OUT),
    "OgaNamedTensorsGetNames": (_HANDLE, _OUT),
    "OgaCreateStringArrayFromStrings": (POINTER(_TEXT), c_size_t, _OUT),
    "OgaStringArrayGetCount": (_HANDLE, POINTER(c_size_t)),
    "OgaStringArrayGetString": (_HANDLE, c_size_t, POINTER(_TEXT)),
    "OgaLoadImagesFromBuffers": (POINTER(c_void_p), POINTER(c_size_t), c_size_t, _OUT),
    "OgaLoadAudiosFromBuffers": (POINTER(c_void_p), POINTER(c_size_t), c_size_t, _OUT),
    "OgaCreateMultiModalProcessor": (_HANDLE, _OUT),
    "OgaProcessorProcessImagesAndAudios": (_HANDLE, _TEXT, _HANDLE, _HANDLE, _OUT),
    "OgaProcessorProcessImagesAndAudiosAndPrompts": (_HANDLE, _HANDLE, _HANDLE, _HANDLE, _OUT),
    "OgaProcessorDecode": (_HANDLE, _INTS, c_size_t, POINTER(c_void_p)),
    "OgaCreateTokenizerStreamFromProcessor": (_HANDLE, _OUT),
    "OgaCreateAdapters": (_HANDLE, _OUT),
    "OgaLoadAdapter": (_HANDLE, _TEXT, _TEXT),
    "OgaUnloadAdapter": (_HANDLE, _TEXT),
    "OgaSetActiveAdapter": (_HANDLE, _HANDLE, _TEXT),
}
# Functions that return a value: type of the value, and types of the arguments.
_GETTERS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "OgaGenerator_IsDone": (c_bool, (_HANDLE,)),
    "OgaGenerator_GetSequenceCount": (c_size_t, (_HANDLE, c_size_t)),
    "OgaGenerator_GetSequenceData": (_INTS, (_HANDLE, c_size_t)),
    "OgaSequencesGetSequenceCount": (c_size_t, (_HANDLE, c_size_t)),
    "OgaSequencesGetSequenceData": (_INTS, (_HANDLE, c_size_t)),
    "OgaResultGetError": (_TEXT, (_HANDLE,)),
}
_FREED_BY: Final = (
    "OgaDestroyResult",
    "OgaDestroyString",
    "OgaDestroyConfig",
    "OgaDestroyModel",
    "OgaDestroyGeneratorParams",
    "OgaDestroyGenerator",
    "OgaDestroyTokenizer",
    "OgaDestroyTokenizerStream",
    "OgaDestroySequences",
    "OgaDestroyTensor",
    "OgaDestroyNamedTensors",
    "OgaDestroyStringArray",
    "OgaDestroyImages",
    "OgaDestroyAudios",
    "OgaDestroyMultiModalProcessor",
    "OgaDestroyAdapters",
)
LIBRARY: Final = "onnxruntime-genai.dll" if sys.platform == "win32" else "libonnxruntime-genai.so"


class Object:
    """Owner of a native object. keeps: objects that must live as long as the native object."""

    __slots__ = ("_library", "handle", "keeps", "kind")

    def __init__(self, library: GenaiLibrary, kind: str, handle: c_void_p, keeps: tuple[Any, ...] = ()) -> None:
        self._library = library
        self.kind = kind
        self.handle = handle
        self.keeps = keeps

    def __del__(self) -> None:
        # Free the object once, even if `__del__` is called again.
        handle, self.handle = self.handle, c_void_p()
        if handle:
            # CPython clears the slots after `__del__`, so the objects in `keeps` (a generator's model) are freed
            # later.
            self._library.free(self.kind, handle)


class GenaiLibrary:
    """Loaded library. `module` is the Python module onnxruntime_genai, used for functions that are called once."""

    def __init__(self, module: Any, path: str, version: str) -> None:
        self.module = module
        self.version = version
        self._c = ctypes.CDLL(path)
        self._functions: dict[str, Any] = {}
        for name, arguments in _CALLS.items():
            self._declare(name, c_void_p, arguments)
        for name, (result, arguments) in _GETTERS.items():
            self._declare(name, result, arguments)
        for name in _FREED_BY:
            self._declare(name, None, (_HANDLE,))

    def _declare(self, name: str, result: Any, arguments: tuple[Any, ...]) -> None:
        function = getattr(self._c, name, None)
        # A function that the release lacks causes an error only when it is called.
        if function is not None:
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function

    def get(self, name: str, *arguments: Any) -> Any:
        """Call a function that cannot fail."""
        return self._function(name)(*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raise a typed error if the function reports one."""
        # NULL for success, else an object with the error text, which the caller frees.
        result = self._function(name)(*arguments)
        if result:
            # Read the text before the result is destroyed, because the result owns it.
            text = self._functions["OgaResultGetError"](result) or b""
            self._functions["OgaDestroyResult"](result)
            raise from_genai(text.decode("utf-8", "replace"), self.version)

    def make(self, kind: str, name: str, *arguments: Any, keeps: tuple[Any, ...] = ()) -> Object:
        """Call a function that creates an object of this kind. Return the object."""
        out = c_void_p()
        self.call(name, *arguments, byref(out))
        return Object(self, kind, out, keeps)

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function that allocates a text. Return the text and free the memory."""
        out = c_void_p()
        self.call(name, *arguments, byref(out))
        try:
            return (ctypes.cast(out, c_char_p).value or b"").decode("utf-8", "replace")
        finally:
            self._functions["OgaDestroyString"](out)

    def ints(self, name: str, *arguments: Any) -> list[int]:
        """Call a function that returns a view of token ids. Return them as a list."""
        data, count = _INTS(), c_size_t()
        self.call(name, *arguments, byref(data), byref(count))
        return data[: count.value]

    def free(self, kind: str, handle: c_void_p) -> None:
        self._functions["OgaDestroy" + kind](handle)

    def _function(self, name: str) -> Any:
        function = self._functions.get(name)
        if function is None:
            raise from_genai(f"{name} is not in this library", self.version)
        return function


def token_array(tokens: Sequence[int]) -> Any:
    """Return token ids as a C array."""
    return (c_int32 * len(tokens))(*tokens)


_lock = threading.Lock()
_loaded: GenaiLibrary | None = None


def library() -> GenaiLibrary:
    """Return the library; import onnxruntime-genai in the first call. Raise `ProviderUnavailable` if that fails."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load()
        return _loaded


def _load() -> GenaiLibrary:
    try:
        import onnxruntime_genai as module

        folder = Path(module.__file__ or "").parent
        version = str(getattr(module, "__version__", None) or installed_version())
        return GenaiLibrary(module, str(folder / LIBRARY), version)
    except (ImportError, OSError) as error:
        raise not_installed(installed_version(), error) from error


# --- error texts of onnxruntime-genai, with known causes and fixes ----------------------------


class _Rule(NamedTuple):
    pattern: str
    kind: type[BridgeError]
    cause: str
    fix: str


# Error texts of the guidance library, from reading a schema or grammar and from applying it to an answer. Checked
# first, because the texts may also match other rules.
_GUIDANCE: Final = re.compile(r"creating grammar|committing tokens|[Pp]arser [Ee]rror|lexer error|[Gg]uidance")
_RULES: Final = (
    _Rule(
        r"[Ii]nvalid dimensions for input: past_|Unexpected input data type.*past_",
        GenerationUnsupported,
        "This release of onnxruntime-genai does not support the model's KV cache.",
        f"Install onnxruntime-genai=={EVERY_LAYOUT} in the host's Python; `qnnbridge versions` lists the releases "
        "for each layout.",
    ),
    _Rule(
        r"QNN execution provider is not supported|not compiled with QNN|Failed to load.*[Qq]nn",
        ProviderUnavailable,
        "onnxruntime-genai does not have the QNN execution provider.",
        "Install onnxruntime-qnn in the host's Python: `python -m pip install onnxruntime-qnn`.",
    ),
    _Rule(
        r"Error opening |No such file|[Ff]ile doesn't exist|does not exist",
        GenerationFolderInvalid,
        "A file that the model needs is missing or cannot be read.",
        "Copy the whole folder of the model again; genai_config.json lists the files.",
    ),
    _Rule(
        r"JSON Error|parse_error|Error encountered while parsing|context_length is 0",
        GenerationFolderInvalid,
        "genai_config.json is damaged, lacks a field, or has a field that this onnxruntime-genai does not support.",
        "Compare the file with the original of the model; `qnnbridge versions` lists the releases for each layout.",
    ),
    _Rule(
        r"bad_alloc|bad allocation|[Oo]ut of memory|Failed to allocate",
        GenerationError,
        "There is not enough memory for the model and its KV cache.",
        "Close other programs, or lower max_length, which determines the size of the cache.",
    ),
    _Rule(
        r"INVALID_PROTOBUF|Protobuf parsing failed|ModelProto does not have a graph",
        GenerationFolderInvalid,
        "A model file of the folder is damaged, or is a pointer of Git LFS instead of the file.",
        "Copy the whole folder of the model again.",
    ),
    _Rule(
        r"[Tt]okenizer|tokenizer\.json|vocab",
        GenerationFolderInvalid,
        "The files of the tokenizer are missing or damaged.",
        "Copy tokenizer.json and tokenizer_config.json of the model again.",
    ),
    _Rule(
        r"max_length|sequence length",
        PromptRefused,
        "The prompt and the generated tokens together must fit into max_length.",
        "Shorten the prompt or raise max_length; the model's context_length is the limit.",
    ),
)


def from_genai(text: str, version: str) -> BridgeError:
    """Return the typed error for an error text of a native call."""
    details = details_of(GenerationError, text)
    # QNN's error code in the text is more reliable than the patterns of the rules.
    if details.get("npu_memory"):
        return GenerationError(text, cause=MEMORY_CAUSE, fix=MEMORY_FIX, details={"genai": version, **details})
    if _GUIDANCE.search(text):
        return GenerationError(
            text,
            cause="The guidance library refuses the schema or grammar, or cannot apply it to the answer.",
            fix="Correct the schema or grammar; the error text above contains the position.",
            details={"genai": version, "guidance": "refused"},
        )
    # The first matching rule counts: a missing tokenizer.json is reported as a missing file, not as a tokenizer
    # error.
    for rule in _RULES:
        if re.search(rule.pattern, text):
            return rule.kind(text, cause=rule.cause, fix=rule.fix, details={"genai": version})
    return GenerationError(
        text,
        cause=f"onnxruntime-genai {version} reported this error, for which qnnbridge has no further information.",
        fix="Try the same model with onnxruntime_genai in the host's Python; if it works there, report a bug.",
        details={"genai": version},
    )


def not_installed(version: str | None, error: Exception) -> ProviderUnavailable:
    oldest = ".".join(map(str, OLDEST))
    if version is None:
        message, verb = f"onnxruntime-genai is not installed in {sys.executable}.", "Install"
    else:
        message, verb = f"onnxruntime-genai {version} cannot be loaded in {sys.executable}.", "Reinstall"
    return ProviderUnavailable(
        message,
        cause=f"{type(error).__name__}: {error}",
        fix=f"{verb} onnxruntime-genai in the host's Python: "
        f'{sys.executable} -m pip install "onnxruntime-genai>={oldest}"',
        details={"genai": version},
    )


def too_old(version: str) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"onnxruntime-genai {version} is too old: the host needs {'.'.join(map(str, OLDEST))} or newer.",
        fix=f"Upgrade onnxruntime-genai in the host's Python: {sys.executable} -m pip install -U onnxruntime-genai",
        details={"genai": version},
    )


def unsupported_layout(
    folder: GenaiFolder, version: str, reason: str, *, newer: bool = False
) -> GenerationUnsupported:
    """Return the error for an unsupported layout. newer: whether the release is newer than all tested releases."""
    return GenerationUnsupported(
        f"onnxruntime-genai {version} cannot run {folder.label}.",
        cause=f"The model has the layout {folder.layout!r}, and {reason}.",
        fix=f"Install onnxruntime-genai=={EVERY_LAYOUT} in the host's Python, which runs every layout; "
        "`qnnbridge versions` lists the releases for each layout.",
        evidence=[f"onnxruntime-genai {version} is {beside_table(version)}"] if newer else [],
        details={"genai": version, "layout": folder.layout},
    )


# --- tensors between numpy and onnxruntime-genai ----------------------------------------

# OgaElementType has the same numbers as ONNX.
_NUMBERS: Final = {
    np.dtype(LAYOUTS[e].storage): e for e in ElementType if LAYOUTS[e].named and e != ElementType.STRING
}


def make_tensor(native: GenaiLibrary, value: Any) -> Object:
    """Return a native tensor that uses the array's memory and keeps the array alive."""
    # genai accepts a pointer and a shape, but no strides.
    array = np.ascontiguousarray(value.data if isinstance(value, Typed) else value)
    element = value.element_type if isinstance(value, Typed) else _NUMBERS.get(array.dtype)
    if element is None:
        raise GenerationUnsupported(f"A tensor of {array.dtype} cannot be given to onnxruntime-genai.")
    shape = value.shape if isinstance(value, Typed) else np.shape(value)
    dimensions = (c_int64 * len(shape))(*shape)
    pointer = c_void_p(array.ctypes.data)
    return native.make(
        "Tensor", "OgaCreateTensorFromBuffer", pointer, dimensions, len(shape), int(element), keeps=(array,)
    )


def read_tensor(native: GenaiLibrary, tensor: Object) -> Any:
    """Return a copy of the native tensor, as an array or, for types that numpy lacks, as `Typed`."""
    number, rank, data = ctypes.c_int(), c_size_t(), c_void_p()
    native.call("OgaTensorGetType", tensor.handle, byref(number))
    native.call("OgaTensorGetShapeRank", tensor.handle, byref(rank))
    dimensions = (c_int64 * rank.value)()
    native.call("OgaTensorGetShape", tensor.handle, dimensions, rank)
    native.call("OgaTensorGetData", tensor.handle, byref(data))
    element = ElementType(number.value)
    layout = LAYOUTS[element]
    shape = tuple(dimensions)
    storage = np.dtype(layout.storage)
    size = int(np.prod(shape, dtype=np.int64)) * storage.itemsize
    # Copy the values, because genai owns the memory. Use a bytearray, because an array over bytes is read-only.
    raw = bytearray(ctypes.string_at(data, size)) if size else bytearray()
    array = np.frombuffer(raw, dtype=storage).reshape(shape)
    return array if layout.named else Typed(array, element, shape)
