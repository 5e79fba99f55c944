"""Measure the time to the first token of turn 10 of a conversation.

Three cases: the generator of the previous turns, a new generator, and for comparison a prompt of only the turn's
new tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from tests.genai.tiny_decoders import Sizes, write_model

import qnnbridge
from qnnbridge import genai

TURN, NEW_TOKENS, ANSWER_TOKENS = 10, 210, 4
# This model takes about 1 ms per token, so that processing a prompt takes longer than sending a request.
SIZES = Sizes(context=4000, ballast=20)


def measure(folder: Path, host: qnnbridge.Host, rounds: int) -> dict[str, float]:
    """Return the median times to the first token of turn 10, after about 2,000 tokens, over `rounds` rounds.

    The three cases take turns in one host. Raises `AssertionError` if the kept generator's answer differs from the
    new generator's, or if the kept generator processed more than the new tokens.
    """
    model = genai.Model(write_model(folder, "dynamic", sizes=SIZES), host=host)
    tokenizer, pool = genai.Tokenizer(model), genai.GeneratorPool()

    def first_s(tokens: Sequence[int], pool: genai.GeneratorPool | None) -> tuple[float, genai.TextStream]:
        began = time.monotonic()
        answer = genai.generate(
            model, tokens, tokenizer=tokenizer, max_tokens=ANSWER_TOKENS, temperature=0, pool=pool
        )
        with answer as stream:
            next(stream, None)  # `next` waits for another token if the first token has no text
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
        # Each round has a different turn 10, so the kept generator is rewound to the common history.
        tokens = [*history, *said(TURN + number)]
        kept_s, kept = first_s(tokens, pool)
        new_s, new = first_s(tokens, None)
        assert (kept.tokens, kept.cached_tokens) == (new.tokens, len(history))
        rows.append((kept_s, new_s, first_s(tokens[len(history) :], None)[0], len(history)))
    model.close()
    names = ("turn kept", "turn new", "turn alone", "turn tokens")
    return dict(zip(names, map(statistics.median, zip(*rows, strict=True)), strict=True))
