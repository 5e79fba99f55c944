"""The live probe: runs it in a process of its own, and the check of its result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Final

from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.facts import Facts, ProbeResult
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck
from qnnbridge_tools.doctor.machine import ProbeRequest

# Above the probe's own deadline, for its own end.
GRACE_S: Final = 5.0
_MAX_SAID: Final = 2000


def run_probe(order: ProbeRequest) -> ProbeResult:
    """Takes at most the order's time and `GRACE_S`."""
    # A frozen program would start itself again, with all that it does.
    if getattr(sys, "frozen", False) or not sys.executable:
        return ProbeResult(skipped="this program is no Python interpreter that could start another one")
    request = {
        "host_python": order.host_python,
        "model": os.path.abspath(order.model) if order.model else None,
        "timeout_s": order.timeout_s,
        "dimensions": list(order.dimensions),
    }
    # Windows keeps a file of a process that is just ending; the folder is then left to the system.
    with tempfile.TemporaryDirectory(prefix="qnnbridge-doctor-", ignore_cleanup_errors=True) as state:
        env = {
            **os.environ,
            "QNNBRIDGE_STATE_DIR": os.path.join(state, "state"),
            "QNNBRIDGE_CACHE_DIR": os.path.join(state, "cache"),
            # OpenBLAS starts a thread with buffers for each core when numpy is imported.
            "OPENBLAS_NUM_THREADS": "1",
        }
        return _run(json.dumps(request), env, order.timeout_s + GRACE_S)


def _run(order: str, env: dict[str, str], timeout_s: float) -> ProbeResult:
    child = subprocess.Popen(
        [sys.executable, "-m", "qnnbridge_tools.doctor.probe_run"],
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
            return _result(message["result"])
        stage = str(message.get("stage", stage)) if isinstance(message, dict) else stage
    if timed_out:
        return ProbeResult(failed="timeout", message=f"no answer in the stage '{stage}'")
    said = err.strip()[-_MAX_SAID:].splitlines()[-3:]
    return ProbeResult(
        failed=stage, message=f"the probe's own process ended with code {code}", evidence=tuple(said)
    )


def _result(result: dict[str, Any]) -> ProbeResult:
    from qnnbridge_protocol.field_types import read_document

    return read_document(ProbeResult, result, "probe")


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
        yield (
            f"Whether the versions are to blame is unknown: the tables here lack {' and '.join(unknown)}. "
            f"This qnnbridge has a table of {fixes.table_date()}; another may know more."
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
