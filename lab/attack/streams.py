"""Send damaged byte streams to running hosts. Each host must exit with a documented code and at most one
message."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tests.fakes.hosts import FAKE_HOST, script
from tests.fuzz.mutations import LEAVES, NUMBERS, damaged
from tests.unit.wire_streams import wire

from lab.attack.report import Report
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.values import Encoder

# A host that still runs this many seconds after the end of its input counts as hanging.
END_TIMEOUT_S = 20.0
EXIT_OK, EXIT_PROTOCOL = 0, 3
MAX_FRAMES = 6
# Number of hosts that run at the same time. It may exceed the number of cores, because the hosts mostly wait.
HOSTS = 4
HELLO_TIMEOUT_S = 3.0
# Seconds without output after which the host has usually sent all its replies.
SILENCE_S = 0.3
REAL_HOST = ("-m", "qnnbridge_host")


def attack(count: int, seed: int, *, real: bool = False) -> Report:
    """Send `count` streams, each to a new host, which uses the scripted engine, or ONNX Runtime if `real` is
    set."""
    report = Report("streams")
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, ThreadPoolExecutor(HOSTS) as pool:

        def one(number: int) -> None:
            rng = random.Random(f"{seed} {number}")
            report.count("streams")
            complaint = serve(conversation(rng, folder), report, real=real, folder=folder)
            if complaint:
                report.finding(f"stream {seed} {number}: {complaint}")

        list(pool.map(one, range(count)))
    return report


def conversation(rng: random.Random, folder: str) -> list[bytes]:
    """Return the frames of a connection (HELLO, random requests, usually GOODBYE), of which up to two are
    damaged."""
    frames = [_hello(rng)]
    frames += [_request(rng, number, folder) for number in range(1, rng.randint(2, MAX_FRAMES + 1))]
    if rng.random() < 0.7:
        frames.append(wire(Frame(Kind.GOODBYE, 0, {})))
    # Damage the first frame less often: the host ignores all frames after a refused HELLO.
    places = range(rng.random() > 0.2, len(frames))
    for at in rng.sample(places, min(len(places), rng.choice([0, 1, 1, 1, 2]))):
        frames[at] = damaged(frames[at], rng)
    if rng.random() < 0.1:
        frames[-1] = frames[-1][: rng.randrange(len(frames[-1]))]
    return frames


def _hello(rng: random.Random) -> bytes:
    hello = Hello(pid=os.getpid()).to_wire()
    if rng.random() < 0.3:
        limits: dict[str, Any] = hello["limits"]
        for name in rng.sample(sorted(limits), rng.randint(1, len(limits))):
            limits[name] = rng.choice([rng.choice(NUMBERS), rng.randint(1, 5000), rng.choice(LEAVES)])
    return wire(Frame(Kind.HELLO, 0, hello))


def _request(rng: random.Random, number: int, folder: str) -> bytes:
    kind = rng.random()
    if kind < 0.08:
        return wire(Frame(Kind.PING, number, {}))
    if kind < 0.16:
        return wire(Frame(Kind.CANCEL, number, {"target": rng.randint(0, number)}))
    header, buffers = rng.choice(_MAKERS)(rng, folder)
    return wire(Frame(Kind.REQUEST, number, header, buffers))


def _spec(rng: random.Random) -> dict[str, Any]:
    return {
        "model_path": rng.choice([None, None, None, "/nowhere/model.onnx", os.devnull, "/proc/self/mem", ""]),
        "providers": [{"name": "QNNExecutionProvider", "options": {"soc_model": "60"}}],
        "fallback": "error",
        "options": {"log_severity_level": 2},
        "config_entries": {"session.disable_prepacking": "1"},
        "free_dimensions_by_name": {"N": 1},
        "initializers": [],
    }


def _cache(folder: str) -> dict[str, Any]:
    return {"folder": os.path.join(folder, "cache"), "wanted": None, "enabled": True}


def _create(rng: random.Random, folder: str) -> tuple[dict[str, Any], tuple[Any, ...]]:
    described: list[Any] = []
    encoder = Encoder()
    spec = _spec(rng)
    if rng.random() < 0.3:
        spec["initializers"] = ["W"]
        described = [encoder.add(np.ones((1, 2), np.float32))]
    header = {"op": "session.create", "spec": spec, "initializers": described, "folder": folder, "budget_s": 9.0}
    if rng.random() < 0.6:
        header["cache"] = _cache(folder)
    if rng.random() < 0.3:
        header |= {"quarantined": ["0" * 64], "dynamic": {"ep.dynamic.workload_type": "Default"}, "seed": 4}
        header |= {"invalid_entries": [{"key": "k", "id": "i", "kind": "crashed", "reason": "died"}]}
    model = script(scale=2) if rng.random() < 0.8 else rng.randbytes(rng.choice([0, 1, 60]))
    return header, (*encoder.buffers, model)


def _run(rng: random.Random, _folder: str) -> tuple[dict[str, Any], tuple[Any, ...]]:
    encoder = Encoder()
    inputs = [["x", encoder.add(np.ones(rng.choice([0, 3, 500]), np.float32))]]
    header = {"op": "session.run", "session": rng.randint(1, 2), "inputs": inputs, "outputs": ["y"]}
    if rng.random() < 0.3:
        header["options"] = {"options": {"logid": "a"}, "config_entries": {"qnn.perf_mode": "burst"}}
    return header, tuple(encoder.buffers)


def _compile(rng: random.Random, folder: str) -> tuple[dict[str, Any], tuple[Any, ...]]:
    output = os.path.join(folder, "out.onnx")
    job = {"spec": _spec(rng), "embed": False, "tag": None, "output": output, "initializers": []}
    header = {"op": "model.compile", "jobs": [job], "folder": folder, "overwrite": True, "budget_s": 5.0}
    # The model is invalid, so nothing is compiled: the attack targets the parser of requests.
    return header, (b"no model",)


def _small(rng: random.Random, folder: str) -> tuple[dict[str, Any], tuple[Any, ...]]:
    session = rng.randint(0, 2)
    return rng.choice(
        [
            {"op": "host.info"},
            {"op": "host.stats"},
            {"op": "no.such"},
            {"op": "session.close", "session": session},
            {"op": "session.assignment", "session": session},
            {"op": "session.end_profiling", "session": session},
            {"op": "session.set_ep_dynamic_options", "session": session, "options": {"a": "b"}},
            {"op": "model.identify", "path": "/nowhere", "folder": folder, "cache": _cache(folder)},
            {"op": "slab.attach", "slab": 1, "size": 4096, "host_writes": True, "where": {"pid": 1, "fd": 3}},
            {"op": "slab.release", "slab": 1},
            {"op": "channel.open", "channel": 1, "slot": 0, "read": {"pid": 1, "fd": 5}, "write": {"fd": 6}},
            {"op": "object.create", "kind": "sequence", "arguments": []},
            {"op": "object.call", "object": 1, "method": "run", "arguments": []},
            {"op": "object.release", "object": 1},
        ]
    ), ()


_MAKERS = (_create, _create, _run, _run, _compile, _small, _small)


def serve(frames: list[bytes], report: Report, *, real: bool, folder: str) -> str:
    """Send the stream to one host. Return what is wrong with the host's exit code or output, or ''."""
    program = REAL_HOST if real else (FAKE_HOST,)
    command = [
        sys.executable,
        "-I",
        "-u",
        "-X",
        "utf8",
        "-X",
        "faulthandler",
        *program,
        "--parent",
        str(os.getpid()),
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=os.environ | {"QNNBRIDGE_CACHE_DIR": str(Path(folder, "cache"))},
    )
    out, said = _talk(process, frames)
    code, words = process.returncode, said.decode(errors="replace")
    report.count(f"exit code {code}")
    if "Traceback" in words or "Fatal" in words:
        return f"exit code {code}\n{words}"
    if code not in (EXIT_OK, EXIT_PROTOCOL):
        return f"exit code {code}\n{words}"
    sentences = [line for line in words.splitlines() if line.startswith("qnnbridge host: ")]
    if len(sentences) > 1 or (code == EXIT_PROTOCOL and not (sentences or _refused(out))):
        return f"exit code {code} with {len(sentences)} sentences\n{words}"
    return ""


