"""`python -m lab.sweep.worker SOC`: runs cases from stdin on QNN and on the CPU, and writes a result for each.

Lines of JSON both ways. A process runs many cases; if QNN ends it, the driver knows which case that was. ONNX
Runtime and QNN alone, without the bridge: the faults are theirs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from lab.sweep.cases import Case, feeds_of, float_model, quantised_model
from lab.sweep.judging import HALF_ROUNDING, LARGEST_HALF, judge, worst

_MOVED = 4


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # QNN writes there
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    qnn = _Qnn(sys.argv[1])
    answers.write(json.dumps({"versions": qnn.versions}) + "\n")
    for line in sys.stdin:
        try:
            words = json.loads(line)
            answer = result_of(Case.from_words(words), qnn, words.get("rewrite", ""))
        except Exception as error:
            answer = {"status": "broken", "why": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)  # QNN's own threads may abort an ordinary end


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

    def run(self, model: bytes, feeds: dict[str, Any]) -> list[Any]:
        """Raises what ONNX Runtime raises, also for a node that QNN does not take."""
        (results,) = self.runs(model, feeds, 1)
        return results

    def runs(self, model: bytes, feeds: dict[str, Any], count: int) -> list[list[Any]]:
        """Several runs of one session."""
        options = self._ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.add_provider_for_devices(self._devices, self._options)
        session = self._ort.InferenceSession(model, options, enable_fallback=0)
        return [list(session.run(None, feeds)) for _ in range(count)]


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def cpu(model: bytes) -> Any:
    """A session of the CPU that changes nothing in the graph."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def result_of(case: Case, qnn: _Qnn, rewrite: str = "") -> dict[str, Any]:
    """status: right, wrong, refused (by QNN), failed (when it ran), skipped (nothing to compare).

    rewrite: of `qnnbridge fix`: QNN runs the rewritten model, the CPU the original.
    """
    feeds = feeds_of(case)
    plain = float_model(case, every_output=True)
    try:
        values = dict(
            zip([o.name for o in plain.graph.output], cpu(plain.SerializeToString()).run(None, feeds), strict=True)
        )
    except Exception as error:
        return {"status": "skipped", "why": f"the CPU: {error}"[:200]}
    steps: dict[str, float] = {}
    if case.form.startswith("qdq"):
        floats = {k: v for k, v in {**feeds, **values}.items() if v.dtype == np.float32 and v.size}
        if not all(np.isfinite(value).all() for value in floats.values()):
            return {"status": "skipped", "why": "a range that is not finite"}
        ranges = {k: (float(v.min()), float(v.max())) for k, v in floats.items()}
        model = quantised_model(case, ranges)
        most = 65535 if case.form == "qdq16" else 255
        steps = {k: (max(high, 0) - min(low, 0)) / most for k, (low, high) in ranges.items()}
    else:
        model = float_model(case)
        inside = [v for v in values.values() if v.dtype.kind == "f" and v.size]
        if any(not np.isfinite(v).all() or np.abs(v).max() > LARGEST_HALF for v in inside):
            return {"status": "skipped", "why": "beyond half floats"}
    data = model.SerializeToString()
    try:
        session = cpu(data)
        reference = session.run(None, feeds)
    except Exception as error:
        return {"status": "skipped", "why": f"the CPU: {error}"[:200]}
    again = session.run(None, feeds)
    if any(not np.array_equal(one, other, equal_nan=True) for one, other in zip(reference, again, strict=True)):
        return _of_random(qnn, _rewritten(data, rewrite) if rewrite else data, feeds)
    rng = np.random.default_rng(case.seed)
    moved = [session.run(None, _moved(feeds, steps, rng)) for _ in range(_MOVED)]
    try:
        results = qnn.run(_rewritten(data, rewrite) if rewrite else data, feeds)
    except Exception as error:
        return _not_run(error)
    names = [value.name for value in float_model(case).graph.output]
    judged = worst(
        [
            judge(ours, [other[k] for other in moved], theirs, steps.get(names[k], 0.0))
            for k, (ours, theirs) in enumerate(zip(reference, results, strict=True))
        ]
    )
    told = {key: round(v, 6) if isinstance(v, float) else v for key, v in dataclasses.asdict(judged).items()}
    return {"status": "right" if judged.right else "wrong", **told}


def _not_run(error: Exception) -> dict[str, Any]:
    text = str(error)
    refused = "fall back" in text or "fallback" in text or "assigned to the default CPU" in text
    return {"status": "refused" if refused else "failed", "why": text[:300]}


def _of_random(qnn: _Qnn, model: bytes, feeds: dict[str, Any]) -> dict[str, Any]:
    """Of a model with random numbers: right if a session of QNN draws others in each run."""
    try:
        (one, other) = qnn.runs(model, feeds, 2)
    except Exception as error:
        return _not_run(error)
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))
    return {"status": "wrong" if same else "right", "why": "the same random numbers in every run" if same else ""}


def _rewritten(data: bytes, name: str) -> bytes:
    from qnnbridge_host.graph.model_index import Editor
    from qnnbridge_host.rewrite.fixer import chosen

    model = onnx.load_from_string(data)
    (rewrite,) = chosen([name], [])
    if not rewrite.apply(Editor(model, Path())):
        raise ValueError(f"{name} finds nothing to do")
    return bytes(model.SerializeToString())


def _moved(feeds: dict[str, Any], steps: dict[str, float], rng: np.random.Generator) -> dict[str, Any]:
    found = {}
    for name, value in feeds.items():
        if value.dtype.kind == "f":
            sign = rng.choice([-1.0, 1.0], value.shape)
            value = np.asarray(
                value + sign * (np.abs(value) * HALF_ROUNDING + steps.get(name, 0.0) / 2), value.dtype
            )
        found[name] = value
    return found


if __name__ == "__main__":
    raise SystemExit(main())
