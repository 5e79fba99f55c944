"""Child processes of the baselines: each receives the bytes of an array, builds the array, and sends it back.

``python -m lab.bench.children KIND ADDRESS SIZE``
"""

from __future__ import annotations

import base64
import json
import math
import mmap
import os
import sys
from typing import Any

import numpy as np


def raw(address: str, size: int) -> None:
    """Echo arrays with plain os.read and os.write."""
    array = np.empty(size, np.uint8)
    view = array.data
    while _receive(view):
        _send(view)


def _receive(view: memoryview) -> bool:
    if sys.platform == "win32":
        raise OSError("Windows has no readv")
    got = 0
    while got < view.nbytes:
        count = os.readv(0, [view[got:]])
        if not count:
            return False
        got += count
    return True


def _send(view: memoryview) -> None:
    done = 0
    while done < view.nbytes:
        done += os.write(1, view[done:])


def floor(address: str, size: int) -> None:
    """Run a bound model once for each received byte: the fastest possible call into another process.

    Args:
        address: the descriptor of the shared memory with input and output, a colon, and the model's file.
    """
    memory, _, model = address.partition(":")
    session, _, y, binding = _bound(model, np.frombuffer(mmap.mmap(int(memory), 0), np.float32), size)
    os.write(1, b"%8d" % y.nbytes)
    while os.read(0, 1):
        session.run_with_iobinding(binding)
        os.write(1, b"x")


def piped(model: str, size: int) -> None:
    """Run the model on arrays that are received and sent as in `raw`."""
    session, x, y, binding = _bound(model, np.empty(size // 2, np.float32), size)
    source, target = memoryview(x).cast("B"), memoryview(y).cast("B")
    while _receive(source):
        session.run_with_iobinding(binding)
        _send(target)


def _bound(model: str, memory: Any, size: int) -> tuple[Any, Any, Any, Any]:
    """Return a session, its input and output arrays, which are adjacent in `memory`, and their IOBinding."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    shape = [size // 4 if isinstance(dim, str) else dim for dim in session.get_inputs()[0].shape]
    x = memory[: math.prod(shape)].reshape(shape)
    result = session.run(None, {"x": x})[0]
    y = memory[x.size : x.size + result.size].reshape(result.shape)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    return session, x, y, binding


def json_lines(address: str, size: int) -> None:
    for line in sys.stdin.buffer:
        array = np.frombuffer(base64.b64decode(json.loads(line)["data"]), np.uint8)
        answer = json.dumps({"data": base64.b64encode(array.tobytes()).decode("ascii")})
        sys.stdout.buffer.write(answer.encode() + b"\n")
        sys.stdout.buffer.flush()


def zeromq(address: str, size: int) -> None:
    import zmq

    socket = zmq.Context().socket(zmq.REP)
    socket.bind(address)
    print("up", flush=True)
    while True:
        array = np.frombuffer(socket.recv(copy=False).buffer, np.uint8)
        socket.send(array.copy(), copy=False)


def grpc(address: str, size: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    def echo(data: bytes, context: Any) -> bytes:
        return np.frombuffer(data, np.uint8).tobytes()

    server = grpc.server(ThreadPoolExecutor(1), options=GRPC_OPTIONS)
    handlers = {"echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    server.add_insecure_port(address)
    server.start()
    print("up", flush=True)
    sys.stdin.read()
    server.stop(None)


GRPC_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def pyro(address: str, size: int) -> None:
    import Pyro5.api

    Pyro5.config.SERIALIZER = "msgpack"

    @Pyro5.api.expose
    class Echo:
        def echo(self, data: bytes) -> bytes:
            return np.frombuffer(data, np.uint8).tobytes()

    daemon = Pyro5.api.Daemon(unixsocket=address)
    print(daemon.register(Echo, "echo"), flush=True)
    daemon.requestLoop()


KINDS = {"raw": raw, "piped": piped, "floor": floor, "json": json_lines, "zmq": zeromq, "grpc": grpc, "pyro": pyro}


def connection(end: Any) -> None:
    """Echo arrays over a multiprocessing.Pipe; multiprocessing starts this function."""
    try:
        while True:
            end.send(end.recv().copy())
    except (EOFError, OSError, KeyboardInterrupt):
        pass


def pooled(array: Any) -> Any:
    """Return a copy of the array; called by ProcessPoolExecutor."""
    return array.copy()


if __name__ == "__main__":
    KINDS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
