"""A short run of the fuzzer, and a check that it can find bugs."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz import fuzz_wire
from tests.fuzz.mutations import mutated

from qnnbridge_protocol import frames
from qnnbridge_protocol.values import Decoder

# Inputs that once led to a finding.
FOUND = sorted((Path(__file__).parent / "found").glob("*.hex"))

INPUTS_PER_SEED = 600


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_damaged_stream_is_only_ever_refused(seed: int) -> None:
    checked, taken = fuzz_wire.run(seed, inputs=INPUTS_PER_SEED)
    assert checked == INPUTS_PER_SEED
    assert taken > checked / 4, "the damage is so great that hardly a frame is ever looked into"


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_inputs_that_once_caused_a_fault_are_refused_now(path: Path) -> None:
    fuzz_wire.check(bytes.fromhex(path.read_text("ascii")))


def test_the_golden_frames_are_accepted() -> None:
    assert sum(map(fuzz_wire.check, fuzz_wire.seeds())) == len(fuzz_wire.seeds())


def test_a_seed_always_gives_the_same_inputs() -> None:
    stock = fuzz_wire.seeds()
    first, second = (random.Random(5) for _ in range(2))
    assert [mutated(stock, first) for _ in range(50)] == [mutated(stock, second) for _ in range(50)]


def _take_anything(decoder: Decoder, index: Any) -> Any:
    return decoder._buffers[index]


def _believe_the_sizes(fields: dict[str, Any], _prefix: object) -> list[int]:
    sizes: list[int] = fields.pop("bufs", [])
    return sizes


def _trust_it(*_: object) -> None:
    pass


@pytest.mark.parametrize(
    ("owner", "name", "defect"),
    [
        (Decoder, "_take", _take_anything),
        (frames, "_sizes", _believe_the_sizes),
        (frames, "check_crc", _trust_it),
    ],
    ids=["buffer numbers", "buffer sizes", "checksum"],
)
def test_a_removed_check_is_detected(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, defect: Any) -> None:
    monkeypatch.setattr(owner, name, defect)
    with pytest.raises(fuzz_wire.InputError) as caught:
        fuzz_wire.run(1, inputs=20_000)
    with pytest.raises(Exception, match=re.escape(str(caught.value.__cause__))):
        fuzz_wire.check(caught.value.data)
    monkeypatch.undo()
    fuzz_wire.check(caught.value.data)


def test_the_program_reports_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_wire.main(["--seconds", "0.2", "--seed", "7"]) == 0
    assert "seed 7: " in capsys.readouterr().out
    example = tmp_path / "example.hex"
    example.write_text(b"".join(fuzz_wire.seeds()[:2]).hex(), "ascii")
    assert fuzz_wire.main(["--replay", str(example)]) == 0
    assert capsys.readouterr().out == "2 frames, nothing found\n"


def test_the_program_keeps_the_input_of_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Decoder, "_take", _take_anything)
    assert fuzz_wire.main(["--seconds", "60", "--save", str(tmp_path)]) == 1
    assert "this input must not do that" in capsys.readouterr().err
    (path,) = tmp_path.iterdir()
    monkeypatch.undo()
    assert fuzz_wire.main(["--replay", str(path)]) == 0
