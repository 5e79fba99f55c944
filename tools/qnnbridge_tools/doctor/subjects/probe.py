"""The live probe: its process, the code that starts this process, and the check of its result.

The process is ``python -m qnnbridge_tools.doctor.subjects.probe``, with a request on its standard input. Everything
that may hang or crash runs in it and its children, with a temporary state folder, so that a crash creates neither a
crash report nor a quarantine entry. The process prints one JSON line at the start of each stage, and one with the
result.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Final

from qnnbridge_protocol.field_types import read_document
from qnnbridge_tools import signals
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.facts import Facts, ProbeRequest, ProbeResult
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck, finding

# Seconds that the probe may exceed its own deadline before its process is ended.
GRACE_S: Final = 5.0
_MAX_SAID: Final = 2000


def run_probe(order: ProbeRequest) -> ProbeResult:
    """Run a live probe in a separate process; return its result at most `GRACE_S` after the deadline."""
    # A frozen program would start itself again instead of an interpreter.
    if getattr(sys, "frozen", False) or not sys.executable:
        return ProbeResult(skipped="this program is not a Python interpreter that could start another one")
    request = dataclasses.replace(order, model=os.path.abspath(order.model) if order.model else None)
    # Ignore errors: Windows locks files of a process that is still ending. The folder then stays among the system's
    # temporary files.
    with tempfile.TemporaryDirectory(prefix="qnnbridge-doctor-", ignore_cleanup_errors=True) as state:
        env = {
            **os.environ,
            "QNNBRIDGE_STATE_DIR": os.path.join(state, "state"),
            "QNNBRIDGE_CACHE_DIR": os.path.join(state, "cache"),
            # Otherwise OpenBLAS starts a thread with buffers for each core when numpy is imported.
            "OPENBLAS_NUM_THREADS": "1",
        }
        return _run(json.dumps(dataclasses.asdict(request)), env, order.timeout_s + GRACE_S)


def _run(order: str, env: dict[str, str], timeout_s: float) -> ProbeResult:
    child = subprocess.Popen(
        [sys.executable, "-m", "qnnbridge_tools.doctor.subjects.probe"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    timed_out = False
    try:
        out, err = child.communicate((order + "\n").encode(), timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        child.kill()  # the probe's host then ends, because its standard input is closed
        out, err = child.communicate()
    except BaseException:
        # Wait for the probe's host to end, because it writes into the folder that the caller removes next.
        signals.end(child)
        raise
    return _read(out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), child.returncode, timed_out)


def _read(out: str, err: str, code: int, timed_out: bool) -> ProbeResult:
    stage = "start"
    for line in out.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            # Skip a line that a library may have printed.
            continue
        if isinstance(message, dict) and "result" in message:
            return read_document(ProbeResult, message["result"], "probe")
        stage = str(message.get("stage", stage)) if isinstance(message, dict) else stage
    if timed_out:
        return ProbeResult(failed="timeout", message=f"no answer in the stage '{stage}'")
    said = err.strip()[-_MAX_SAID:].splitlines()[-3:]
    return ProbeResult(
        failed=stage, message=f"the probe's own process ended with code {code}", evidence=tuple(said)
    )


TITLES: Final = {
    "start": "the host does not start",
    "import": "onnxruntime cannot be imported in the host",
    "register": "the QNN provider cannot be loaded",
    "devices": "QNN has no device to compute on",
    "create": "a tiny model cannot be compiled for QNN",
    "run": "a tiny model cannot be run on QNN",
    "numbers": "QNN computes wrong numbers",
    "timeout": "QNN does not answer",
}


def find(facts: Facts) -> Iterator[Finding]:
    """Yield the finding about a failed live probe."""
    probe = facts.probe
    if probe is None or not probe.failed:
        return
    yield finding(
        f"probe.{probe.failed}",
        TITLES[probe.failed] + died_text(probe),
        probe.message,
        *probe.evidence[:4],
        fix=Remedy(probe.fix) if probe.fix else _remedy(facts, probe),
        notes=(*([probe.cause] if probe.cause else []), *_unknown(facts)),
    )


def _unknown(facts: Facts) -> Iterator[str]:
    unknown = fixes.unknown_packages(facts)
    if unknown:
        from qnnbridge_host.model.releases import generated_on

        yield (
            f"It is unknown whether the versions are the cause: {fixes.unknown_text(unknown)}. This qnnbridge has "
            f"a version table of {generated_on()}; a newer qnnbridge may list these versions."
        )


def _remedy(facts: Facts, probe: ProbeResult) -> Remedy:
    """Return the fix for a failure whose error does not contain one."""
    if probe.failed == "timeout":
        words = "Restart the computer, in case the NPU hangs; then give the probe more time."
        return Remedy(words, ("qnnbridge doctor --timeout 300",))
    # Do not reinstall versions that the table lacks: a tested pair of onnxruntime and onnxruntime-qnn is safer.
    if probe.failed != "start" and fixes.unknown_packages(facts):
        return fixes.install_known(
            facts, "Update qnnbridge, which may have a newer table, or install known versions."
        )
    again = fixes.reinstall(facts)
    if again.words or probe.failed in ("start", "import", "register"):
        return again
    then = fixes.UPDATE_DRIVER if facts.is_arm else "report it with: qnnbridge doctor --snapshot FILE"
    return Remedy(f"Reinstall the libraries; if that does not help, {then}.", again.commands)


def died_text(probe: ProbeResult) -> str:
    """Return the end of the finding's title if the process crashed; "" for other failures."""
    return ": its process dies" if probe.exit_code is not None else ""


