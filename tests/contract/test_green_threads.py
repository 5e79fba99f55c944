"""Applications under gevent, eventlet and uvloop: sessions work or are refused with an explanation, and deadlines
are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests import needs
from tests.contract.small_models import doubling

pytestmark = [pytest.mark.process, needs.a_host_python, needs.linux]

LIMIT_S = 60

PATCH = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}

SESSION = """
import numpy as np
def make():
    return qnnbridge.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"], timeout=30)
feeds = {"x": np.ones((1, 4), np.float32)}
"""

CALLS = {
    "gevent": """
import gevent
jobs = [gevent.spawn(session.run, None, feeds) for _ in range(10)]
gevent.joinall(jobs, timeout=20)
assert [job.value[0][0, 0] for job in jobs] == [2] * 10
assert gevent.get_hub().threadpool.apply(session.run, (None, feeds))[0][0, 0] == 2
""",
    "eventlet": """
from eventlet import tpool
assert [job.wait()[0][0, 0] for job in [eventlet.spawn(session.run, None, feeds) for _ in range(10)]] == [2] * 10
assert tpool.execute(session.run, None, feeds)[0][0, 0] == 2
""",
}


def made_model(folder: Path) -> str:
    file = folder / "model.onnx"
    file.write_bytes(doubling())
    return str(file)


def run(folder: Path, *parts: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text("import sys\n" + "\n".join(textwrap.dedent(part) for part in parts), encoding="utf-8")
    command = [sys.executable, "-W", "ignore", str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=folder, env={**os.environ})


@pytest.mark.parametrize("after_import", [False, True])
@pytest.mark.parametrize("green", ["gevent", "eventlet"])
def test_calls_of_greenlets_and_of_threads_work(tmp_path: Path, green: str, after_import: bool) -> None:
    first = ["import qnnbridge", PATCH[green]] if after_import else [PATCH[green], "import qnnbridge"]
    done = run(
        tmp_path,
        *first,
        SESSION,
        """
        import qnnbridge.futures
        with make() as session:
            for _ in range(3):
                assert session.run(None, feeds)[0][0, 0] == 2
            assert qnnbridge.futures.submit(session, None, feeds).result(timeout=10)[0][0, 0] == 2
        """
        + textwrap.indent(CALLS[green], " " * 12)
        + """
            assert session.host.stats.generation == 1
        print("done")
        """,
        arguments=(made_model(tmp_path),),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_the_error_names_eventlet_if_it_has_replaced_locks(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "from qnnbridge import BridgeError, InferenceSession",
        "import qnnbridge",
        SESSION,
        PATCH["eventlet"],
        """
        try:
            make()
        except BridgeError as error:
            print(type(error).__name__, error)
        """,
        arguments=(made_model(tmp_path),),
    )
    assert done.returncode == 0, done.stderr
    assert "HostStartFailed qnnbridge cannot work in this process: eventlet has replaced its locks." in done.stdout
    assert "Call eventlet.monkey_patch() before anything else is imported" in done.stdout


@pytest.mark.parametrize("green", ["gevent", "eventlet"])
def test_deadlines_hold_under_green_threads(tmp_path: Path, green: str) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 50\n")
    silent.chmod(0o755)
    began = time.monotonic()
    done = run(
        tmp_path,
        PATCH[green],
        f"""
        import time
        import qnnbridge
        began = time.monotonic()
        with qnnbridge.Host(python={str(silent)!r}) as host:
            try:
                qnnbridge.InferenceSession(sys.argv[1], host=host, timeout=1)
            except qnnbridge.BridgeError as error:
                print(type(error).__name__, time.monotonic() - began < 4)
        """,
        arguments=(made_model(tmp_path),),
    )
    assert (done.stdout, done.stderr) == ("DeadlineExceeded True\n", "")
    assert time.monotonic() - began < 20


def test_a_daemon_works_under_gevent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("QNNBRIDGE_HOST", "daemon")
    done = run(
        tmp_path,
        PATCH["gevent"],
        "import qnnbridge",
        SESSION,
        """
        with make() as session:
            for _ in range(3):
                assert session.run(None, feeds)[0][0, 0] == 2
        print("done")
        """,
        arguments=(made_model(tmp_path),),
    )
    stop = subprocess.run(
        [sys.executable, "-m", "qnnbridge_tools", "host", "stop"], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert stop.returncode == 0


def test_uvloop_runs_sessions(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import asyncio
        import numpy as np
        import qnnbridge.aio
        import uvloop

        async def main():
            assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
            model = qnnbridge.aio.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
            async with model as session:
                feeds = {"x": np.ones((1, 4), np.float32)}
                several = await asyncio.gather(*(session.run(None, feeds) for _ in range(10)))
                assert [outputs[0][0, 0] for outputs in several] == [2] * 10
                child = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(3)")
                assert await child.wait() == 3
                assert (await session.run(None, feeds))[0][0, 0] == 2
            print("done")

        uvloop.run(main())
        """,
        arguments=(made_model(tmp_path),),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
