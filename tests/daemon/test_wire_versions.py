"""A release with the next wire version and this one: mismatches are reported, and idle daemons are replaced.

The other release is a copy of the packages with the next version of the wire.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import qnnbridge
from qnnbridge_protocol.frames import WIRE_VERSION
from tests import needs
from tests.daemon.brokers import until
from tests.daemon.daemons import GRACE_S, daemon_process, daemons_alive, program, told

pytestmark = [needs.posix, pytest.mark.timeout(300)]

TOP = Path(__file__).parents[2]
PACKAGES = (
    "protocol/qnnbridge_protocol",
    "protocol/qnnbridge_os",
    "host_arm64/qnnbridge_host",
    "bridge_x86/qnnbridge",
    "daemon/qnnbridge_daemon",
    "tools/qnnbridge_tools",
)
RELEASE = "0.{}.0".format(int(qnnbridge.__version__.split(".")[1]) + 1)
# Fewer than two connections per second: a refused host needs a second on a busy machine.
AT_ONCE_S = 10.0


@pytest.fixture(scope="session")
def newer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the PYTHONPATH of the next release."""
    top = tmp_path_factory.mktemp("newer")
    for package in PACKAGES:
        shutil.copytree(TOP / package, top / package, ignore=shutil.ignore_patterns("__pycache__"))
    replace(
        top / "protocol/qnnbridge_protocol/frames.py",
        f"WIRE_VERSION = {WIRE_VERSION}",
        f"WIRE_VERSION = {WIRE_VERSION + 1}",
    )
    replace(top / "protocol/qnnbridge_protocol/__init__.py", qnnbridge.__version__, RELEASE)
    return os.pathsep.join(str((top / package).parent) for package in PACKAGES)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def older_path() -> str:
    return os.pathsep.join(str((TOP / package).parent) for package in PACKAGES)


@pytest.fixture(params=["newer application", "newer host"])
def sides(request: pytest.FixtureRequest, newer: str) -> tuple[str, str]:
    """Return the PYTHONPATH of the application and of the other side."""
    return (newer, older_path()) if request.param == "newer application" else (older_path(), newer)


OUTCOME = """
import json, time
def outcome(call):
    begin = time.monotonic()
    try:
        call()
    except qnnbridge.BridgeError as error:
        result = {"class": type(error).__name__, "text": str(error), "older": error.details.get("older")}
    else:
        result = {"class": None}
    print(json.dumps({**result, "seconds": time.monotonic() - begin}), flush=True)
"""

PRIVATE = (
    """
import os, sys, qnnbridge
"""
    + OUTCOME
    + """
command = [sys.executable, "-u", "-X", "utf8", "-m", "qnnbridge_host", "--parent", str(os.getpid())]
with qnnbridge.Host(env={"PYTHONPATH": sys.argv[1]}, _command=command) as host:
    outcome(host.start)
    outcome(lambda: qnnbridge.InferenceSession(b"any", host=host))
"""
)

BY_DAEMON = (
    """
import sys, qnnbridge
"""
    + OUTCOME
    + """
outcome(lambda: qnnbridge.connect(start=sys.argv[1] == "start").close())
"""
)

ENDS_IT = """
import qnnbridge
with qnnbridge.connect(start=False) as host:
    print(host.supervisor.running.peer.qnnbridge)
    host.call({"op": "daemon.stop", "drain_s": 0.0})
"""


def application(code: str, path: str, *arguments: str) -> list[dict[str, Any]]:
    lines = told(program(code, *arguments, env={**os.environ, "PYTHONPATH": path}))
    return [json.loads(line) for line in lines]


def check(outcome: dict[str, Any], older: str, upgrade: str) -> None:
    assert outcome["class"] == "VersionMismatch", outcome
    assert outcome["older"] == older
    assert f"Upgrade the {older}" in outcome["text"]
    assert upgrade in outcome["text"]
    for part in (
        qnnbridge.__version__,
        RELEASE,
        f"wire version {WIRE_VERSION}",
        f"wire version {WIRE_VERSION + 1}",
    ):
        assert part in outcome["text"]
    assert outcome["seconds"] < AT_ONCE_S


def test_a_private_host_with_another_wire_version_is_reported_immediately(
    sides: tuple[str, str], newer: str
) -> None:
    older = "host" if sides[0] == newer else "application side"
    outcomes = application(PRIVATE, sides[0], sides[1])
    assert len(outcomes) == 2
    for outcome in outcomes:
        check(outcome, older, "-m pip install --upgrade ")


