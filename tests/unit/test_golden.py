"""Golden frames of released versions must always be readable, and are encoded again byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.golden import make_golden
from tests.golden.make_golden import CONVERSATIONS, FOLDER, INPUTS, OUTPUTS, load, path_of
from tests.unit.wire_streams import feed, hear, plain, wire

from qnnbridge_protocol.connection import Connection, Hello, Role, State
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.errors import BridgeError, VersionMismatch, from_wire
from qnnbridge_protocol.frames import Frame, FrameReader, Kind
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.values import Decoder, Encoder, equal_bits

ALL = [
    pytest.param(path_of(conversation, name), frame, id=f"{conversation}-{name}")
    for conversation, frames in CONVERSATIONS.items()
    for name, frame in frames.items()
]


def golden(name: str) -> Frame:
    (frame,) = feed(FrameReader(Limits()), load(path_of("served", name)))
    return frame


@pytest.mark.parametrize(("path", "frame"), ALL)
def test_the_bytes_are_decoded_into_the_frame(path: Path, frame: Frame) -> None:
    assert [plain(got) for got in feed(FrameReader(Limits()), load(path))] == [plain(frame)]


@pytest.mark.parametrize(("path", "frame"), ALL)
def test_the_frame_is_encoded_into_the_bytes(path: Path, frame: Frame) -> None:
    assert wire(frame) == load(path)


def test_there_is_a_golden_frame_of_every_kind() -> None:
    assert {frame.kind for frames in CONVERSATIONS.values() for frame in frames.values()} == set(Kind)


def test_every_golden_file_is_read_by_a_test() -> None:
    assert {param.values[0] for param in ALL} == set(FOLDER.rglob("*.*"))


def test_the_golden_files_equal_those_of_their_generator(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_golden.main() == 0
    assert capsys.readouterr().out == "all others are the same\n"


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_each_conversation_is_legal_to_both_sides(conversation: str) -> None:
    """Each side reads the other side's golden bytes and writes its own."""
    ours = Hello(api=(1, 1))
    client, host = Connection(Role.CLIENT, ours), Connection(Role.HOST, ours)
    for name, frame in CONVERSATIONS[conversation].items():
        data = load(path_of(conversation, name))
        speaker, listener = (client, host) if "-client-" in name else (host, client)
        if frame.kind in (Kind.REQUEST, Kind.CANCEL, Kind.PING):
            number, chunks = speaker.ask(frame.kind, frame.header, frame.buffers)
            assert number == frame.request_id
        elif frame.kind is Kind.RETURN:
            given = speaker.give_back(frame.request_id, frame.header, frame.buffers)
            assert given is not None
            chunks = given
        else:
            chunks = speaker.send(frame)
        assert b"".join(chunks) == data
        assert [plain(heard) for heard in hear(listener, data)] == [plain(frame)]
    assert client.state is host.state is State.CLOSED


def test_the_golden_hellos_are_accepted() -> None:
    hello = Hello.from_wire(golden("02-host-hello_ok").header)
    assert hello.to_wire() == {**make_golden.HELLO_OK, "system": ""}  # 0.1.0 did not send its operating system


@pytest.mark.parametrize(
    ("conversation", "name", "code"),
    [("served", "14-host-error", "ort.Fail"), ("refused", "02-host-hello_err", None)],
)
def test_the_golden_errors_are_decoded_completely(conversation: str, name: str, code: str | None) -> None:
    (frame,) = feed(FrameReader(Limits()), load(path_of(conversation, name)))
    error = from_wire(frame.header["error"])
    assert error.to_wire() == frame.header["error"]
    assert error.code == (code or VersionMismatch.code)
    assert type(error) is not BridgeError


def check_values(descriptors: list[Any], frame: Frame, values: list[Any]) -> None:
    decoder, encoder = Decoder(frame.buffers), Encoder()
    assert len(descriptors) == len(values)
    for descriptor, value in zip(descriptors, values, strict=True):
        assert equal_bits(decoder.value(descriptor), value)
        assert encoder.add(value) == descriptor
    decoder.finish()
    assert [bytes(buffer) for buffer in encoder.buffers] == [bytes(buffer) for buffer in frame.buffers]


def test_tensors_of_every_element_type_are_read_and_written_bit_for_bit() -> None:
    frame = golden("10-client-request")
    assert [name for name, _ in frame.header["inputs"]] == list(INPUTS)
    assert {item[1] for _, item in frame.header["inputs"]} == {int(element) for element in ElementType}
    check_values([item for _, item in frame.header["inputs"]], frame, list(INPUTS.values()))


def test_sequences_maps_optionals_and_sparse_tensors_are_read_and_written_bit_for_bit() -> None:
    frame = golden("11-host-reply")
    assert {item[0] for item in frame.header["outputs"]} == set("nqmdrvx")
    check_values(frame.header["outputs"], frame, OUTPUTS)