def _talk(process: subprocess.Popen[bytes], frames: list[bytes]) -> tuple[bytes, bytes]:
    """Write HELLO, wait for the reply, write the rest, close stdin when the host is silent; return stdout and
    stderr."""
    assert process.stdin is not None
    assert process.stdout is not None
    heard: list[bytes] = []
    answered, silent = threading.Event(), threading.Event()
    last = [time.monotonic()]

    def listen() -> None:
        assert process.stdout is not None
        while chunk := os.read(process.stdout.fileno(), 65536):
            heard.append(chunk)
            last[0] = time.monotonic()
            answered.set()
        answered.set()
        silent.set()

    said: list[bytes] = []

    def collect() -> None:
        assert process.stderr is not None
        said.append(process.stderr.read())

    threads = [threading.Thread(target=listen), threading.Thread(target=collect)]
    for thread in threads:
        thread.start()
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(frames[0])
            process.stdin.flush()
            # A damaged HELLO may announce more bytes than it contains. The host then waits for them and does not
            # reply.
            if answered.wait(HELLO_TIMEOUT_S):
                process.stdin.write(b"".join(frames[1:]))
                process.stdin.flush()
        until = time.monotonic() + END_TIMEOUT_S
        last[0] = max(last[0], time.monotonic())
        while not silent.wait(SILENCE_S / 4) and time.monotonic() < min(until, last[0] + SILENCE_S):
            pass
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGABRT)  # faulthandler prints all stacks
            process.wait()
        for thread in threads:
            thread.join()
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()
    return b"".join(heard), b"".join(said)


def _refused(out: bytes) -> bool:
    """Return whether the host refused HELLO with a HELLO_ERR."""
    return out[5:6] == bytes([Kind.HELLO_ERR])