def start_daemon(path: str) -> psutil.Process:
    """Start a daemon that continues to run in the background; return its process."""
    code = "import qnnbridge; qnnbridge.connect().close()"
    told(program(code, env={**os.environ, "PYTHONPATH": path}))
    return daemon_process()


@pytest.fixture
def daemons(newer: str) -> Iterator[None]:
    yield
    for path in (newer, older_path()):
        if daemons_alive():
            subprocess.run(
                [sys.executable, "-c", ENDS_IT], env={**os.environ, "PYTHONPATH": path}, capture_output=True
            )
    psutil.wait_procs(daemons_alive(), timeout=GRACE_S)
    left = daemons_alive()
    for process in left:
        process.kill()
    assert not left


def test_a_newer_daemon_is_reported_immediately_to_an_older_application_and_keeps_running(
    newer: str, daemons: None
) -> None:
    daemon = start_daemon(newer)
    for how in ("start", "find"):
        (outcome,) = application(BY_DAEMON, older_path(), how)
        check(outcome, "application side", "-m pip install --upgrade ")
    assert daemon.is_running()
    assert daemon_process() == daemon


def test_an_idle_older_daemon_is_replaced_by_that_of_a_newer_application(newer: str, daemons: None) -> None:
    daemon = start_daemon(older_path())
    (found,) = application(BY_DAEMON, newer, "find")
    check(found, "daemon", "qnnbridge host restart --daemon")
    assert daemon.is_running(), "an application that starts none has ended the only one"
    (outcome,) = application(BY_DAEMON, newer, "start")
    assert outcome["class"] is None, outcome
    assert daemons_alive() == [daemon_process()] != [daemon]
    (version,) = told(program(ENDS_IT, env={**os.environ, "PYTHONPATH": newer}))
    assert version == RELEASE


def test_many_newer_applications_replace_an_older_daemon_only_once(newer: str, daemons: None) -> None:
    daemon = start_daemon(older_path())
    environment = {**os.environ, "PYTHONPATH": newer}
    together = [program(BY_DAEMON, "start", env=environment) for _ in range(4)]
    outcomes = [json.loads(line) for process in together for line in told(process)]
    assert [outcome["class"] for outcome in outcomes] == [None] * 4, outcomes
    until(lambda: len(daemons_alive()) == 1)  # the older daemon may still be ending
    assert daemons_alive() == [daemon_process()] != [daemon]


def test_an_older_daemon_with_clients_is_not_replaced(newer: str, daemons: None) -> None:
    with qnnbridge.connect() as host:
        daemon = daemon_process()
        (outcome,) = application(BY_DAEMON, newer, "start")
        check(outcome, "daemon", "qnnbridge host restart --daemon")
        assert host.ping() >= 0
        assert daemon_process() == daemon


@pytest.mark.parametrize("newer_command", [True, False])
def test_the_command_ends_a_daemon_of_any_wire_version(newer_command: bool, newer: str, daemons: None) -> None:
    """The fix in the error message must work, also while applications are connected."""
    command, other = (newer, older_path()) if newer_command else (older_path(), newer)
    daemon = start_daemon(other)
    holds = program(
        "import sys, qnnbridge\nwith qnnbridge.connect() as host:\n print('in', flush=True); sys.stdin.readline()",
        env={**os.environ, "PYTHONPATH": other},
    )
    try:
        assert holds.stdout is not None
        assert holds.stdout.readline() == "in\n"
        end_by_command(command, daemon)
    finally:
        told(holds)


def end_by_command(path: str, daemon: psutil.Process) -> None:
    stop = [sys.executable, "-m", "qnnbridge_tools", "host", "stop"]
    done = subprocess.run(
        stop, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=2 * GRACE_S
    )
    assert done.returncode == 0, done.stderr
    assert f"The daemon, pid {daemon.pid}, has ended" in done.stdout
    until(lambda: daemon not in daemons_alive())


def test_the_command_restarts_an_older_daemon_as_a_newer_one(newer: str, daemons: None) -> None:
    daemon = start_daemon(older_path())
    restart = [sys.executable, "-m", "qnnbridge_tools", "host", "restart", "--daemon"]
    done = subprocess.run(
        restart, env={**os.environ, "PYTHONPATH": newer}, capture_output=True, text=True, timeout=3 * GRACE_S
    )
    assert done.returncode == 0, done.stderr
    assert daemons_alive() == [daemon_process()] != [daemon]
    (version,) = told(program(ENDS_IT, env={**os.environ, "PYTHONPATH": newer}))
    assert version == RELEASE
