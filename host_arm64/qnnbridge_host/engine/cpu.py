"""Sessions on the CPU provider in this process, for commands that need the extra `[models]`.

ONNX Runtime's exceptions are translated to the project's. ONNX Runtime logs errors only: the exceptions contain the
details, and commands print their own report.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_host.engine import has_global_pools
from qnnbridge_host.engine.ort_errors import Circumstances, hint
from qnnbridge_host.model.optimizers import LEVEL_OFF, exact
from qnnbridge_host.model.scan import scan_model
from qnnbridge_protocol.errors import ORT_ERRORS, BridgeError, Fail, OrtError
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.shell import command_line

PACKAGES = ("numpy", "onnx", "onnxruntime")

_LOG_ERRORS_ONLY, _LOG_FATAL_ONLY = 3, 4
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_CPU = ["CPUExecutionProvider"]
# Above this number of feeds use IOBinding: `InferenceSession.run` searches all feeds for each input, which takes
# quadratic time.
_MANY_INPUTS = 1000


def require_models_extra(command: str) -> None:
    """Raise `BridgeError` if a package is missing or broken. command: the command's name in the message."""
    missing: list[str] = []
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            missing.append(error.name or package)
        except (ImportError, OSError) as error:
            raise BridgeError(
                f"{command} needs {package}, which is installed but cannot be imported.",
                cause=str(error).splitlines()[0] if str(error) else type(error).__name__,
                fix="Install it again: "
                + command_line((sys.executable, "-m", "pip", "install", "--force-reinstall", package)),
            ) from None
    if missing:
        raise BridgeError(
            f"{command} needs {' and '.join(missing)}, which this Python does not have: {sys.executable}.",
            cause="Commands that change models work in the application's interpreter and need the extra [models].",
            fix=install_command("models", python=sys.executable),
        )


def quiet_options(*, optimize: bool = False) -> Any:
    """Return `SessionOptions` that log errors only. Without `optimize` the graph is not optimized.

    Threads sleep between two operators, because spinning threads would take more than half of the processor's time.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.use_per_session_threads = not has_global_pools()
    options.log_severity_level = _LOG_ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_BASIC if optimize else level.ORT_DISABLE_ALL
    return options


def silent_options(*, optimize: bool = False) -> Any:
    """Return `SessionOptions` for models that may not load or run.

    ONNX Runtime does not log errors, because the command's report contains them.
    """
    options = quiet_options(optimize=optimize)
    options.log_severity_level = _LOG_FATAL_ONLY
    return options


def open_session(model: Path | bytes, label: str, options: Any = None, disabled: Sequence[str] = ()) -> Any:
    """Open a session on the CPU.

    Args:
        model: a file, or the bytes of a model without external files.
        label: the model's name in messages.
        options: default: `quiet_options`.
        disabled: names of ONNX Runtime's optimizers to disable.

    Raises:
        OrtError: ONNX Runtime cannot load the model.
    """
    import onnxruntime as ort

    given = model if isinstance(model, bytes) else os.fspath(model)
    options = options or quiet_options()
    level = options.graph_optimization_level
    try:
        # Request exact integer kernels only if optimisation is off: these kernels need unsigned weights, and an
        # optimised model that ONNX Runtime writes to a file must keep its signed weights.
        if level.value == LEVEL_OFF:
            optimization = exact(LEVEL_OFF, disabled, scan_model(given).ops)
            options.graph_optimization_level = type(level)(optimization.level)
            for key, text in optimization.entries.items():
                options.add_session_config_entry(key, text)
            disabled = optimization.disabled
        return ort.InferenceSession(given, options, providers=_CPU, disabled_optimizers=list(disabled))
    except Exception as error:  # noqa: BLE001 - pybind turns C++ exceptions into an open set of classes
        raise translated(error, f"ONNX Runtime cannot load {label}.") from None


def run(session: Any, feeds: Mapping[str, Any], label: str, outputs: Sequence[str] | None = None) -> list[Any]:
    try:
        if len(feeds) > _MANY_INPUTS and _can_be_bound(feeds):
            return _run_bound(session, feeds, outputs)
        return list(session.run(outputs, dict(feeds)))
    except Exception as error:  # noqa: BLE001 - as above
        raise translated(error, f"ONNX Runtime cannot run {label} on the CPU.") from None


def run_all(
    model: Path, label: str, samples: Iterable[Mapping[str, Any]], outputs: Sequence[str] | None = None
) -> list[list[Any]]:
    """Return the outputs of a model for each sample. Raise `OrtError` if the model cannot be loaded or run."""
    session = open_session(model, label)
    return [run(session, feeds, label, outputs) for feeds in samples]


def _can_be_bound(feeds: Mapping[str, Any]) -> bool:
    import numpy as np

    # IOBinding cannot bind strings, only numbers and booleans.
    return all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in feeds.values())


def _run_bound(session: Any, feeds: Mapping[str, Any], outputs: Sequence[str] | None) -> list[Any]:
    """Run with IOBinding, which takes time proportional to the number of feeds."""
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    for name in outputs or [output.name for output in session.get_outputs()]:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    return list(binding.copy_outputs_to_cpu())


def translated(error: BaseException, message: str) -> OrtError:
    """Convert an exception of ONNX Runtime to the project's exception of the same name. Its cause is the original
    message."""
    cls = ORT_ERRORS.get(type(error).__name__, Fail)
    text = _PREFIX.sub("", str(error)).strip() or type(error).__name__
    return cls(message, cause=text[:2000], fix=hint(text, Circumstances())[1])
