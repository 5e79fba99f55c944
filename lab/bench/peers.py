"""Alternatives to the bridge, each with a running child process that echoes an array.

`open_peers` opens the alternatives of the standard library and the installed ones of the extra ``[bench]``.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import importlib.util
import json
import mmap
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lab.bench import children

ROOT = Path(__file__).parents[2]
PIPE_BYTES = 1024 * 1024
# F_SETPIPE_SZ, which is missing in some versions of Python's fcntl.
PIPE_SIZE_COMMAND = 1031


class Peer(NamedTuple):
    name: str
    call: Callable[[], Any]
    pid: int


@contextlib.contextmanager
def open_peers(folder: Path, size: int, names: tuple[str, ...] | None = None) -> Iterator[list[Peer]]:
    """Open the available peers, warm them up, and check that they return the array unchanged."""
    sent = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    makers: dict[str, Callable[..., Peer | None]] = {
        "raw pipe": _raw,
        "multiprocessing.Pipe": _connection,
        "ProcessPoolExecutor": _pool,
        "JSON and base64": _json,
        "ZeroMQ": _zeromq,
        "gRPC": _grpc,
        "Pyro5": _pyro,
    }
    with contextlib.ExitStack() as stack:
        peers = []
        for name, make in makers.items():
            if names is not None and name not in names:
                continue
            peer = make(stack, folder, sent)
            if peer is None:
                continue
            back = np.frombuffer(memoryview(np.asarray(peer.call()).data).cast("B"), np.uint8)
            assert np.array_equal(back, sent), peer.name
            peers.append(peer)
        yield peers


def _child(
    stack: contextlib.ExitStack, kind: str, address: str, size: int, fds: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-m", "lab.bench.children", kind, address, str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        bufsize=0,
        pass_fds=fds,
    )

    def end() -> None:
        child.kill()
        child.communicate()

    stack.callback(end)
    return child


def _raw(stack: contextlib.ExitStack, folder: Path, sent: Any) -> Peer:
    return _by_pipe(stack, "raw pipe", _child(stack, "raw", "-", sent.nbytes), sent)


def _by_pipe(stack: contextlib.ExitStack, name: str, child: subprocess.Popen[bytes], sent: Any) -> Peer:
    """Return a peer that sends the array through a pipe and receives the same number of bytes."""
    if sys.platform == "win32":
        raise OSError("Windows has neither fcntl nor readv")
    assert child.stdin is not None
    assert child.stdout is not None
    to, come = child.stdin.fileno(), child.stdout.fileno()
    for fd in (to, come):
        fcntl.fcntl(fd, PIPE_SIZE_COMMAND, PIPE_BYTES)
    view = memoryview(sent)
    size = sent.nbytes

    def call() -> Any:
        done = 0
        while done < size:
            done += os.write(to, view[done:])
        result = np.empty(size, np.uint8)
        target = result.data
        got = 0
        while got < size:
            got += os.readv(come, [target[got:]])
        return result

    return Peer(name, call, child.pid)


@contextlib.contextmanager
def open_floors(model: Path, x: Any) -> Iterator[list[Peer]]:
    """Start the floors: processes that run a model with the least possible overhead on this machine.

    floor: the arrays are in shared memory; send one byte, run the model, receive one byte. floor with copies: also
    copy the input to and the output from shared memory. floor by pipe: send input and output through pipes.
    """
    if sys.platform == "win32":
        raise OSError("Windows has no memfd_create")
    with contextlib.ExitStack() as stack:
        fd = os.memfd_create("bench")
        stack.callback(os.close, fd)
        os.ftruncate(fd, 2 * x.nbytes)
        memory = np.frombuffer(mmap.mmap(fd, 0), np.float32)
        child = _child(stack, "floor", f"{fd}:{model}", x.nbytes, (fd,))
        assert child.stdin is not None
        assert child.stdout is not None
        to, come = child.stdin.fileno(), child.stdout.fileno()
        result = memory[x.size :][: int(os.read(come, 8)) // 4]
        source, target = x.reshape(-1), memory[: x.size]

        def call() -> Any:
            os.write(to, b"x")
            return os.read(come, 1)

        def copying() -> Any:
            np.copyto(target, source)
            os.write(to, b"x")
            os.read(come, 1)
            return result.copy()

        copying()
        peers = [Peer("floor", call, child.pid), Peer("floor with copies", copying, child.pid)]
        if result.nbytes == x.nbytes:
            piped = _child(stack, "piped", str(model), x.nbytes)
            peers.append(_by_pipe(stack, "floor by pipe", piped, x.view(np.uint8)))
            peers[-1].call()
        yield peers


def _json(stack: contextlib.ExitStack, folder: Path, sent: Any) -> Peer:
    child = _child(stack, "json", "-", sent.nbytes)
    assert child.stdin is not None
    assert child.stdout is not None
    to = child.stdin
    come = stack.enter_context(os.fdopen(os.dup(child.stdout.fileno()), "rb"))

    def call() -> Any:
        line = json.dumps({"data": base64.b64encode(sent.tobytes()).decode("ascii")}).encode() + b"\n"
        view = memoryview(line)
        while view:
            view = view[to.write(view) :]
        return np.frombuffer(base64.b64decode(json.loads(come.readline())["data"]), np.uint8)

    return Peer("JSON and base64", call, child.pid)


def _connection(stack: contextlib.ExitStack, folder: Path, sent: Any) -> Peer:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=children.connection, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    stack.callback(process.join)
    stack.callback(ours.close)

    def call() -> Any:
        ours.send(sent)
        return ours.recv()

    assert process.pid is not None
    return Peer("multiprocessing.Pipe", call, process.pid)


def _pool(stack: contextlib.ExitStack, folder: Path, sent: Any) -> Peer:
    from concurrent.futures import ProcessPoolExecutor

    pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")))
    pid = pool.submit(os.getpid).result()
    return Peer("ProcessPoolExecutor", lambda: pool.submit(children.pooled, sent).result(), pid)


def _zeromq(stack: contextlib.ExitStack, folder: Path, sent: Any) -> Peer | None:
    if importlib.util.find_spec("zmq") is None:
        return None
    import zmq

    address = f"ipc://{folder}/zmq"
    child = _child(stack, "zmq", address, sent.nbytes)
    assert child.stdout is not None
    child.stdout.readline()
    context = zmq.Context()
    stack.callback(lambda: context.destroy(linger=0))
    socket = context.socket(zmq.REQ)
    socket.connect(address)

    def call() -> Any:
        socket.send(sent, copy=False)
        return np.frombuffer(socket.recv(copy=False).buffer, np.uint8)

    return Peer("ZeroMQ", call, child.pid)


def _grpc(stack: contextlib.ExitStack, folder: Path, sent: Any) -> Peer | None:
    if importlib.util.find_spec("grpc") is None:
        return None
    import grpc

    address = f"unix:{folder}/grpc"
    child = _child(stack, "grpc", address, sent.nbytes)
    assert child.stdout is not None
    child.stdout.readline()
    channel = stack.enter_context(grpc.insecure_channel(address, options=children.GRPC_OPTIONS))
    echo = channel.unary_unary("/bench/echo")
    return Peer("gRPC", lambda: np.frombuffer(echo(sent.tobytes()), np.uint8), child.pid)


def _pyro(stack: contextlib.ExitStack, folder: Path, sent: Any) -> Peer | None:
    if importlib.util.find_spec("Pyro5") is None:
        return None
    import Pyro5.api

    Pyro5.config.SERIALIZER = "msgpack"
    child = _child(stack, "pyro", f"{folder}/pyro", sent.nbytes)
    assert child.stdout is not None
    address = _line(child.stdout)
    proxy = stack.enter_context(Pyro5.api.Proxy(address))
    return Peer("Pyro5", lambda: np.frombuffer(proxy.echo(sent.tobytes()), np.uint8), child.pid)


def _line(stream: Any) -> str:
    text = b""
    while not text.endswith(b"\n"):
        text += stream.read(1)
    return text.decode().strip()
