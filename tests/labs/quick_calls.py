"""Make repeated calls with and without shared memory on any machine, and print JSON.

On Windows this is a program; the ARM64 lab calls `exercise` with its host.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [
        str(CHECKOUT),
        *(str(CHECKOUT / n) for n in ("protocol", "bridge_x86", "host_arm64", "daemon", "tools")),
    ]

import numpy as np  # noqa: E402

import qnnbridge  # noqa: E402

MODEL = CHECKOUT / "tools" / "qnnbridge_tools" / "bench" / "assets" / "add.onnx"
# Number of elements of four bytes.
SIZES = (1, 16, 1000, 150_000, 1_000_000)


def exercise(host: qnnbridge.Host) -> dict[str, Any]:
    """Make the same call in all ways, with a crash of the host in between."""
    wrong = 0
    with qnnbridge.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"], host=host) as session:
        for size in SIZES:
            x = np.arange(size, dtype=np.float32) % 4096
            right = (x + 1).tobytes()
            lying, target = session.empty_input("x", (size,)), session.empty_output("y", (size,))
            lying[:] = x
            for _ in range(3):
                wrong += session.run(None, {"x": x})[0].tobytes() != right
                target[:] = 0
                (y,) = session.run(None, {"x": lying}, out=[target])
                wrong += y is not target or y.tobytes() != right
                wrong += session.run(None, {"x": x}, borrow=True)[0].tobytes() != right
        before = host.stats
        (kept,) = session.run(None, {"x": x}, borrow=True)
        process = host.supervisor.running
        assert process is not None
        process._child.kill()
        for _ in range(3):
            wrong += session.run(None, {"x": lying}, out=[target])[0].tobytes() != right
        wrong += kept.tobytes() != right  # it is in memory that the crashed host wrote
        after = host.stats
    return {
        "wrong": wrong,
        "shared": before.shared_calls > 0,
        "shared_memory": before.shared_memory,
        "again in the next host": after.shared_calls - before.shared_calls > 1,
        "generation": after.generation,
    }


def main() -> None:
    report: dict[str, Any] = {}
    for name, shared in (("shared", True), ("connection", False)):
        try:
            with qnnbridge.Host(shared_memory=shared) as host:
                report[name] = exercise(host)
        except BaseException:
            report[name] = traceback.format_exc()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
