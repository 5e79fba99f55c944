"""``onnxruntime.backend.backend_rep``: a model that is ready to run, and the options that the interface allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx.backend.base import BackendRep

from qnnbridge import ort
from qnnbridge._session.runs import RunOptions
from qnnbridge.ort._session import InferenceSession


def set_allowed(options: Any, given: Mapping[str, Any], allowed: frozenset[str], owner: str) -> None:
    """Set the allowed options. Raise `RuntimeError` for other existing options; ignore unknown names."""
    for name, value in given.items():
        if name in allowed:
            setattr(options, name, value)
        elif hasattr(options, name):
            raise RuntimeError(
                f"{owner} attribute '{name}' is not permitted via the backend API. "
                f"Allowed attributes: {', '.join(sorted(allowed))}"
            )


_SAFE_RUN_OPTIONS = frozenset(
    {"log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches"}
)


class OnnxRuntimeBackendRep(BackendRep):  # type: ignore[misc]
    """A model that is ready to run in a session."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:
        """Run the model and return its outputs.

        Args:
            inputs: a list with one array per input, or the array itself for a model with one input.
        """
        options = RunOptions()
        set_allowed(options, kwargs, _SAFE_RUN_OPTIONS, "RunOptions")
        names = [node.name for node in self._session.get_inputs()]
        if not isinstance(inputs, list):
            if len(names) != 1:
                raise RuntimeError(f"Model expect {len(names)} inputs")
            inputs = [inputs]
        # ONNX's tests pass numpy scalars: convert them to arrays, because a session refuses scalars.
        feeds = {
            name: np.asarray(inputs[index]) if isinstance(inputs[index], np.generic) else inputs[index]
            for index, name in enumerate(names)
        }
        return self._session.run(None, feeds, options)


ort.set_module(OnnxRuntimeBackendRep, "backend.backend_rep")