def healthy(facts: Facts) -> str | None:
    """Describe the result of the probe in one line."""
    probe = facts.probe
    if probe is None:
        return None
    if probe.skipped:
        return f"not made: {probe.skipped}"
    where = "QNN's simulator" if probe.simulator else "the NPU"
    return (
        f"a tiny model ran on {where}: {probe.qnn_nodes} nodes on QNN, {probe.cpu_nodes} on the CPU, largest "
        f"difference {probe.difference or 0:.2g}, {probe.seconds:.1f} s"
    )


CHECK = SubjectCheck("live probe", find, healthy)


# --- the probe's own process ---

STAGE_OF_PHASE: Final = {
    "starting": "start",
    "importing": "import",
    "registering": "register",
    "creating": "create",
    "compiling": "create",
    "running": "run",
}
PROBE_MODEL: Final = "probe.onnx"
# Allowed difference: the NPU computes in 16 bits, and the correct outputs are small multiples of 1/8.
TOLERANCE: Final = 0.05


class ProbeLog:
    """Stages and result of the probe, which are reported to the parent process."""

    def __init__(self) -> None:
        self.stages: list[dict[str, Any]] = []
        self.result: dict[str, Any] = {}
        self._begun = time.perf_counter()

    def begin(self, stage: str) -> None:
        """Begin a stage and report it."""
        self.end()
        self.stages.append({"name": stage, "seconds": 0.0})
        self._begun = time.perf_counter()
        _say({"stage": stage})

    def end(self) -> None:
        """Record the duration of the current stage."""
        if self.stages:
            self.stages[-1]["seconds"] = round(time.perf_counter() - self._begun, 3)

    @property
    def stage(self) -> str:
        """Current stage."""
        return str(self.stages[-1]["name"]) if self.stages else "start"


