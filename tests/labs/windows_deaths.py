"""A Windows application whose Windows host crashes in many ways. It prints the errors and reports as JSON.

    windows_deaths.py [DEATH...]     default all

The host is the real host process with the scripted engine; the crashes are real.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(CHECKOUT),
    *(str(CHECKOUT / n) for n in ("protocol", "bridge_x86", "host_arm64", "daemon", "tools")),
]

import numpy as np  # noqa: E402
from tests.fakes.hosts import fake_host, script  # noqa: E402

import qnnbridge  # noqa: E402
from qnnbridge import errors  # noqa: E402

X = np.arange(4, dtype=np.float32)

# Machine code that differs between processors: ud2; mov ecx, FAST_FAIL_FATAL_APP_EXIT; int 29h; xor ecx, ecx; div ecx.
X64 = {
    "illegal instruction": "machine_code:0f0b",
    "fast fail": "machine_code:b907000000cd29",
    "division by zero": "machine_code:31c9f7f1",
}
# udf #0; mov w0, FAST_FAIL_FATAL_APP_EXIT; brk #0xf003. A division returns 0 on ARM64, so its exception is raised.
ARM64 = {
    "illegal instruction": "machine_code:00000000",
    "fast fail": "machine_code:e080005260003ed4",
    "division by zero": "seh:C0000094",
}
DEATHS = {
    "access violation": "read_null",
    **(ARM64 if platform.machine() == "ARM64" else X64),
    # A true overflow under Wine ends only the thread, not the process; so the same exception is raised.
    "stack overflow": "seh:C00000FD",
    "C++ exception": "seh:E06D7363",
    "heap corruption": "seh:C0000374",
    "ctrl-c": f"exit:{0xC000013A - (1 << 32)}",  # the effect of the console's handler on a process
    "abort": "abort",
    "still active": "exit:259",
    "terminated": "exit:1",
}


def told(error: errors.BridgeError) -> dict[str, Any]:
    code = error.details.get("exit") or {}
    return {
        "error": type(error).__name__,
        "unsigned": code.get("unsigned"),
        "name": code.get("name"),
        "phase": error.details.get("phase"),
        "text": str(error),
        "cause": error.cause,
        "fix": error.fix,
        "report": bool(error.details.get("report")) and Path(error.details["report"]).is_file(),
    }


def dies(host: qnnbridge.Host, other: qnnbridge.InferenceSession, action: str) -> dict[str, Any]:
    generation = host.stats.generation
    deadly = qnnbridge.InferenceSession(script(on_run=[action]), host=host)
    try:
        deadly.run(None, {"x": X}, retry=0)
    except errors.BridgeError as error:
        report = told(error)
    else:
        report = {"error": "none"}
    report["next model works"] = np.array_equal(other.run(None, {"x": X})[0], X * 3)
    report["starts"] = host.stats.generation - generation
    return report


def poison() -> dict[str, Any]:
    with fake_host() as host:
        deadly = qnnbridge.InferenceSession(script(scale=7, on_run=["read_null"]), host=host)
        seen = []
        for _ in range(2):
            try:
                deadly.run(None, {"x": X})
            except errors.BridgeError as error:
                seen.append(type(error).__name__)
        return {"seen": seen, "generation": host.stats.generation}


def cannot_start(library: str | None) -> dict[str, Any]:
    """Start an interpreter with another library as its python311.dll, or without it: it crashes before its first
    line.
    """
    with tempfile.TemporaryDirectory() as folder:
        alone = shutil.copy(sys.executable, folder)
        if library is not None:
            shutil.copy(Path(sys.executable).with_name(library), Path(folder, "python311.dll"))
        with qnnbridge.Host(_command=[alone, "-c", ""]) as host:
            try:
                host.start()
            except errors.BridgeError as error:
                report = told(error)
            generation = host.stats.generation
            try:
                host.start()
            except errors.BridgeError as error:
                report["again"] = type(error).__name__
            report["starts"] = host.stats.generation - generation + 1
    return report


def main() -> None:
    # A crash that fails the check does not hide the others.
    report: dict[str, Any] = {}

    def note(name: str, look: Callable[[], dict[str, Any]]) -> None:
        try:
            report[name] = look()
        except BaseException:
            report[name] = {"error": traceback.format_exc()}

    # One host for all: each crash costs one start, which takes seconds here.
    with fake_host() as host:
        other = qnnbridge.InferenceSession(script(scale=3), host=host)
        for name in sys.argv[1:] or DEATHS:
            note(name, partial(dies, host, other, DEATHS[name]))
    if not sys.argv[1:]:
        note("poison", poison)
    note("library missing", partial(cannot_start, None))
    note("entry point missing", partial(cannot_start, "vcruntime140.dll"))
    print(json.dumps(report))


main()
