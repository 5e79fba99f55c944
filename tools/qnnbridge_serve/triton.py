"""Triton's extensions: configuration and statistics of a model. Used by the thread of the event loop only."""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping
from typing import Any, Final

from qnnbridge_serve.infer import InferReply, ServedModel, TensorSpec
from qnnbridge_serve.status import RECENT, quantile_row, quantiles_of

# Types that have a different name in Triton's configuration.
_TYPES: Final[Mapping[str, str]] = {"BYTES": "TYPE_STRING"}


def configuration(model: ServedModel) -> dict[str, Any]:
    """Return the fields of a model's configuration that Triton's clients read.

    Shapes include the batch dimension.
    """
    contract = model.contract
    return {
        "name": model.name,
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"specific": {"versions": [int(model.version)]}},
        "max_batch_size": 0,
        "input": [_described(tensor) for tensor in list(contract.inputs.values())[: contract.required]],
        "output": [_described(tensor) for tensor in contract.outputs.values()],
        "default_model_filename": "model.onnx",
    }


def _described(tensor: TensorSpec) -> dict[str, Any]:
    kind = _TYPES.get(tensor.datatype, f"TYPE_{tensor.datatype}")
    return {"name": tensor.name, "data_type": kind, "dims": list(tensor.shape)}


# Names in Triton's statistics of a model: the steps of a request, and all counters.
_STEPS: Final = ("queue", "compute_input", "compute_infer", "compute_output")
_SUMS: Final = ("success", "fail", *_STEPS, "cache_hit", "cache_miss")


class ModelStatistics:
    """Counts and times of a model since the start of the server, in seconds."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_SUMS, 0)
        self._times = dict.fromkeys(_SUMS, 0.0)
        self._last_ms = 0
        self._recent: collections.deque[float] = collections.deque(maxlen=RECENT)

    def succeeded(self, begun: float, queued_s: float, reply: InferReply) -> None:
        """Count a successful request.

        Args:
            begun: time (`time.monotonic`) at which the last byte of the request arrived.
            queued_s: seconds that the request waited for a worker.
            reply: the answer.
        """
        steps = (time.monotonic() - begun, queued_s, *reply.spent_s)
        for name, spent_s in zip(("success", *_STEPS), steps, strict=True):
            self._add(name, spent_s)
        # `steps[0]` is the total time, from the last byte of the request to the result.
        self._recent.append(steps[0])
        self._last_ms = int(time.time() * 1000)

    def failed(self, begun: float) -> None:
        self._add("fail", time.monotonic() - begun)

    def _add(self, name: str, spent_s: float) -> None:
        self._counts[name] += 1
        self._times[name] += spent_s

    def row(self) -> dict[str, Any]:
        """Return the figures for `/status`."""
        return {
            "calls": self._counts["success"] + self._counts["fail"],
            "errors": self._counts["fail"],
            "latency_ms": quantile_row(quantiles_of(self._recent), 1000),
        }

    def document(self, name: str, version: str) -> dict[str, Any]:
        sums = {key: {"count": self._counts[key], "ns": int(self._times[key] * 1e9)} for key in _SUMS}
        return {
            "name": name,
            "version": version,
            "last_inference": self._last_ms,
            "inference_count": self._counts["success"],
            "execution_count": self._counts["success"],
            "inference_stats": sums,
            "batch_stats": [],
        }
