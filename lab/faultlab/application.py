"""An application that a test kills: ``python -m lab.faultlab.application STATE FILE``.

The application starts a host with the scripted engine, brings it into the state, prints the host's pid and waits.
States: ``idle``; ``run`` and ``create``: in native code; ``compile``: in native code of a compilation worker, with
an idle host (all pids are printed); ``gil``: in native code that holds the host's GIL; ``slots``: in a call with
tensors in shared memory; ``fork``: idle, with a forked sibling that keeps all of the application's pipes open;
``fork-run``: ``fork`` and ``run``.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from tests.fakes.hosts import fake_host, patched_host, script

import qnnbridge
from lab.faultlab.orphans import STATES

MODEL = Path(__file__).parents[2] / "tests" / "models" / "mul_1.onnx"
WORKING = 2
COMPILES = """
    import time
    from qnnbridge_host.engine import compile as compiling

    def compile_model(engine, spec, model, initializers, on_phase):
        on_phase("compiling")
        open({began!r}, "w").close()
        time.sleep(600)

    compiling.compile_model = compile_model
"""
X = np.zeros(4, np.float32)
_held: list[object] = []


def main(state: str, began: str) -> None:
    """Start a host, bring it into a state and wait.

    Args:
        state: a key of `STATES`.
        began: path of a file that the host creates as soon as it executes native code. The folder of the path
        exists.
    """
    if state not in STATES:
        raise SystemExit(f"unknown state {state!r}; known: {', '.join(STATES)}")
    host = patched_host(Path(began).parent, COMPILES.format(began=began)) if state == "compile" else fake_host()
    pid = host.info.pid
    if state.startswith("fork"):
        _fork()
    action = "hold_gil:600" if state == "gil" else "sleep:600"
    if state in ("run", "fork-run"):
        session = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", action]), host=host)
        _in_a_thread(lambda: session.run(None, {"x": X}), began)
    elif state == "slots":
        _hold_slots(host, began, action)
    elif state in ("create", "gil"):
        model = script(on_create=[f"note:{began}", action])
        _in_a_thread(lambda: qnnbridge.InferenceSession(model, host=host), began)
    elif state == "compile":
        _in_a_thread(lambda: qnnbridge.compile(MODEL, os.path.dirname(began), host=host), began)
    others: set[int] = set()
    if state == "compile":
        others = {child.pid for child in psutil.Process().children(recursive=True)} - {pid}
        assert len(others) == WORKING, "a host that compiles, and its worker"
    print(pid, *others, flush=True)
    sys.stdin.read()


def _hold_slots(host: qnnbridge.Host, began: str, action: str) -> None:
    once = Path(f"{began}-once")
    once.touch()
    session = qnnbridge.InferenceSession(script(on_run=[f"note:{began}", action], once=str(once)), host=host)
    x, out = session.empty_input("x", (4,)), session.empty_output("y", (4,))
    lent = [session.run(None, {"x": x}, borrow=True) for _ in range(3)]
    session.run(None, {"x": x}, out=[out])
    if host.stats.shared_calls < len(lent):
        raise SystemExit("no memory is shared")
    once.unlink()
    _in_a_thread(lambda: session.run(None, {"x": x}, out=[out]), began)
    _held.extend((lent, out))


def _in_a_thread(work: Callable[[], object], began: str) -> None:
    threading.Thread(target=work, daemon=True).start()
    while not os.path.exists(began):
        threading.Event().wait(0.002)


def _fork() -> None:
    """Fork a sibling with copies of all pipes, bypassing Python so that no fork hook closes them.

    The sibling runs until the test closes its stdin; it does not end with the application.
    """
    if ctypes.PyDLL(None).fork() == 0:
        os.read(0, 1)
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
