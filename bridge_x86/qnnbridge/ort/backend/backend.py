"""``onnxruntime.backend.backend``: functions that prepare and run models for ONNX's backend interface."""

from __future__ import annotations

import os
import unittest
from typing import Any

from onnx import helper
from onnx.backend.base import Backend
from onnx.checker import check_model

from qnnbridge import ort
from qnnbridge._options.providers import QNN
from qnnbridge._session_options import SessionOptions
from qnnbridge.ort._environment import get_available_providers, get_device
from qnnbridge.ort._session import InferenceSession
from qnnbridge.ort.backend.backend_rep import OnnxRuntimeBackendRep, set_allowed

_WRITES_FILES = frozenset({"enable_profiling", "optimized_model_filepath", "profile_file_prefix"})
# Session options that `prepare` accepts, as in ONNX Runtime: all except those that write files.
_SAFE_SESSION_OPTIONS = frozenset(SessionOptions.fields()) - _WRITES_FILES


class OnnxRuntimeBackend(Backend):  # type: ignore[misc]
    """See `ONNX's backend interface <https://onnx.ai/onnx/api/backend.html>`_."""

    allowReleasedOpsetsOnly = os.getenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "1") == "1"  # noqa: N815 - ONNX Runtime's

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        return cls.supports_device(get_device() if device is None else device)

    @classmethod
    def is_opset_supported(cls, model: Any) -> tuple[bool, str]:
        """Return whether all operator sets of the model are released, and the reason if they are not."""
        if not cls.allowReleasedOpsetsOnly:
            return True, ""
        for opset in model.opset_import:
            domain = opset.domain or "ai.onnx"
            if (domain, opset.version) not in helper.OP_SET_ID_VERSION_MAP:
                return False, (
                    "Skipping this test as only released onnx opsets are supported."
                    "To run this test set env variable ALLOW_RELEASED_ONNX_OPSET_ONLY to 0."
                    f" Got Domain '{domain}' version '{opset.version}'."
                )
        return True, ""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        # ONNX's interface uses the name CUDA for ONNX Runtime's GPU. For a build for several devices, `get_device`
        # returns their names joined by hyphens.
        wanted = "GPU" if device == "CUDA" else device
        return wanted in get_device().split("-")

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> OnnxRuntimeBackendRep:
        """Return an object that runs the model.

        Args:
            model: a path, bytes, a ModelProto, a session, or the result of an earlier `prepare`.
        """
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        if not isinstance(model, (str, bytes)):
            data = model.SerializeToString()
            check_model(data)
            supported, why = cls.is_opset_supported(model)
            if not supported:
                raise unittest.SkipTest(why)
            model = data
        options = SessionOptions()
        # Set this entry as ONNX Runtime's backend does, so that both backends accept the same models.
        options.add_session_config_entry(
            "session.allow_released_opsets_only", "1" if cls.allowReleasedOpsetsOnly else "0"
        )
        set_allowed(options, kwargs, _SAFE_SESSION_OPTIONS, "SessionOptions")
        # This interface has only the CPU as a device (`get_device`), so the model runs there, as with onnxruntime
        # and its QNN plugin.
        excluded = {QNN, *os.getenv("ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS", "").split(",")}
        providers = [name for name in get_available_providers() if name not in excluded]
        # ONNX's tests use this interface, and a fallback to the CPU would hide failures.
        session = InferenceSession(model, sess_options=options, providers=providers, enable_fallback=0)
        if device is not None and not cls.supports_device(device):
            raise RuntimeError(f"Incompatible device expected '{device}', got '{get_device()}'")
        return OnnxRuntimeBackendRep(session)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> Any:
        # `prepare` and `run` get the same options; `set_allowed` ignores those of the other method.
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str | None = None, outputs_info: Any = None, **kwargs: Any
    ) -> Any:
        """Raise `NotImplementedError`, as ONNX Runtime does."""
        raise NotImplementedError("It is much more efficient to run a whole model than every node independently.")


is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device

ort.set_module(OnnxRuntimeBackend, "backend.backend")
for _method in ("is_compatible", "prepare", "run_model", "supports_device"):
    # Pass the underlying function, because the `__module__` of a bound method cannot be set.
    ort.set_module(vars(OnnxRuntimeBackend)[_method].__func__, "backend.backend")
