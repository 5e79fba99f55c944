"""`python -m lab.sweep.worker SOC [used]`: run cases from stdin on QNN and on the CPU, and write a result for each.

Cases and results are lines of JSON. A process runs many cases; if QNN ends it, the driver assigns the crash to the
current case. The worker uses ONNX Runtime and QNN without the bridge, so the bridge cannot cause a fault. `used`:
fill QNN's memory before each run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from qnnbridge_host.numerics.cases import Case
from qnnbridge_host.numerics.measuring import CaseRun, filling_model, measured


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # QNN writes to stdout
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    qnn = _Qnn(sys.argv[1])
    fill = _filling(qnn) if "used" in sys.argv[2:] else lambda: None
    answers.write(json.dumps({"versions": qnn.versions}) + "\n")
    for line in sys.stdin:
        try:
            words = json.loads(line)
            answer = result_of(Case.from_words(words), qnn, fill, words.get("rewrite", ""))
        except Exception as error:
            answer = {"status": "broken", "why": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)  # QNN's threads may abort the process at a normal exit


def _filling(qnn: _Qnn) -> Callable[[], None]:
    model, feeds = filling_model()
    run = qnn.qnn(model)
    return lambda: run(feeds) and None


class _Qnn:
    """QNN's provider, registered in this process."""

    def __init__(self, soc: str) -> None:
        import onnxruntime
        import onnxruntime_qnn

        self._ort = onnxruntime
        onnxruntime.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
        self._devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "QNNExecutionProvider"][:1]
        self._options = {"backend_path": onnxruntime_qnn.get_qnn_htp_path()}
        if soc:
            self._options["soc_model"] = soc
        qnn = getattr(onnxruntime_qnn, "__version__", "") or _version("onnxruntime-qnn")
        self.versions = {"onnxruntime": onnxruntime.__version__, "onnxruntime-qnn": qnn, "soc": soc}

    def qnn(self, model: bytes) -> CaseRun:
        options = self._ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.add_provider_for_devices(self._devices, self._options)
        session = self._ort.InferenceSession(model, options, enable_fallback=0)
        return lambda feeds: list(session.run(None, feeds))

    def cpu(self, model: bytes) -> CaseRun:
        session = cpu(model)
        return lambda feeds: list(session.run(None, feeds))

    def is_refusal(self, error: Exception) -> bool:
        text = str(error)
        return "fall back" in text or "fallback" in text or "assigned to the default CPU" in text


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def cpu(model: bytes) -> Any:
    """Return a CPU session without graph optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def result_of(case: Case, qnn: _Qnn, fill: Callable[[], None], rewrite: str = "") -> dict[str, Any]:
    """Return the result of `measuring.measured` for a case as a dict for JSON. rewrite: name of a rewrite to
    apply to the model before it runs on QNN."""
    found = measured(case, qnn, lambda data: _rewritten(data, rewrite) if rewrite else data, fill=fill)
    judged = {} if found.judged is None else dataclasses.asdict(found.judged)
    told = {key: round(v, 6) if isinstance(v, float) else v for key, v in judged.items()}
    return {**told, "status": found.status, "why": found.why}


def _rewritten(data: bytes, name: str) -> bytes:
    from qnnbridge_host.graph.model_index import Editor
    from qnnbridge_host.rewrite.catalogue import chosen

    model = onnx.load_from_string(data)
    (rewrite,) = chosen([name], [])
    if not rewrite.apply(Editor(model, Path())):
        raise ValueError(f"{name} finds nothing to do")
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    raise SystemExit(main())
