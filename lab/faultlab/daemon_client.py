"""One application of a daemon under load: ``python -m lab.faultlab.daemon_client SECONDS SEED THREADS MODEL...``.

Each model multiplies by the number in its file name (``times_3.onnx``), so every result can be compared with the
right one, bit for bit. The application prints "ready" when its sessions are open, begins when it reads a line from
stdin, and finally prints a JSON document: calls, calls of each model, wrong results, errors by class, and the
longest time that a call exceeded its deadline.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import qnnbridge

CPU = ["CPUExecutionProvider"]
# Sizes of the arrays in bytes, and how often each size is chosen (relative weights).
SIZES = {4: 15, 64: 25, 4096: 30, 65_536: 20, 614_400: 8, 4_194_304: 2}

WAYS = ("plain", "out", "borrow", "zero-copy")
DEADLINE_S = 20.0
# Retries of a call. The host is killed every few seconds, so that several crashes may occur during one call.
RETRIES = 6


class Application:
    """Sessions of all models, and the counted outcomes of the calls."""

    def __init__(self, host: qnnbridge.Host, models: list[Path]) -> None:
        self.sessions = [
            (float(path.stem.removeprefix("times_")), qnnbridge.InferenceSession(path, providers=CPU, host=host))
            for path in models
        ]
        self.calls: Counter[float] = Counter()
        self.errors: Counter[str] = Counter()
        self.wrong = 0
        self.late_s = 0.0
        self._lock = threading.Lock()

    def work(self, seconds: float, dice: random.Random) -> None:
        until = time.monotonic() + seconds
        sizes, weights = list(SIZES), list(SIZES.values())
        while time.monotonic() < until:
            scale, session = dice.choice(self.sessions)
            size = dice.choices(sizes, weights)[0]
            begin = time.monotonic()
            wrong, error = False, None
            try:
                wrong = not _call(session, scale, size, dice)
            except Exception as caught:
                error = f"{type(caught).__name__}: {str(caught).splitlines()[0]}"
            late_s = time.monotonic() - begin - DEADLINE_S
            with self._lock:
                self.calls[scale] += 1
                self.wrong += wrong
                self.late_s = max(self.late_s, late_s)
                if error is not None:
                    self.errors[error] += 1

    def told(self) -> dict[str, Any]:
        return {
            "calls": self.calls.total(),
            "by_model": {f"{scale:g}": count for scale, count in sorted(self.calls.items())},
            "wrong": self.wrong,
            "errors": dict(self.errors.most_common(10)),
            "late_s": round(self.late_s, 3),
        }


def _call(session: qnnbridge.InferenceSession, scale: float, size: int, dice: random.Random) -> bool:
    values = np.random.default_rng(dice.randrange(2**32)).normal(size=size // 4).astype(np.float32)
    way = dice.choice(WAYS)
    options: dict[str, Any] = {"timeout": DEADLINE_S, "retry": RETRIES}
    feed = values
    if way == "zero-copy":
        feed = session.empty_input("x", values.shape)
        feed[:] = values
    if way == "out":
        options["out"] = [session.empty_output("y", values.shape)]
    (result,) = session.run(None, {"x": feed}, borrow=way == "borrow", **options)
    return bool(result.tobytes() == (values * np.float32(scale)).tobytes())


def main(seconds: float, seed: int, threads: int, models: list[Path]) -> None:
    with qnnbridge.connect(start=False) as host:
        application = Application(host, models)
        print("ready", flush=True)
        sys.stdin.readline()
        workers = [
            threading.Thread(target=application.work, args=(seconds, random.Random(f"{seed} {n}")))
            for n in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(json.dumps(application.told()), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), [Path(name) for name in sys.argv[4:]])
