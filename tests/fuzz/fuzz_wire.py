"""Fuzz the wire: any bytes result in frames and values or in a typed error, within a short time.

    python tests/fuzz/fuzz_wire.py --seconds 60 --seed 1     random damage to golden frames, no extra package
    python tests/fuzz/fuzz_wire.py --atheris --seconds 600   guided by coverage, if atheris is installed
    python tests/fuzz/fuzz_wire.py --replay FILE             one input again, a file of hexadecimal digits

The first finding ends the program: it prints the input (and writes it, with ``--save FOLDER``) and exits with 1.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
import traceback
import types
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # as a program: `tests` is next to the source folders

from tests.fuzz.mutations import mutated
from tests.unit.wire_streams import feed_until_refused, hear, wire

from qnnbridge_protocol.connection import Connection, Hello, Role
from qnnbridge_protocol.errors import BridgeError, HandshakeFailed, ProtocolDesync, VersionMismatch, from_wire
from qnnbridge_protocol.frames import (
    HELLO_KINDS,
    MAGIC,
    PREFIX,
    PREFIX_BYTES,
    WIRE_VERSION,
    Frame,
    FrameReader,
    Kind,
    aligned,
    decode_header,
    encode_header,
)
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.specs import RunSpec, SessionInfo, SessionSpec
from qnnbridge_protocol.values import Decoder, Encoder, decode, equal_bits

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
LIMITS = Limits(max_header=64 * 1024, max_buffers=64, max_body=1024 * 1024)
# Limit of processor time for one input. Inputs have a few kilobytes; a good one takes a millisecond.
MAX_INPUT_S = 2.0


class Finding(Exception):
    """Violation of a rule of the wire."""


def seeds() -> list[bytes]:
    return [bytes.fromhex(path.read_text("ascii")) for path in sorted(GOLDEN.rglob("*.hex"))]


def check(data: bytes) -> int:
    """Return the number of frames in `data`. Raise `Finding`, or any other exception that a reader must not raise."""
    start = time.process_time()
    frames = _check_reader(data)
    _check_against_the_bytes(frames, data)
    for role in Role:
        _check_connection(role, data)
    for frame in frames:
        _check_frame(frame)
    _check_header(data)
    if time.process_time() - start > MAX_INPUT_S:
        raise Finding(f"it took {time.process_time() - start:.1f} s")
    return len(frames)


def _check_reader(data: bytes) -> list[Frame]:
    """Check that a stream, cut in any way, gives the same frames and ends with the same error."""
    whole, reason = _read(data, itertools.repeat(1 << 20))
    rng = random.Random(zlib.crc32(data))
    sizes: Iterable[int] = itertools.cycle([rng.randint(1, rng.choice([3, 100, 5000])) for _ in range(10)])
    pieces, other_reason = _read(data, sizes)
    if reason != other_reason:
        raise Finding(f"whole: {reason}; in pieces: {other_reason}")
    # A read that ends in an error returns no earlier frames.
    if reason is None and len(whole) != len(pieces):
        raise Finding(f"whole: {len(whole)} frames; in pieces: {len(pieces)}")
    if any(wire(one) != wire(other) for one, other in zip(whole, pieces, strict=False)):
        raise Finding("the frames differ with the cut")
    return max(whole, pieces, key=len)


def _read(data: bytes, sizes: Iterable[int]) -> tuple[list[Frame], str | None]:
    frames, error = feed_until_refused(FrameReader(LIMITS), data, sizes)
    return frames, None if error is None else error.message


def _check_against_the_bytes(frames: list[Frame], data: bytes) -> None:
    """Compare the frames with those of a second, minimal reader that trusts the sizes."""
    at = 0
    for frame in frames:
        fields = PREFIX.unpack_from(data, at)
        body = at + PREFIX_BYTES + fields[5]
        header = data[at + PREFIX_BYTES : body]
        if fields[:2] != (MAGIC, WIRE_VERSION) and frame.kind not in HELLO_KINDS:
            raise Finding("something was read that is no frame")
        if fields[8] != zlib.crc32(header, zlib.crc32(data[at : at + 32])):
            raise Finding("a frame was read in spite of its checksum")
        if (fields[2], fields[4]) != (frame.kind, frame.request_id):
            raise Finding("a frame was read as another one")
        _check_keys(frame.header)
        at = body if not fields[6] else at + aligned(body - at)
        start = at
        for buffer in frame.buffers:
            at = start + aligned(at - start)
            if buffer.tobytes() != data[at : at + buffer.nbytes]:
                raise Finding("a buffer was read from another place")
            at += buffer.nbytes


def _check_keys(node: Any) -> None:
    if type(node) is dict and any(type(key) is not str for key in node):
        raise Finding("a header has a key that is not text")
    for child in node.values() if type(node) is dict else node:
        if type(child) in (dict, list):
            _check_keys(child)


def _check_connection(role: Role, data: bytes) -> None:
    fresh, greeted = Connection(role, Hello(limits=LIMITS)), Connection(role, Hello(limits=LIMITS))
    greeting = Hello(limits=LIMITS).to_wire()
    if role is Role.CLIENT:
        fresh.send_hello()
        greeted.send_hello()
        hear(greeted, wire(Frame(Kind.HELLO_OK, 0, greeting)))
        for kind in (Kind.REQUEST, Kind.REQUEST, Kind.REQUEST, Kind.REQUEST, Kind.CANCEL, Kind.PING):
            greeted.ask(kind, {})
    else:
        hear(greeted, wire(Frame(Kind.HELLO, 0, greeting)))
        greeted.accept_hello()
    for connection in (fresh, greeted):
        try:
            hear(connection, data)
        except (ProtocolDesync, VersionMismatch, HandshakeFailed) as error:
            str(error)


def _check_frame(frame: Frame) -> None:
    """Decode everything that a frame contains."""
    if sum(buffer.nbytes for buffer in frame.buffers) > LIMITS.max_body:
        raise Finding("more bytes than the limit allows")
    again, reason = _read(wire(frame), itertools.repeat(1 << 20))
    if [wire(one) for one in again] != [wire(frame)]:
        raise Finding(f"a frame that was read is written as another one ({reason})")
    header = frame.header
    if frame.kind in (Kind.HELLO, Kind.HELLO_OK):
        _check_hello(header)
    if type(header.get("error")) is dict:
        _check_error(header["error"])
    for field, record in (("spec", SessionSpec), ("options", RunSpec), ("info", SessionInfo)):
        if type(header.get(field)) is dict:
            _check_record(record, header[field])
    values = [header.get(field) for field in ("inputs", "outputs", "initializers")]
    descriptors = [item for value in values if type(value) is list for item in value]
    named = [item[1] for item in descriptors if type(item) is list and len(item) == 2]
    _check_values([*descriptors, *named], frame.buffers)


def _check_hello(header: dict[str, Any]) -> None:
    try:
        hello = Hello.from_wire(header)
    except ProtocolDesync:
        return
    if Hello.from_wire(hello.to_wire()) != hello:
        raise Finding("a HELLO that was read cannot be said again")


def _check_error(data: dict[str, Any]) -> None:
    error = from_wire(data)
    if not isinstance(error, BridgeError) or type(str(error)) is not str:
        raise Finding("an error that cannot be shown")
    encode_header(error.to_wire())


def _check_record(record: type[SessionSpec] | type[RunSpec] | type[SessionInfo], data: dict[str, Any]) -> None:
    try:
        made = record.from_wire(data)
    except ProtocolDesync as error:
        str(error)
        return
    if record.from_wire(made.to_wire()) != made:
        raise Finding(f"a {record.__name__} that was read is written as another one")


def _check_values(descriptors: Sequence[Any], buffers: tuple[Any, ...]) -> None:
    for descriptor in descriptors:
        try:
            value = decode(descriptor, buffers)
        except ProtocolDesync as error:
            str(error)
            continue
        encoder = Encoder()
        described = encoder.add(value)
        if not equal_bits(Decoder(encoder.buffers).value(described), value):
            raise Finding(f"a value that was read is written as another one: {descriptor}")


def _check_header(data: bytes) -> None:
    for part in (data, data[40:]):
        try:
            header = decode_header(part)
        except ProtocolDesync:
            continue
        if encode_header(decode_header(encode_header(header))) != encode_header(header):
            raise Finding("a header that was read is written as another one")


# --- the program -----------------------------------------------------------------------------------------


def run(seed: int, *, seconds: float = float("inf"), inputs: float = float("inf")) -> tuple[int, int]:
    """Check damaged streams up to a time or number; return the numbers of streams and of accepted frames.

    A finding is raised unchanged, with the input in its notes.
    """
    rng, start = random.Random(seed), time.monotonic()
    stock = seeds()
    checked = taken = 0
    while checked < inputs and time.monotonic() - start < seconds:
        data = mutated(stock, rng)
        try:
            taken += check(data)
        except Exception as error:
            raise InputError(data) from error
        checked += 1
    return checked, taken


class InputError(Exception):
    """Error with an input that led to a finding, which is its cause."""

    def __init__(self, data: bytes) -> None:
        super().__init__(f"this input must not do that: {data.hex()}")
        self.data = data


def run_guided(seed: int, seconds: float) -> None:
    """Run the coverage-guided fuzzer, which ends the process."""
    import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

    golden = seeds()

    def mutate(data: bytes, max_size: int, number: int) -> bytes:
        rng = random.Random(number)
        stock = golden if rng.random() < 0.3 or len(data) < 40 else [data]
        try:
            return mutated(stock, rng)[:max_size]
        except Exception:  # `data` is not a frame
            return bytes(atheris.Mutate(data, max_size))

    for function in _functions_of("qnnbridge_protocol"):
        atheris.instrument_func(function)
    options = [sys.argv[0], f"-max_total_time={seconds:.0f}", f"-seed={seed}", "-max_len=20000"]
    atheris.Setup(options, check, custom_mutator=mutate)
    atheris.Fuzz()


def _functions_of(package: str) -> list[types.FunctionType]:
    """Return all functions and methods of a loaded package; tracing numpy as well would only be slow."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == package]
    owners = [*modules, *(cls for module in modules for cls in vars(module).values() if isinstance(cls, type))]
    found = {item for owner in owners for item in vars(owner).values() if isinstance(item, types.FunctionType)}
    return [function for function in found if function.__module__.partition(".")[0] == package]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, help="folder for the input of a finding")
    parser.add_argument("--replay", type=Path, help="file with an input")
    parser.add_argument("--atheris", action="store_true", help="let atheris choose the inputs")
    options = parser.parse_args(arguments)
    if options.atheris:
        run_guided(options.seed, options.seconds)
    if options.replay:
        print(f"{check(bytes.fromhex(options.replay.read_text('ascii')))} frames, nothing found")
        return 0
    try:
        checked, taken = run(options.seed, seconds=options.seconds)
    except InputError as error:
        traceback.print_exc()
        if options.save:
            options.save.mkdir(parents=True, exist_ok=True)
            path = options.save / f"{zlib.crc32(error.data):08x}.hex"
            path.write_text(error.data.hex(), "ascii")
            print(f"written: {path}", file=sys.stderr)
        return 1
    print(f"seed {options.seed}: {checked} inputs with {taken} frames that were taken, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
