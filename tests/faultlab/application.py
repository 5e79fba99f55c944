"""An application that is meant to be killed: ``python -m tests.faultlab.application STATE``.

It starts a host with the scripted engine, brings it into the state, prints the host's pid and waits. States:
``idle``; ``run`` and ``create``: inside native code; ``gil``: inside native code that holds the host's GIL;
``fork``: idle, with a forked sibling that has all of the application's pipes and lives on; ``fork-run``: both.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable

import numpy as np

import qnnbridge
from tests.fakes.hosts import fake_host, script
from tests.faultlab.orphans import STATES

X = np.zeros(4, np.float32)
FOR_EVER = "sleep:600"


def main(state: str) -> None:
    if state not in STATES:
        raise SystemExit(f"unknown state {state!r}; known: {', '.join(STATES)}")
    host = fake_host()
    pid = host.info.pid
    if state.startswith("fork"):
        _fork()
    if state in ("run", "fork-run"):
        session = qnnbridge.InferenceSession(script(on_run=[FOR_EVER]), host=host)
        _in_a_thread(lambda: session.run(None, {"x": X}))
        _wait_for_phase(host, "running")
    elif state in ("create", "gil"):
        action = "hold_gil:600" if state == "gil" else FOR_EVER
        _in_a_thread(lambda: qnnbridge.InferenceSession(script(on_create=[action]), host=host))
        _wait_for_phase(host, "creating")
    print(pid, flush=True)
    sys.stdin.read()


def _in_a_thread(work: Callable[[], object]) -> None:
    threading.Thread(target=work, daemon=True).start()


def _wait_for_phase(host: qnnbridge.Host, phase: str) -> None:
    """Until the host has declared it."""
    while (process := host.supervisor.running) is None or phase not in process.channel.phases.values():
        if phase == "running" and process is not None:
            # A lone run declares nothing (ADR 0003); in company it does.
            process.call({"op": "host.stats"})
        threading.Event().wait(0.005)


def _fork() -> None:
    """A sibling with copies of all pipes: made without Python's knowledge, so that no hook can close them.

    It lives until its stdin ends, which is not the application's life but the test's pipe.
    """
    if ctypes.PyDLL(None).fork() == 0:
        os.read(0, 1)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
