"""The daemon's listener: accepted and refused clients, and that no client can block others."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import qnnbridge
from qnnbridge._daemon import connector as entering
from qnnbridge._daemon.connector import Unreachable, enter, program_name
from qnnbridge._daemon.discovery import Discovery, make_runtime_folder, write_discovery
from qnnbridge_daemon.listener import DIALOGUE_TIMEOUT_S, UNPROVEN_MAX, Listener
from qnnbridge_protocol.auth import CHALLENGE_BYTES, PROOF_BYTES, ClientIdentity, ClientSide
from qnnbridge_protocol.errors import HostCrashed, HostStartFailed
from tests import needs
from tests.daemon.daemons import GRACE_S, StandIn, new_discovery, open_listener
from tests.fakes.later import until

pytestmark = needs.posix

HALF_OPEN = 1000
BUSY_TRIES = 3
DESCRIPTORS = 4096


@pytest.fixture(autouse=True)
def short_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a short runtime folder: the raw sockets of this file do not shorten long paths as clients do."""
    with tempfile.TemporaryDirectory(prefix="endpoint-", dir="/tmp") as folder:
        monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", f"{folder}/run")
        yield


@pytest.fixture
def behind() -> StandIn:
    return StandIn()


@pytest.fixture
def endpoint(behind: StandIn) -> Iterator[tuple[Listener, Discovery, Path]]:
    with open_listener(behind.serve) as opened:
        yield opened


