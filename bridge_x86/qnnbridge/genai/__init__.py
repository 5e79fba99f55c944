"""Text generation on the NPU, with the interface of the module onnxruntime_genai. The host process runs the models.

>>> from qnnbridge import genai
>>> model = genai.Model("phi-qnn")
>>> for piece in genai.generate(model, "What is an NPU?", max_tokens=100):
...     print(piece, end="", flush=True)

The application does not need onnxruntime_genai. `Generator` and the other classes have the methods of genai's
classes; `generate` covers the common case in one call. See docs/genai.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from qnnbridge.genai._generation import Generator, GeneratorParams
from qnnbridge.genai._media import Audios, Images, MultiModalProcessor
from qnnbridge.genai._model import Adapters, Config, Model
from qnnbridge.genai._pool import GeneratorPool, PoolStats
from qnnbridge.genai._recipe import GenerationStats
from qnnbridge.genai._tensors import NamedTensors, Tensor
from qnnbridge.genai._text import TextStream, TokenLogprobs, generate
from qnnbridge.genai._tokenizer import Tokenizer, TokenizerStream
from qnnbridge_protocol.errors import GenerationUnsupported
from qnnbridge_protocol.specs import GenerationModelInfo, StagePlacement

# Newest release of onnxruntime_genai whose interface this module implements.
__version__ = "0.18.0"
__id__ = "onnxruntime-genai"

__all__ = [
    "Adapters",
    "Audios",
    "Config",
    "GenerationModelInfo",
    "GenerationStats",
    "Generator",
    "GeneratorParams",
    "GeneratorPool",
    "Images",
    "Model",
    "MultiModalProcessor",
    "NamedTensors",
    "PoolStats",
    "StagePlacement",
    "Tensor",
    "TextStream",
    "TokenLogprobs",
    "Tokenizer",
    "TokenizerStream",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "generate",
    "get_current_gpu_device_id",
    "is_cuda_available",
    "is_dml_available",
    "is_openvino_available",
    "is_qnn_available",
    "is_webgpu_available",
    "register_execution_provider_library",
    "set_current_gpu_device_id",
    "set_log_callback",
    "set_log_options",
    "unregister_execution_provider_library",
]


def __getattr__(name: str) -> Any:
    if name not in UNAVAILABLE:
        raise AttributeError(f"module 'qnnbridge.genai' has no attribute {name!r}")
    # Store the class, so that each read of the name returns the same class and `isinstance` works.
    value = globals()[name] = unavailable(name)
    return value


# --- module-level functions of onnxruntime_genai, and the classes that qnnbridge does not implement ---

# Classes of onnxruntime_genai that qnnbridge does not implement, with the reason. Using such a class raises
# `GenerationUnsupported`.
UNAVAILABLE: Final = {
    "Engine": "has no batching engine; generators of a model take turns",
    "EngineCapabilities": "has no batching engine",
    "EngineErrorCode": "has no batching engine",
    "EngineEvent": "has no batching engine",
    "EngineEventBuffer": "has no batching engine",
    "EngineEventFlags": "has no batching engine",
    "FinishReason": "has no batching engine",
    "MtpGenerator": "has no speculative decoding",
    "Request": "has no batching engine",
    "RequestOptions": "has no batching engine",
    "StreamingProcessor": "has no streaming speech recognition",
    "TurnOptions": "has no batching engine",
    "TurnUsage": "has no batching engine",
}


# `hasattr` and `getattr` with a default expect AttributeError; applications catch `GenerationUnsupported`.
class _MemberUnsupported(GenerationUnsupported, AttributeError):
    """Error for reading an attribute of an unavailable class. `hasattr` returns False for the attribute."""


class _Unavailable(type):
    """Metaclass of the unavailable classes. Reading an attribute of the class raises `GenerationUnsupported`."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):  # Python and debuggers read private attributes of every class
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        raise _MemberUnsupported(_unavailable_message(f"{cls.__name__}.{name}", UNAVAILABLE[cls.__name__]))


def unavailable(name: str) -> type:
    """Return a class with this name whose creation and attributes raise `GenerationUnsupported`."""

    def refuse(_self: Any, *_arguments: Any, **_named: Any) -> None:
        raise GenerationUnsupported(_unavailable_message(name, UNAVAILABLE[name]))

    return _Unavailable(
        name, (), {"__init__": refuse, "__module__": "qnnbridge.genai", "__doc__": "Not available."}
    )


def _unavailable_message(name: str, reason: str) -> str:
    return f"onnxruntime_genai.{name} is not available: qnnbridge.genai {reason}."


def is_qnn_available() -> bool:
    """Return True: the host has QNN. Loading a model raises an error if QNN cannot be used."""
    return True


def is_cuda_available() -> bool:
    """Return False: the host process has no access to a CUDA device."""
    return False


is_dml_available = is_openvino_available = is_webgpu_available = is_cuda_available


def register_execution_provider_library(registration_name: str, library_path: str | os.PathLike[str]) -> None:
    """Do nothing for QNN, which the host registers itself. Raise `GenerationUnsupported` for other libraries."""
    if "qnn" not in f"{registration_name} {os.fspath(library_path)}".lower():
        raise GenerationUnsupported(
            f"The execution provider library {os.fspath(library_path)} cannot be registered in the host.",
            fix="Use QNN, or the CPU.",
        )


def unregister_execution_provider_library(registration_name: str) -> None:
    """Do nothing: the host keeps QNN until its process ends."""


def set_log_options(**options: Any) -> None:
    """Do nothing: the log lines of genai reach the logger ``qnnbridge.host`` of this process."""


def set_log_callback(callback: Callable[[str], None] | None) -> None:
    """Do nothing: see `set_log_options`.

    In onnxruntime_genai itself, a log callback aborts the interpreter.
    """


def set_current_gpu_device_id(device_id: int) -> None:
    """Do nothing: generation in the host does not use a GPU."""


def get_current_gpu_device_id() -> int:
    """Return 0: generation in the host does not use a GPU."""
    return 0


def enable_telemetry_events() -> None:
    """Do nothing: the host does not send telemetry."""


def disable_telemetry_events() -> None:
    """Do nothing: the host does not send telemetry."""
