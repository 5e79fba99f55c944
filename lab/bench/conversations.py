"""Seconds to the first token of a late turn of a conversation: with a kept generator, a new one, and none of the past."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from tests.genai.tiny_decoders import Sizes, write_model

import qnnbridge
from qnnbridge import genai

TURN, NEW_TOKENS, ANSWER_TOKENS = 10, 210, 4
# About 1 ms a token, so that prompts take longer than requests.
SIZES = Sizes(context=4000, ballast=20)


def measure(folder: Path, host: qnnbridge.Host, rounds: int) -> dict[str, float]:
    """Return the medians of `rounds` turns 10, behind about 2,000 tokens.

    The three kinds of answers take turns in one host. Raises `AssertionError` if an answer differs from that of a new
    generator, or if the kept one processed more than the new tokens.
    """
    model = genai.Model(write_model(folder, "dynamic", sizes=SIZES), host=host)
    tokenizer, pool = genai.Tokenizer(model), genai.GeneratorPool()

    def first_s(tokens: Sequence[int], pool: genai.GeneratorPool | None) -> tuple[float, genai.TextStream]:
        began = time.monotonic()
        answer = genai.generate(
            model, tokens, tokenizer=tokenizer, max_tokens=ANSWER_TOKENS, temperature=0, pool=pool
        )
        with answer as stream:
            next(stream, None)  # a token without a text is followed by the next one, in a thousandth of the time
            first = time.monotonic() - began
            list(stream)
        return first, stream

    def said(number: int) -> list[int]:
        return [4 + (number * 31 + 17 * n * n + 5 * n) % 280 for n in range(NEW_TOKENS)]

    history: list[int] = []
    for turn in range(1, TURN):
        history += said(turn)
        history += first_s(history, pool)[1].tokens
    rows = []
    for number in range(rounds):
        # Another turn 10 each time: the kept generator goes back to what they have in common.
        tokens = [*history, *said(TURN + number)]
        kept_s, kept = first_s(tokens, pool)
        new_s, new = first_s(tokens, None)
        assert (kept.tokens, kept.cached_tokens) == (new.tokens, len(history))
        rows.append((kept_s, new_s, first_s(tokens[len(history) :], None)[0], len(history)))
    model.close()
    names = ("turn kept", "turn new", "turn alone", "turn tokens")
    return dict(zip(names, map(statistics.median, zip(*rows, strict=True)), strict=True))
