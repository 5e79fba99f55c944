"""Start daemons for tests: a listener in threads of the test, or daemon processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

import qnnbridge
from qnnbridge._daemon.discovery import (
    Discovery,
    make_runtime_folder,
    read_discovery,
    runtime_folder,
    write_discovery,
)
from qnnbridge_daemon.listener import ClientEnds, Listener
from qnnbridge_os.daemon_endpoint import make_endpoint
from qnnbridge_os.descriptors import ByteReader, ByteWriter, blocking_write
from qnnbridge_protocol.auth import INSTANCE_BYTES, TOKEN_BYTES
from qnnbridge_protocol.connection import DAEMON_FEATURE, Connection, Hello, Role
from qnnbridge_protocol.errors import VersionMismatch
from qnnbridge_protocol.frames import Frame, Kind

# Timeout that only a defect reaches.
GRACE_S = 30.0

MODEL = str(Path(__file__).parents[1] / "models" / "mul_1.onnx")
CPU = ["CPUExecutionProvider"]


def new_discovery(folder: Path, **changes: Any) -> Discovery:
    fields: dict[str, Any] = {
        "endpoint": make_endpoint(folder),
        "instance": secrets.token_bytes(INSTANCE_BYTES),
        "token": secrets.token_bytes(TOKEN_BYTES),
        "pid": os.getpid(),
        "qnnbridge": qnnbridge.__version__,
    }
    return Discovery(**{**fields, **changes})


class StandIn:
    """A minimal daemon without a broker, which replies to HELLO and pings.

    It records its clients and closes the descriptors of each one after it has disconnected.
    """

    def __init__(self, version: str = qnnbridge.__version__, features: frozenset[str] = frozenset()) -> None:
        self.hello = Hello(features=features | {DAEMON_FEATURE}, qnnbridge=version, pid=os.getpid())
        self.entered: list[ClientEnds] = []

    def serve(self, entered: ClientEnds) -> None:
        self.entered.append(entered)
        connection = Connection(Role.HOST, self.hello)
        reader, writer = ByteReader(entered.in_fd), ByteWriter(blocking_write(entered.out_fd))
        try:
            while frames := reader.read_into(
                connection.get_buffer(), lambda n: connection.received(n) if n else []
            ) or ([] if connection.mid_frame else None):
                for frame in frames:
                    writer.write_all(self._answer(connection, frame))
                    if frame.kind is Kind.GOODBYE:
                        return
        except OSError:
            pass  # the client is gone
        finally:
            os.close(entered.in_fd)
            os.close(entered.out_fd)

    @staticmethod
    def _answer(connection: Connection, frame: Frame) -> list[memoryview]:
        if frame.kind is Kind.HELLO:
            try:
                return connection.accept_hello()
            except VersionMismatch as error:
                return connection.refuse_hello(error.to_wire())
        if frame.kind is Kind.PING:
            return connection.send(Frame(Kind.PONG, frame.request_id, {}))
        return connection.send(Frame(Kind.GOODBYE, 0, {}))


@contextlib.contextmanager
def open_listener(serve: Callable[[ClientEnds], None]) -> Iterator[tuple[Listener, Discovery, Path]]:
    """Open a listener in the runtime folder of this test, with a discovery file for clients."""
    folder = make_runtime_folder()
    discovery = new_discovery(folder)
    before = set(threading.enumerate())
    listener = Listener(folder, discovery.endpoint, discovery.token, discovery.instance, serve)
    write_discovery(folder, discovery)
    try:
        yield listener, discovery, folder
    finally:
        listener.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(GRACE_S)


# --- daemon processes ----------------------------------------------------------------------------------------


def daemons_alive() -> list[psutil.Process]:
    """Return the running daemons of this test's runtime folder."""
    return [p for p in psutil.process_iter() if _is_ours(p)]


def _is_ours(process: psutil.Process) -> bool:
    try:
        ours = process.environ().get("QNNBRIDGE_RUNTIME_DIR") == str(runtime_folder())
        return ours and "qnnbridge_daemon" in " ".join(process.cmdline()) and process.status() != "zombie"
    except (psutil.Error, OSError):
        return False


def daemon_process() -> psutil.Process:
    """Return the daemon of the discovery file in the runtime folder."""
    found = read_discovery(runtime_folder())
    assert found is not None
    return psutil.Process(found.pid)


def stop_daemon() -> None:
    """Stop the daemon as a client does, if one runs, and wait until it has ended."""
    alive = daemons_alive()
    if alive:
        with contextlib.suppress(qnnbridge.BridgeError), qnnbridge.connect(start=False) as host:
            host.call({"op": "daemon.stop", "drain_s": 0.0}, timeout=GRACE_S)
    _, left = psutil.wait_procs(alive, timeout=GRACE_S)
    for process in left:
        process.kill()
    assert not left, "the daemon did not leave"


def program(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a Python program with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def told(process: subprocess.Popen[str]) -> list[str]:
    """Wait for the successful end of a program and return the lines that it printed."""
    out, err = process.communicate(timeout=2 * GRACE_S)
    assert process.returncode == 0, f"{out}\n{err}"
    return out.splitlines()
