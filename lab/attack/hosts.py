"""Run hostile hosts that reply with damaged frames: the application must get a result or a typed error in time."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.fakes.hosts import script
from tests.fuzz.mutations import damaged
from tests.unit.wire_streams import wire

import qnnbridge
from lab.attack.report import Report
from qnnbridge import errors
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.model_records import CacheReply, ModelIdentity
from qnnbridge_protocol.specs import NodeInfo, Placement, SessionInfo
from qnnbridge_protocol.values import Encoder

CALL_S = 4.0
GRACE_S = 3.0
# The hostile host, which does not parse requests: it writes one reply for each chunk of input, then waits.
PROGRAM = """
import os, sys
parts = [bytes.fromhex(line) for line in open(sys.argv[1]).read().split()]
for part in parts:
    if not os.read(0, 65536):
        break
    os.write(1, part)
while os.read(0, 65536):
    pass
"""


def attack(count: int, seed: int) -> Report:
    """Run `count` hosts. Each one damages one or two of its replies to HELLO, to `session.create` and to
    `session.run`."""
    report = Report("hostile hosts")
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            command = command_of(_answers(rng), Path(folder))
            begin = time.monotonic()
            outcome = use(command)
            report.count(outcome)
            seconds = time.monotonic() - begin
            if outcome.startswith("untyped"):
                report.finding(f"{seed} {number}: {outcome}")
            report.expect(seconds < 3 * CALL_S + GRACE_S, f"{seed} {number}: {seconds:.1f} s")
    return report


def _answers(rng: random.Random) -> list[bytes]:
    frames = answers()
    for at in rng.sample(range(len(frames)), rng.choice([1, 1, 2])):
        frames[at] = damaged(frames[at], rng)
    return frames


def answers(outputs: dict[str, Any] | None = None) -> list[bytes]:
    """Return valid replies to HELLO, `session.create` and `session.run`, the last one with the given `outputs`."""
    encoder = Encoder()
    described = [encoder.add(np.ones(3, np.float32))]
    node = NodeInfo("x", "tensor(float)", (3,))
    info = SessionInfo((node,), (NodeInfo("y", "tensor(float)", (3,)),), placement=Placement(qnn_nodes=1))
    created = {
        "session": 1,
        "info": info.to_wire(),
        "model": ModelIdentity("f" * 64, "m").to_wire(),
        "cache": CacheReply("off", "hostile").to_wire(),
        "blame": "f" * 64,
        "notices": [{"kind": "model", "text": "a notice"}],
    }
    last = {"outputs": described} if outputs is None else outputs
    return [
        wire(Frame(Kind.HELLO_OK, 0, Hello(features=frozenset({"phase", "cancel"})).to_wire())),
        wire(Frame(Kind.PHASE, 0, {"phase": "ready"})) + wire(Frame(Kind.REPLY, 1, created)),
        wire(Frame(Kind.REPLY, 2, last, tuple(encoder.buffers))),
    ]


def command_of(frames: list[bytes], folder: Path) -> list[str]:
    """Return the command line of a host that sends these replies."""
    program, told = folder / "host.py", folder / "answers"
    program.write_text(PROGRAM)
    told.write_text("\n".join(frame.hex() for frame in frames))
    return [sys.executable, "-I", str(program), str(told)]


def use(command: list[str]) -> str:
    try:
        with qnnbridge.Host(_command=command, start_timeout=CALL_S) as host:
            session = qnnbridge.InferenceSession(script(), host=host, timeout=CALL_S, retry=0)
            session.run(None, {"x": np.ones(3, np.float32)}, timeout=CALL_S, retry=0)
    except errors.BridgeError as error:
        return type(error).__name__
    except Exception as error:
        return f"untyped {type(error).__name__}: {error}"
    return "a result"
