"""Work on a large request is done in steps. Each step checks the deadline, and no data between two steps is
lost."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import struct
import threading
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.types import Message
from tests.fakes.later import until

from qnnbridge.genai import GenerationStats
from qnnbridge_daemon.fair_share import Cancellation
from qnnbridge_protocol.elements import ElementType
from qnnbridge_serve import infer, json_reading, transport
from qnnbridge_serve.errors import Refused
from qnnbridge_serve.infer import GivenTensor, TensorSpec
from qnnbridge_serve.json_reading import Check, read_texts
from qnnbridge_serve.openai_answers import AnswerForm, Piece
from qnnbridge_serve.openai_endpoints import ClientQueues, EventStream, GeneratedAnswer, whole_answer
from qnnbridge_serve.openai_forms import read_generation
from qnnbridge_serve.repository import LANGUAGE, FolderFigures

COUNT = 200_000
TEXT = TensorSpec("x", ElementType.STRING, (-1,))
NUMBER = TensorSpec("x", ElementType.FLOAT, (-1,))


def texts(count: int, text: str) -> Any:
    return np.array([text] * count, object)


def given(data: bytes | None, raw: bytes | None, spec: TensorSpec = TEXT, count: int = COUNT) -> GivenTensor:
    return GivenTensor("x", spec.datatype, (count,), data, None if raw is None else memoryview(raw))


# Each kind of work, and the minimum number of checks of the deadline.
STEPS: dict[str, tuple[Callable[[Check], object], int]] = {
    "texts of JSON": (lambda check: infer.to_value(given(JSON, None), TEXT, check=check), 3),
    "texts of binary data": (lambda check: infer.to_value(given(None, BINARY), TEXT, check=check), 3),
    "numbers of JSON": (lambda check: infer.to_value(given(NUMBERS, None, NUMBER), NUMBER, check=check), 2),
    "texts as JSON": (lambda check: list(infer.to_json(texts(COUNT, "ab"), TEXT, check)), 3),
    "texts as binary data": (lambda check: infer.to_bytes(texts(COUNT, "ab"), TEXT, check), 4),
    "a few long texts": (lambda check: infer.to_bytes(texts(2, "a" * 2**20), TEXT, check), 2),
    "an answer, packed": (lambda check: transport.pack(bytes(3 * 2**20), "gzip", check), 3),
}
JSON = json.dumps(["a text of about thirty letters"] * COUNT).encode()
BINARY = struct.pack("<I2s", 2, b"ab") * COUNT
NUMBERS = json.dumps([1.0000001192092896] * COUNT).encode()


@pytest.mark.parametrize("name", STEPS)
def test_work_on_a_request_ends_between_any_two_steps_when_the_deadline_expires(name: str) -> None:
    work, least = STEPS[name]

    class Late(Exception):
        pass

    def looks(last: int) -> int:
        """Return the number of checks; the deadline expires at the last one."""
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
def test_json_strings_equal_those_of_the_standard_library_wherever_a_step_ends(
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
def test_a_compressed_answer_can_be_decompressed_to_the_same_bytes(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 9, size).astype(np.uint8).tobytes()
    assert gzip.decompress(transport.pack(data, "gzip")) == data
    assert zlib.decompress(transport.pack(data, "deflate")) == data


# --- answers of language models ---


@pytest.mark.parametrize("begin", ["at once", "at the next turn of the loop"])
def test_a_cancellation_at_the_end_of_a_message_is_not_lost(begin: str) -> None:
    """`asyncio.wait_for` before Python 3.12 loses the cancellation, and an answer of many messages then continued."""

    class Many:
        form = AnswerForm(read_generation({"model": "m", "prompt": "x"}, "text"), 0, "0" * 64)
        left = 200  # one that goes on ends, too

        async def next(self) -> list[Any]:
            self.left -= 1
            await asyncio.sleep(0)
            return [Piece(0, "x") if self.left else ZeroDivisionError()]

    async def send(message: Message) -> None:
        if begin != "at once":
            await asyncio.sleep(0)

    async def one(turns: int) -> bool:
        stream = EventStream(Many(), [Piece(0, "x")], lambda: None)  # type: ignore[arg-type]
        task = asyncio.ensure_future(stream._send_all(send))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    async def all_of_them() -> list[bool]:
        return [await one(turns) for turns in range(24)]

    assert all(asyncio.run(all_of_them()))


def test_a_request_for_many_answers_takes_a_turn_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for 128 answers held the model until all were generated."""
    queues, order = ClientQueues(1, 5), list[str]()
    other = threading.Thread(target=lambda: take_turn(queues, order))

    class Stream:
        prompt_tokens, cached_tokens, stats, finish_reason, text = 1, 0, GenerationStats(), "stop", ""
        tokens: tuple[int, ...] = ()

        def __enter__(self) -> Stream:
            order.append("many")
            if len(order) == 1:
                other.start()
                until(lambda: queues._shares.waiting == 1)
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __next__(self) -> str:
            raise StopIteration

        def cancel(self) -> None:
            pass

    def generate(_model: Any, _prompt: Any, *, on_begin: Any, **_: Any) -> Stream:
        made = Stream()
        on_begin(made)
        return made

    async def never() -> None:
        await asyncio.sleep(1000)

    async def run() -> Any:
        document = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "n": 3}
        answer = GeneratedAnswer(read_generation(document, "chat"), model, FolderFigures(LANGUAGE), None)
        answer.start(transport.Workers("test", 1), queues, "client", never)
        return await whole_answer(answer)

    monkeypatch.setattr("qnnbridge.genai.generate", generate)
    model: Any = SimpleNamespace(
        model=SimpleNamespace(info=SimpleNamespace(fingerprint="0" * 64)),
        tokenizer=SimpleNamespace(apply_chat_template=lambda messages, **_: messages),
    )
    found = asyncio.run(asyncio.wait_for(run(), 30))
    other.join(30)
    assert len(found["choices"]) == 3
    assert order == ["many", "other", "many", "many"]


def take_turn(queues: ClientQueues, order: list[str]) -> None:
    with queues.turn("other", Cancellation()):
        order.append("other")
