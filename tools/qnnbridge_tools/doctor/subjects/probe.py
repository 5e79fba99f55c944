"""The live probe: its process, who starts that, and the check of its result.

The process is ``python -m qnnbridge_tools.doctor.subjects.probe``, with an order on its standard input. Everything
that may hang or die happens below it, and its state folder is a temporary one: what a probe kills makes no crash
report and puts no model in quarantine. It prints one line of JSON when a stage begins and one with the result.
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
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.facts import Facts, ProbeRequest, ProbeResult
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck, finding

# Above the probe's own deadline, for its own end.
GRACE_S: Final = 5.0
_MAX_SAID: Final = 2000


def run_probe(order: ProbeRequest) -> ProbeResult:
    """Takes at most the order's time and `GRACE_S`."""
    # A frozen program would start itself again, with all that it does.
    if getattr(sys, "frozen", False) or not sys.executable:
        return ProbeResult(skipped="this program is no Python interpreter that could start another one")
    request = dataclasses.replace(order, model=os.path.abspath(order.model) if order.model else None)
    # Windows keeps a file of a process that is just ending; the folder is then left to the system.
    with tempfile.TemporaryDirectory(prefix="qnnbridge-doctor-", ignore_cleanup_errors=True) as state:
        env = {
            **os.environ,
            "QNNBRIDGE_STATE_DIR": os.path.join(state, "state"),
            "QNNBRIDGE_CACHE_DIR": os.path.join(state, "cache"),
            # OpenBLAS starts a thread with buffers for each core when numpy is imported.
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
        child.kill()  # its host sees the end of its input and follows
        out, err = child.communicate()
    return _read(out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), child.returncode, timed_out)


def _read(out: str, err: str, code: int, timed_out: bool) -> ProbeResult:
    stage = "start"
    for line in out.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            # A library may print lines of its own between ours.
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
    "start": "the host does not come up",
    "import": "onnxruntime cannot be imported in the host",
    "register": "the QNN provider cannot be loaded",
    "devices": "QNN has no device to compute on",
    "create": "a tiny model cannot be compiled for QNN",
    "run": "a tiny model cannot be run on QNN",
    "numbers": "QNN gives wrong numbers",
    "timeout": "QNN does not answer",
}


def find(facts: Facts) -> Iterator[Finding]:
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
            f"Whether the versions are to blame is unknown: {fixes.unknown_text(unknown)}. "
            f"This qnnbridge has a table of {generated_on()}; another may know more."
        )


def _remedy(facts: Facts, probe: ProbeResult) -> Remedy:
    """The fix where the fault itself names none."""
    if probe.failed == "timeout":
        words = "Restart the computer, in case the NPU hangs; then give it more time."
        return Remedy(words, ("qnnbridge doctor --timeout 300",))
    # Of versions that the table does not have, the pair that was tried is the safer advice than the same one again.
    if probe.failed != "start" and fixes.unknown_packages(facts):
        return fixes.install_known(facts, "Update qnnbridge, which may know more, or install what it knows.")
    again = fixes.reinstall(facts)
    if again.words or probe.failed in ("start", "import", "register"):
        return again
    then = fixes.UPDATE_DRIVER if facts.is_arm else "report it with: qnnbridge doctor --snapshot FILE"
    return Remedy(f"Install the libraries anew; if that does not help, {then}.", again.commands)


def died_text(probe: ProbeResult) -> str:
    return ": its process dies" if probe.exit_code is not None else ""


def healthy(facts: Facts) -> str | None:
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
# The NPU computes with 16 bits; the right numbers are small multiples of 1/8.
TOLERANCE: Final = 0.05


class ProbeLog:
    """The stages of the probe, for the parent process."""

    def __init__(self) -> None:
        self.stages: list[dict[str, Any]] = []
        self.result: dict[str, Any] = {}
        self._begun = time.perf_counter()

    def begin(self, stage: str) -> None:
        self.end()
        self.stages.append({"name": stage, "seconds": 0.0})
        self._begun = time.perf_counter()
        _say({"stage": stage})

    def end(self) -> None:
        if self.stages:
            self.stages[-1]["seconds"] = round(time.perf_counter() - self._begun, 3)

    @property
    def stage(self) -> str:
        return str(self.stages[-1]["name"]) if self.stages else "start"


def _say(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def main() -> int:
    order = read_document(ProbeRequest, json.loads(sys.stdin.readline()), "order")
    run = ProbeLog()
    try:
        _probe(order, run)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
        run.result |= _failed(error, run.stage)
    run.end()
    _say({"result": {**run.result, "stages": run.stages}})
    return 0


def _probe(order: ProbeRequest, run: ProbeLog) -> None:
    # Not at the top: the doctor's own process, and its --quick, need none of it.
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
    # No repetition: one death shows it.
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
        # relu(x @ w + b), which `scripts/makers/probe_model.py` makes a model of.
        right = np.maximum(x.astype(np.float64) @ weights() + bias(), 0)
        difference = float(np.max(np.abs(np.asarray(outputs[0], np.float64) - right)))
        run.result["difference"] = difference
        # Written so that NaN fails, too.
        if not difference <= TOLERANCE:
            run.result |= {
                "failed": "numbers",
                "message": f"the largest difference from the right numbers is {difference:.3g}",
            }


def weights() -> Any:
    import numpy as np

    # Multiples of 1/8 between -1 and 7/8: 16 bits hold them, and the sums of their products, exactly.
    return ((np.arange(64) * 7 % 16 - 8) / 8).reshape(8, 8)


def bias() -> Any:
    import numpy as np

    return (np.arange(8) % 3 - 1) / 2


def _failed(error: Exception, stage: str) -> dict[str, Any]:
    """An error as the result. A death names its own phase; the engine's own complaints name what is missing."""
    details = getattr(error, "details", None) or {}
    kind = type(error).__name__
    exit_record = details.get("exit") if isinstance(details.get("exit"), dict) else None
    failed = (
        # The death of a process names its phase; any other error belongs to the stage that was begun here.
        STAGE_OF_PHASE.get(str(details.get("phase", "")), stage) if exit_record or kind == "HostCrashed" else stage
    )
    if kind == "ProviderUnavailable":
        failed = (
            # One class for both stages: only its text says whether the registering failed or no device was listed.
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
        # The report is in the temporary state folder, which is gone before anybody can read it.
        "evidence": [
            str(line) for line in getattr(error, "evidence", ()) if not str(line).startswith("crash report:")
        ],
        "exit_code": exit_record.get("number") if exit_record else None,
    }


if __name__ == "__main__":
    sys.exit(main())
