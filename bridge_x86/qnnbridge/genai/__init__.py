"""Text generation on the NPU: the interface of the module onnxruntime_genai, with the objects in the host.

>>> from qnnbridge import genai
>>> model = genai.Model("phi-qnn")
>>> for piece in genai.generate(model, "What is an NPU?", max_tokens=100):
...     print(piece, end="", flush=True)

The application needs no onnxruntime_genai. `Generator` and the other classes have genai's methods; `generate` is
the short way. See docs/genai.md.
"""

from __future__ import annotations

from typing import Any

from qnnbridge.genai._environment import (
    UNAVAILABLE,
    disable_telemetry_events,
    enable_telemetry_events,
    get_current_gpu_device_id,
    is_cuda_available,
    is_dml_available,
    is_openvino_available,
    is_qnn_available,
    is_webgpu_available,
    register_execution_provider_library,
    set_current_gpu_device_id,
    set_log_callback,
    set_log_options,
    unavailable,
    unregister_execution_provider_library,
)
from qnnbridge.genai._generation import GenerationStats
from qnnbridge.genai._generator import Generator, GeneratorParams
from qnnbridge.genai._model import Adapters, Config, Model
from qnnbridge.genai._tensors import NamedTensors, Tensor
from qnnbridge.genai._text import TextStream, TokenLogprobs, generate
from qnnbridge.genai._tokenizer import Tokenizer, TokenizerStream
from qnnbridge_protocol.specs import GenerationModelInfo, StagePlacement

# The newest release whose surface this module has.
__version__ = "0.18.0"
__id__ = "onnxruntime-genai"

__all__ = [
    "Adapters",
    "Config",
    "GenerationModelInfo",
    "GenerationStats",
    "Generator",
    "GeneratorParams",
    "Model",
    "NamedTensors",
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
    value = globals()[name] = unavailable(name)
    return value
