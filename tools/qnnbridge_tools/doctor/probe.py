"""Runs a live probe in a process of its own (`probe_run`) and gives what came of it, also if that hangs or dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Final

from qnnbridge_tools.doctor.facts import ProbeResult
from qnnbridge_tools.doctor.machine import ProbeOrder

GRACE_S: Final = 5.0
"""Above the probe's own deadline, for its own end."""
_MAX_SAID: Final = 2000


def run_probe(order: ProbeOrder) -> ProbeResult:
    """Takes at most the order's time and `GRACE_S`."""
    if getattr(sys, "frozen", False) or not sys.executable:
        return ProbeResult(skipped="this program is no Python interpreter that could start another one")
    told = {
        "host_python": order.host_python,
        "model": os.path.abspath(order.model) if order.model else None,
        "timeout_s": order.timeout_s,
        "dimensions": list(order.dimensions),
    }
    with tempfile.TemporaryDirectory(prefix="qnnbridge-doctor-", ignore_cleanup_errors=True) as state:
        env = {
            **os.environ,
            "QNNBRIDGE_STATE_DIR": os.path.join(state, "state"),
            "QNNBRIDGE_CACHE_DIR": os.path.join(state, "cache"),
            "OPENBLAS_NUM_THREADS": "1",
        }
        return _run(json.dumps(told), env, order.timeout_s + GRACE_S)


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
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and "result" in told:
            return _result(told["result"])
        stage = str(told.get("stage", stage)) if isinstance(told, dict) else stage
    if timed_out:
        return ProbeResult(failed="timeout", message=f"no answer in the stage '{stage}'")
    said = err.strip()[-_MAX_SAID:].splitlines()[-3:]
    return ProbeResult(
        failed=stage, message=f"the probe's own process ended with code {code}", evidence=tuple(said)
    )


def _result(told: dict[str, Any]) -> ProbeResult:
    from qnnbridge_tools.doctor.facts_json import decode

    return decode(ProbeResult, told, "probe")
