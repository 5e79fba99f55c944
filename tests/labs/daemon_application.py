"""An application that uses the daemon; run by the interpreters of the labs, prints one JSON object.

`daemon_application.py MODEL start|join|stop`: start may start a daemon, join connects to a running one, stop also
ends it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / n) for n in ("protocol", "bridge_x86", "host_arm64", "daemon", "tools")]

import numpy as np  # noqa: E402

import qnnbridge  # noqa: E402

TIMEOUT_S = 60.0


def main(model: str, role: str) -> None:
    host = qnnbridge.connect(start=role == "start")
    session = qnnbridge.InferenceSession(model, host=host, providers=["CPUExecutionProvider"])
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    results = [session.run(None, {"X": x})[0].tolist() for _ in range(5)]
    process = host.supervisor.running
    assert process is not None
    print(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "daemon python": process.peer.python,
                "daemon": process.peer.pid,
                "same": all(result == results[0] for result in results),
                "result": results[0],
                "shared memory": host.stats.shared_calls > 0,
            }
        )
    )
    if role == "stop":
        host.call({"op": "daemon.stop"}, timeout=TIMEOUT_S)
    host.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
