"""Text generation on the NPU: the interface of the module onnxruntime_genai, with the objects in the host.

>>> from qnnbridge import genai
>>> model = genai.Model("phi-qnn")
>>> for piece in genai.generate(model, "What is an NPU?", max_tokens=100):
...     print(piece, end="", flush=True)

The application needs no onnxruntime_genai. `Generator` and the other classes have genai's methods; `generate` is
the short way. See docs/genai.md.
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

# The newest release whose surface this module has.
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
    # Kept, so that two reads of the name give one class: `isinstance` with it works.
    value = globals()[name] = unavailable(name)
    return value


# --- functions of the module onnxruntime_genai, and the names of it that the bridge does not have ---

# The engine for servers and others; each is a name that says so when it is used.
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
    "StreamingProcessor": "has no speech in pieces",
    "TurnOptions": "has no batching engine",
    "TurnUsage": "has no batching engine",
}


# Both bases: `hasattr` and a default of `getattr` look for AttributeError, `except` of the bridge for the other.
class _MemberUnsupported(GenerationUnsupported, AttributeError):
    """Of a class that is not available; `hasattr` says that it does not have the member."""


class _Unavailable(type):
    """The type of the classes that are not available: their members say why, as the classes do."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):  # what Python and its tools ask of every class
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        raise _MemberUnsupported(_words_for(f"{cls.__name__}.{name}", UNAVAILABLE[cls.__name__]))


def unavailable(name: str) -> type:
    """A class of that name that cannot be made and has no members; each says why."""

    def refuse(_self: Any, *_arguments: Any, **_named: Any) -> None:
        raise GenerationUnsupported(_words_for(name, UNAVAILABLE[name]))

    return _Unavailable(
        name, (), {"__init__": refuse, "__module__": "qnnbridge.genai", "__doc__": "Not available."}
    )


def _words_for(name: str, reason: str) -> str:
    return f"onnxruntime_genai.{name} is not available: qnnbridge.genai {reason}."


def is_qnn_available() -> bool:
    """True: the host brings QNN. A model says when it cannot be used."""
    return True


def is_cuda_available() -> bool:
    """False: the host is an ARM64 PC."""
    return False


is_dml_available = is_openvino_available = is_webgpu_available = is_cuda_available


def register_execution_provider_library(registration_name: str, library_path: str | os.PathLike[str]) -> None:
    """Nothing for QNN, which the host registers by itself. Raises `GenerationUnsupported` for others."""
    if "qnn" not in f"{registration_name} {os.fspath(library_path)}".lower():
        raise GenerationUnsupported(
            f"The execution provider library {os.fspath(library_path)} cannot be registered in the host.",
            fix="Use QNN, or the CPU.",
        )


def unregister_execution_provider_library(registration_name: str) -> None:
    """Nothing: the host keeps QNN for its life."""


def set_log_options(**options: Any) -> None:
    """Nothing: what genai logs in the host comes to the logger ``qnnbridge.host`` of this process."""


def set_log_callback(callback: Callable[[str], None] | None) -> None:
    """Nothing: see `set_log_options`. In one process a callback ends the interpreter with an abort."""


def set_current_gpu_device_id(device_id: int) -> None:
    """Nothing: there is no GPU in the host's generation."""


def get_current_gpu_device_id() -> int:
    """0."""
    return 0


def enable_telemetry_events() -> None:
    """Nothing: the host sends none."""


def disable_telemetry_events() -> None:
    """Nothing: the host sends none."""