def _say(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def main() -> int:
    """Read a probe request from standard input and run the probe."""
    order = read_document(ProbeRequest, json.loads(sys.stdin.readline()), "order")
    run = ProbeLog()
    try:
        with signals.ended_by_signals():
            _probe(order, run)
    except Exception as error:  # noqa: BLE001 - any error is the result
        run.result |= _failed(error, run.stage)
    run.end()
    _say({"result": {**run.result, "stages": run.stages}})
    return 0


def _probe(order: ProbeRequest, run: ProbeLog) -> None:
    # Imported here because the doctor's own process does not need it.
    import importlib.resources

    from qnnbridge import Host

    run.begin("start")
    with Host(python=order.host_python, start_timeout=order.timeout_s) as host:
        host.start(order.timeout_s)
        run.begin("import")
        info = host.info
        run.result |= {
            "simulator": info.simulator,
            "versions": {str(name): str(version) for name, version in info.versions.items()},
            "devices": [str(device.get("device_type", "")) for device in info.devices],
        }
        if order.model:
            _compute(host, order.model, order, run)
        else:
            assets = importlib.resources.files("qnnbridge_tools.doctor").joinpath("assets")
            with importlib.resources.as_file(assets.joinpath(PROBE_MODEL)) as model:
                _compute(host, str(model), order, run)


def _compute(host: Any, model: str, order: ProbeRequest, run: ProbeLog) -> None:
    import numpy as np

    from qnnbridge import InferenceSession
    from qnnbridge_tools.arguments import read_dimensions, session_options

    dimensions = read_dimensions(order.dimensions)
    run.begin("create")
    # Do not retry: a single crash is the result.
    with InferenceSession(
        model, session_options(dimensions), host=host, timeout=order.timeout_s, retry=0
    ) as session:
        placement = session.placement
        run.result |= {"qnn_nodes": placement.qnn_nodes, "cpu_nodes": placement.cpu_nodes}
        run.result["simulator"] = placement.simulator
        run.begin("run")
        if order.model:
            from qnnbridge_tools import feeds

            given = feeds.complete(list(session.get_inputs()), [], dimensions, seed=0)
            session.run(None, {feed.name: feed.value for feed in given})
            return
        x = np.arange(-8, 8, dtype=np.float32).reshape(2, 8) / 8
        outputs = session.run(None, {"x": x})
        run.begin("numbers")
        # relu(x @ w + b), the model of `scripts/makers/probe_model.py`.
        right = np.maximum(x.astype(np.float64) @ weights() + bias(), 0)
        difference = float(np.max(np.abs(np.asarray(outputs[0], np.float64) - right)))
        run.result["difference"] = difference
        # `not <=` is also true for NaN.
        if not difference <= TOLERANCE:
            run.result |= {
                "failed": "numbers",
                "message": f"the largest difference from the correct outputs is {difference:.3g}",
            }


def weights() -> Any:
    """Return the weights of the probe's model."""
    import numpy as np

    # Multiples of 1/8 between -1 and 7/8 are exact in 16 bits, as are the sums of their products.
    return ((np.arange(64) * 7 % 16 - 8) / 8).reshape(8, 8)


def bias() -> Any:
    """Return the bias of the probe's model."""
    import numpy as np

    return (np.arange(8) % 3 - 1) / 2


def _failed(error: Exception, stage: str) -> dict[str, Any]:
    """Return an error as the probe's result, including the stage that failed."""
    details = getattr(error, "details", None) or {}
    kind = type(error).__name__
    exit_record = details.get("exit") if isinstance(details.get("exit"), dict) else None
    failed = (
        # A crash record contains its phase; any other error belongs to the current stage.
        STAGE_OF_PHASE.get(str(details.get("phase", "")), stage) if exit_record or kind == "HostCrashed" else stage
    )
    if kind == "ProviderUnavailable":
        failed = (
            # Two stages raise this exception class. Its message shows whether the registration failed or no device
            # was listed.
            "devices" if "device" in str(error).lower() and "register" not in str(error).lower() else "register"
        )
    elif kind in ("DeadlineExceeded", "HostHung"):
        failed = "timeout"
    return {
        "failed": failed,
        "error": kind,
        "message": str(getattr(error, "message", "") or error),
        "cause": getattr(error, "cause", None) or "",
        "fix": getattr(error, "fix", None) or "",
        # Omit the path of the crash report, which is in a temporary folder.
        "evidence": [
            str(line) for line in getattr(error, "evidence", ()) if not str(line).startswith("crash report:")
        ],
        "exit_code": exit_record.get("number") if exit_record else None,
    }


if __name__ == "__main__":
    sys.exit(main())
