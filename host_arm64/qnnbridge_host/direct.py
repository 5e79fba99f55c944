"""Run a session without the bridge in the host's interpreter, and measure its calls on request.

``python -m qnnbridge_host.direct``. Each line on stdin is a JSON document, and each answer is a JSON document on
stdout: ``{"open": specification, "feed": FILE.npz}`` creates a session, runs it once if there is a ``feed``, and
returns the session's number; ``{"calls": N, "session": number}`` runs that session N times and returns the
nanoseconds of each call. The end of stdin ends the process.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from qnnbridge_host import stdio_guard


def main() -> None:
    # Reserve the descriptors before any native library is loaded, because native code prints on stdout.
    in_fd, out_fd = stdio_guard.claim()
    sessions: list[tuple[Any, dict[str, Any]]] = []
    engine: Any = None
    with open(in_fd, encoding="utf-8") as questions, open(out_fd, "w", encoding="utf-8") as answers:
        for line in questions:
            question = json.loads(line)
            answer: dict[str, Any]
            if "open" in question:
                try:
                    if engine is None:
                        from qnnbridge_host.engine import load_engine

                        engine = load_engine()
                    sessions.append(_open(engine, question))
                    answer = {"session": len(sessions) - 1}
                    if "feed" in question:
                        answer["crc"] = _check(*sessions[-1])
                except Exception as error:  # noqa: BLE001 - sent as the answer
                    answer = {"error": str(error)}
            else:
                session, feed = sessions[question["session"]]
                answer = {"times": _run(session, feed, question["calls"])}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    os._exit(0)  # the QNN libraries may crash at process exit


def _open(engine: Any, question: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import numpy as np

    from qnnbridge_protocol.specs import SessionSpec

    session = engine.create_session(SessionSpec.from_wire(question["open"]), None, {}, lambda phase: None)
    feed = {}
    if "feed" in question:
        with np.load(question["feed"]) as archive:
            feed = {name: archive[name] for name in archive.files}
    # Return ONNX Runtime's own `InferenceSession`, which an application would use without the bridge.
    return session._native[0], feed


def _run(session: Any, feed: dict[str, Any], calls: int) -> list[int]:
    clock = time.perf_counter_ns
    run = session.run
    times = [0] * calls
    for number in range(calls):
        begin = clock()
        run(None, feed)
        times[number] = clock() - begin
    return times


def _check(session: Any, feed: dict[str, Any]) -> int:
    from qnnbridge_protocol.values import check_sum

    return check_sum(session.run(None, feed))


if __name__ == "__main__":
    main()
