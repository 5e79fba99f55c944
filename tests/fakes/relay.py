"""A host that crashes at a given step of the protocol.

``relay.py FILE SIDE:KIND:WHERE[:silence] [ARGUMENTS of fake_host.py]`` starts the scripted host and forwards the
bytes in both directions. SIDE is the sender of the frame, ``client`` or ``host``. KIND is the frame's kind; a ``+``
after it requires a body. WHERE is the part of that frame that is still forwarded: ``prefix``, ``body`` (half of the
body), ``whole``. Then both processes are killed with SIGKILL; with ``silence`` they continue, but nothing more is
forwarded. The crash happens only once, while FILE does not exist.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

from qnnbridge_protocol.frames import PREFIX_BYTES, Kind, aligned, parse_prefix
from qnnbridge_protocol.limits import Limits

CHUNK_BYTES = 65536


def main() -> None:
    once, step, *arguments = sys.argv[1:]
    fake_host = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_host.py")
    command = [sys.executable, "-I", "-u", "-X", "utf8", "-X", "faulthandler", fake_host, *arguments]
    if os.path.exists(once):
        os.execv(command[0], command)
    host = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert host.stdin is not None
    assert host.stdout is not None
    side, kind, where, *silence = step.split(":")

    def die() -> None:
        os.close(os.open(once, os.O_CREAT))
        if silence:
            host.wait()
        host.kill()
        os.kill(os.getpid(), signal.SIGKILL)

    # Forward nothing from the host after the first byte of the fatal frame: otherwise a quick host could reply to
    # the frame before it is killed.
    passage = threading.Lock()

    def relay(name: str, source: int, target: int) -> None:
        frames = Frames(source, target, passage, own=name == side)
        while frames.next(kind if name == side else None, where):
            pass
        if frames.struck:
            die()
        os._exit(0)

    threading.Thread(target=relay, args=("host", host.stdout.fileno(), 1)).start()
    relay("client", 0, host.stdin.fileno())


class Frames:
    """Forwarder of frames. struck: the fatal frame has arrived, and this direction keeps the lock `passage`."""

    def __init__(self, source: int, target: int, passage: threading.Lock, *, own: bool) -> None:
        self._source = source
        self._target = target
        self._passage = passage
        self._own = own
        self.struck = False

    def next(self, kind: str | None, where: str) -> bool:
        """Forward one frame; return False at the end of the input or after the fatal frame."""
        raw = self._read(PREFIX_BYTES)
        if len(raw) < PREFIX_BYTES:
            return False
        prefix = parse_prefix(memoryview(raw), Limits())
        head = prefix.header_bytes
        if prefix.buffer_count:
            head = aligned(PREFIX_BYTES + head) - PREFIX_BYTES
        self.struck = kind is not None and prefix.kind is Kind[kind.rstrip("+")]
        if kind is not None and kind.endswith("+") and not prefix.body_bytes:
            self.struck = False
        if self.struck:
            self._passage.acquire()
        self._write(raw)
        if self.struck and where == "prefix":
            return False
        self._copy(head)
        if self.struck and where == "body":
            self._copy(prefix.body_bytes // 2)
            return False
        self._copy(prefix.body_bytes)
        return not self.struck

    def _copy(self, count: int) -> None:
        while count:
            data = os.read(self._source, min(count, CHUNK_BYTES))
            if not data:
                os._exit(0)
            self._write(data)
            count -= len(data)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (more := os.read(self._source, count - len(data))):
            data += more
        return data

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with contextlib.nullcontext() if self._own else self._passage:
            while view:
                view = view[os.write(self._target, view) :]


if __name__ == "__main__":
    main()
