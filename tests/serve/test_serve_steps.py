"""Work on a large request is done in steps: each looks at the time, and none loses what lies between two of them."""

from __future__ import annotations

import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qnnbridge_protocol.elements import ElementType
from qnnbridge_serve import json_reading, tensors, transport
from qnnbridge_serve.errors import Refused
from qnnbridge_serve.json_reading import Check, read_texts
from qnnbridge_serve.tensors import GivenTensor, TensorSpec

COUNT = 200_000
TEXT = TensorSpec("x", ElementType.STRING, (-1,))
NUMBER = TensorSpec("x", ElementType.FLOAT, (-1,))


def texts(count: int, text: str) -> Any:
    return np.array([text] * count, object)


def given(data: bytes | None, raw: bytes | None, spec: TensorSpec = TEXT, count: int = COUNT) -> GivenTensor:
    return GivenTensor("x", spec.datatype, (count,), data, None if raw is None else memoryview(raw))


# What is done, and how often it looks at the time at least.
STEPS: dict[str, tuple[Callable[[Check], object], int]] = {
    "texts of JSON": (lambda check: tensors.to_value(given(JSON, None), TEXT, check=check), 3),
    "texts of binary data": (lambda check: tensors.to_value(given(None, BINARY), TEXT, check=check), 3),
    "numbers of JSON": (lambda check: tensors.to_value(given(NUMBERS, None, NUMBER), NUMBER, check=check), 2),
    "texts as JSON": (lambda check: list(tensors.to_json(texts(COUNT, "ab"), TEXT, check)), 3),
    "texts as binary data": (lambda check: tensors.to_bytes(texts(COUNT, "ab"), TEXT, check), 4),
    "a few long texts": (lambda check: tensors.to_bytes(texts(2, "a" * 2**20), TEXT, check), 2),
    "an answer, packed": (lambda check: transport.pack(bytes(3 * 2**20), "gzip", check), 3),
}
JSON = json.dumps(["a text of about thirty letters"] * COUNT).encode()
BINARY = struct.pack("<I2s", 2, b"ab") * COUNT
NUMBERS = json.dumps([1.0000001192092896] * COUNT).encode()


@pytest.mark.parametrize("name", STEPS)
def test_work_on_a_request_ends_at_any_of_its_steps_when_the_time_is_over(name: str) -> None:
    work, least = STEPS[name]

    class Late(Exception):
        pass

    def looks(last: int) -> int:
        """How often it looks; the time is over at the last one."""
        looked = 0

        def look() -> None:
            nonlocal looked
            looked += 1
            if looked == last:
                raise Late

        work(look)
        return looked

    steps = looks(-1)
    assert steps >= least
    for last in (1, steps // 2 + 1, steps):
        with pytest.raises(Late):
            looks(last)


@pytest.mark.parametrize("step", [2, 3, 5, 8, 64])
def test_texts_of_json_are_those_of_the_standard_library_wherever_a_step_ends(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_reading, "STEP_BYTES", step)
    dice = random.Random(step)
    for _ in range(400):
        shape = (dice.randrange(4), dice.randrange(1, 4))
        flat = ["".join(dice.choices('\\"[],:n é', k=dice.randrange(9))) for _ in range(shape[0] * shape[1])]
        rows = [flat[begin : begin + shape[1]] for begin in range(0, len(flat), shape[1])]
        for document in (rows, flat):
            data = json.dumps(document, ensure_ascii=dice.random() < 0.5).encode()
            assert read_texts(data, shape, "x", lambda size: None) == flat
            with pytest.raises(Refused, match=r"elements|nested"):
                read_texts(data, (shape[0] + 1, shape[1]), "x", lambda size: None)


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1, 3 * 2**20 + 7])
def test_a_packed_answer_is_the_answer(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 9, size).astype(np.uint8).tobytes()
    assert gzip.decompress(transport.pack(data, "gzip")) == data
    assert zlib.decompress(transport.pack(data, "deflate")) == data
