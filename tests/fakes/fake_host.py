"""The host process with the scripted engine.

`python tests/fakes/fake_host.py [--first=ACTION] [--import=ACTION] [--register=ACTION] [--qnn=SOURCE[:VERSION]] [--watchdog-grace=SECONDS]
[--cancel-grace=SECONDS] --parent PID`
"""

import sys

from qnnbridge_host import stdio_guard

IN_FD, OUT_FD = stdio_guard.claim()

if __name__ == "__main__":
    import os

    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from qnnbridge_host.start import main
    from tests.fakes.fake_engine import FakeEngine, act

    before = [a.removeprefix("--first=") for a in sys.argv[1:] if a.startswith("--first=")]
    on_import = [a.removeprefix("--import=") for a in sys.argv[1:] if a.startswith("--import=")]
    on_register = [a.removeprefix("--register=") for a in sys.argv[1:] if a.startswith("--register=")]

    qnn = [a.removeprefix("--qnn=").split(":") for a in sys.argv[1:] if a.startswith("--qnn=")]

    def load_engine(on_phase):
        on_phase("importing")
        for action in on_import:
            act(action)
        on_phase("registering", dict(zip(("ep_source", "ep_version"), qnn[0], strict=False)) if qnn else None)
        for action in on_register:
            act(action)
        if qnn:
            FakeEngine.qnn_source = {"engine": qnn[0][0], "library": "/its/library", "words": f"QNN of {qnn[0][0]}"}
        return FakeEngine()

    for argument in sys.argv[1:]:
        if argument.startswith("--watchdog-grace="):
            from qnnbridge_host.engine import sessions

            assert sessions.WATCHDOG_GRACE_S
            sessions.WATCHDOG_GRACE_S = float(argument.partition("=")[2])
        if argument.startswith("--cancel-grace="):
            from qnnbridge_host.serve import server

            assert server.CANCEL_GRACE_S
            server.CANCEL_GRACE_S = float(argument.partition("=")[2])
    for action in before:
        act(action)
    ours = ("--first=", "--import=", "--register=", "--qnn=", "--watchdog-grace=", "--cancel-grace=")
    main(IN_FD, OUT_FD, [a for a in sys.argv[1:] if not a.startswith(ours)], load_engine)