def open_connection(folder: Path) -> socket.socket:
    """Return a raw connection to the daemon that has sent nothing."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(folder / "daemon.sock"))
    except BaseException:
        connection.close()
        raise
    connection.settimeout(GRACE_S)
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """Return the data that the daemon sends until it closes the connection."""
    data = b""
    try:
        while piece := connection.recv(4096):
            data += piece
    except ConnectionResetError:
        pass
    return data


def test_an_authenticated_client_is_identified_by_pid_and_name(
    endpoint: tuple[Listener, Discovery, Path], behind: StandIn
) -> None:
    with qnnbridge.connect(start=False) as host:
        assert host.ping() >= 0
        assert host.is_daemon
        (entered,) = behind.entered
        assert (entered.pid, entered.name) == (os.getpid(), program_name())


def test_a_client_with_the_wrong_token_is_disconnected_without_a_reply(
    endpoint: tuple[Listener, Discovery, Path],
) -> None:
    listener, discovery, folder = endpoint
    with open_connection(folder) as connection:
        challenge = connection.recv(CHALLENGE_BYTES)
        connection.sendall(
            ClientSide(bytes(32), discovery.instance, ClientIdentity(1, "attacker")).prove(challenge)
        )
        assert rest_of(connection) == b""
    with qnnbridge.connect(start=False) as host:
        assert host.ping() >= 0
    assert listener.refused == 1


def test_connecting_to_the_endpoint_of_another_daemon_raises_an_error(
    endpoint: tuple[Listener, Discovery, Path],
) -> None:
    _, discovery, folder = endpoint
    write_discovery(folder, new_discovery(folder, instance=discovery.instance))
    with pytest.raises(HostStartFailed, match=r"authentication failed"):
        qnnbridge.connect(start=False)
    write_discovery(folder, new_discovery(folder))
    with pytest.raises(HostStartFailed, match="it is a different daemon"):
        qnnbridge.connect(start=False)


def test_a_replayed_proof_is_refused(endpoint: tuple[Listener, Discovery, Path], behind: StandIn) -> None:
    _, discovery, folder = endpoint
    with open_connection(folder) as connection:
        proof = ClientSide(discovery.token, discovery.instance, ClientIdentity(1, "good")).prove(
            connection.recv(CHALLENGE_BYTES)
        )
        connection.sendall(proof)
        assert connection.recv(1)
        until(lambda: bool(behind.entered))
    with open_connection(folder) as attacker:
        attacker.recv(CHALLENGE_BYTES)
        attacker.sendall(proof)
        assert rest_of(attacker) == b""
    assert [entered.name for entered in behind.entered] == ["good"]


@needs.linux
def test_another_user_with_the_token_is_refused(endpoint: tuple[Listener, Discovery, Path]) -> None:
    """The kernel reports the user.

    The folder's permissions would refuse the user earlier, so the test widens them.
    """
    from qnnbridge_os._posix_daemon_endpoint import check_peer

    check_peer(1000, 1000)
    with pytest.raises(PermissionError, match="user 1001, not to 1000"):
        check_peer(1001, 1000)
    if os.getuid() != 0:
        return  # only root can become a second user
    listener, discovery, folder = endpoint
    for path in (*list(folder.parents)[:-1], folder):
        path.chmod(path.stat().st_mode | 0o755)
    (folder / "daemon.sock").chmod(0o777)
    program = (
        "import os, socket, sys\n"
        "from qnnbridge_protocol.auth import CHALLENGE_BYTES, ClientSide, ClientIdentity\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "challenge = s.recv(CHALLENGE_BYTES)\n"
        "if challenge:\n"
        "    s.sendall(ClientSide(bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3]), ClientIdentity(1, 'x')).prove(challenge))\n"
        "print(len(challenge), len(s.recv(100)) if challenge else 0)\n"
    )
    socket_path, token, instance = str(folder / "daemon.sock"), discovery.token.hex(), discovery.instance.hex()
    done = subprocess.run(
        [sys.executable, "-c", program, socket_path, token, instance],
        capture_output=True, text=True, timeout=GRACE_S, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("0 0\n", 0), done.stderr
    assert listener.refused == 1


@needs.linux
def test_a_client_sends_nothing_to_a_daemon_of_another_user(
    endpoint: tuple[Listener, Discovery, Path], behind: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qnnbridge_os import _posix_daemon_endpoint

    real = _posix_daemon_endpoint._peer
    monkeypatch.setattr(_posix_daemon_endpoint, "_peer", lambda connection: (real(connection)[0], os.getuid() + 1))
    with pytest.raises(HostStartFailed, match="belongs to user"):
        qnnbridge.connect(start=False)
    assert behind.entered == []


def test_a_connection_during_the_close_of_the_endpoint_does_no_harm() -> None:
    """The accepting thread wakes and releases the endpoint while the closing thread still uses it."""
    from qnnbridge_os import _posix_daemon_endpoint

    folder = make_runtime_folder()
    gate = _posix_daemon_endpoint.DaemonEndpoint(folder, _posix_daemon_endpoint.make_endpoint(folder))
    released = threading.Event()

    def accept() -> None:
        while (stream := gate.accept()) is not None:
            stream.close()
        gate.release()
        released.set()

    class Name:
        """Return a descriptor path of the socket file, which is removed at this moment."""

        def unlink(self, *, missing_ok: bool) -> None:
            open_connection(folder).close()
            released.wait(0.3)
            (folder / "daemon.sock").unlink(missing_ok=missing_ok)

        def stat(self) -> os.stat_result:
            return (folder / "daemon.sock").stat()

    accepting = threading.Thread(target=accept)
    accepting.start()
    gate._path = Name()  # type: ignore[assignment]
    gate.close()
    gate.close()
    accepting.join(GRACE_S)
    assert released.is_set()


def test_a_thousand_half_open_connections_do_not_block_new_clients(
    endpoint: tuple[Listener, Discovery, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    from qnnbridge_daemon import listener

    monkeypatch.setattr(listener, "DIALOGUE_TIMEOUT_S", 3600.0)  # none of the connections may end by its timeout

    def waiting() -> int:
        return sum(thread.name == "qnnbridge admission" for thread in threading.enumerate())

    _, discovery, folder = endpoint
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, DESCRIPTORS)), hard))
    connections = []
    try:
        connections.extend(open_connection(folder) for _ in range(HALF_OPEN))
        for tries_left in reversed(range(BUSY_TRIES)):
            try:
                enter(discovery, folder, time.monotonic() + DIALOGUE_TIMEOUT_S).close()
                break
            except Unreachable:  # a busy machine may not have accepted all connections by then
                if not tries_left:
                    raise
        until(lambda: waiting() <= UNPROVEN_MAX)  # the other connections are being closed
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_oldest_silent_connection_is_closed_first(endpoint: tuple[Listener, Discovery, Path]) -> None:
    _, _, folder = endpoint
    connections = [open_connection(folder) for _ in range(UNPROVEN_MAX + 1)]
    try:
        assert len(rest_of(connections[0])) in (0, CHALLENGE_BYTES)  # followed by the end of the stream
        connections[-1].settimeout(GRACE_S)
        assert len(connections[-1].recv(CHALLENGE_BYTES)) == CHALLENGE_BYTES
    finally:
        for connection in connections:
            connection.close()


def test_an_incomplete_proof_times_out(
    endpoint: tuple[Listener, Discovery, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qnnbridge_daemon import listener

    monkeypatch.setattr(listener, "DIALOGUE_TIMEOUT_S", 0.2)
    listening, _, folder = endpoint
    said, visits = False, 0
    while not said:  # on a busy machine the timeout may expire before anything was sent
        visits += 1
        with open_connection(folder) as connection, contextlib.suppress(BrokenPipeError):
            connection.recv(CHALLENGE_BYTES)
            connection.sendall(bytes(PROOF_BYTES // 2))
            said = True
            assert rest_of(connection) == b""
    until(lambda: listening.refused == visits)


def test_connecting_to_a_daemon_that_does_not_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entering, "DIALOGUE_TIMEOUT_S", 0.2)
    folder = make_runtime_folder()
    write_discovery(folder, new_discovery(folder))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(folder / "daemon.sock"))
        silent.listen()
        with pytest.raises(HostStartFailed, match="did not answer at its endpoint"):
            qnnbridge.connect(start=False)


def test_a_daemon_that_is_ending_refuses_clients_with_that_reason(
    endpoint: tuple[Listener, Discovery, Path],
) -> None:
    listener, discovery, folder = endpoint
    listener._leaving = True
    with pytest.raises(Unreachable, match="is ending"):
        enter(discovery, folder, time.monotonic() + GRACE_S)


def test_closing_the_listener_disconnects_unauthenticated_clients_only(
    endpoint: tuple[Listener, Discovery, Path],
) -> None:
    listener, _, folder = endpoint
    with qnnbridge.connect(start=False) as host, open_connection(folder) as connection:
        connection.recv(CHALLENGE_BYTES)
        listener.close()
        assert rest_of(connection) == b""
        assert host.ping() >= 0
        assert not (folder / "daemon.sock").exists()


def test_the_socket_of_a_dead_daemon_does_not_prevent_a_new_listener(behind: StandIn) -> None:
    folder = make_runtime_folder()
    write_discovery(folder, new_discovery(folder))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "daemon.sock"))
    with pytest.raises(HostStartFailed, match="No daemon listens at the endpoint"):
        qnnbridge.connect(start=False)
    with open_listener(behind.serve), qnnbridge.connect(start=False) as host:
        assert host.ping() >= 0


def test_a_fork_opens_its_own_connection(endpoint: tuple[Listener, Discovery, Path], behind: StandIn) -> None:
    """The exit code reports the outcome in the child, whose copies of the pipes are closed."""
    host = qnnbridge.connect(start=False)
    process = host.supervisor.running
    assert process is not None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            host.ping()
            host.close()
            with qnnbridge.connect(start=False) as own:
                own.ping()
                code = 42
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 42
    assert host.ping() >= 0
    host.close()
    assert len(behind.entered) == 3


def test_closing_is_quick_and_leaks_no_descriptor(
    endpoint: tuple[Listener, Discovery, Path], behind: StandIn
) -> None:
    def once() -> None:
        with qnnbridge.connect(start=False) as host:
            host.ping()
            process = host.supervisor.running
            assert process is not None
        assert process.end_steps == ["goodbye"]  # does not wait for a process, since the daemon continues to run

    def descriptors() -> int:
        """Return the number of descriptors after both sides have closed the streams of the disconnected client."""
        for thread in threading.enumerate():
            if thread.name in ("qnnbridge admission", "qnnbridge-stderr"):
                thread.join(GRACE_S)
        return len(os.listdir("/proc/self/fd"))

    once()
    before = descriptors()
    for _ in range(5):
        once()
    assert descriptors() == before


def test_a_lost_connection_raises_an_error_and_is_opened_again(
    endpoint: tuple[Listener, Discovery, Path], behind: StandIn
) -> None:
    with qnnbridge.connect(start=False) as host:
        host.ping()
        process = host.supervisor.running
        assert process is not None
        process.kill("the test")
        with pytest.raises(HostCrashed, match="qnnbridge daemon") as caught:
            while True:
                host.ping()
        assert "suspects" not in caught.value.details
        assert caught.value.retry == "safe"
        assert host.ping() >= 0
    assert len(behind.entered) == 2
