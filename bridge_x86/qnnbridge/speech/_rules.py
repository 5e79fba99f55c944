"""Which token comes next: the most likely that the rules of Whisper allow. Pure; the rules are transformers'."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from qnnbridge.speech._features import Array


@dataclasses.dataclass(frozen=True, slots=True)
class TokenRules:
    """For one window.

    Args:
        end: the token that ends a text.
        suppressed: never chosen.
        suppressed_first: never chosen as the first.
        first_timestamp: the token for 0.00 s; its predecessor says that there are none. ``None``: without times.
        latest_first: how many steps of 0.02 s the first time may be in.
    """

    end: int
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    first_timestamp: int | None
    latest_first: int | None

    def choose(self, logits: Array, chosen: Sequence[int]) -> int:
        """chosen: the tokens behind the prompt."""
        scores = np.array(logits, np.float32)
        scores[[token for token in self.suppressed if token < scores.size]] = -np.inf
        if not chosen:
            scores[[token for token in self.suppressed_first if token < scores.size]] = -np.inf
        if self.first_timestamp is not None:
            self._order_times(scores, chosen, self.first_timestamp)
        return int(scores.argmax())

    def _order_times(self, scores: Array, chosen: Sequence[int], first: int) -> None:
        scores[first - 1] = -np.inf
        was_time = bool(chosen) and chosen[-1] >= first
        before_was_time = len(chosen) < 2 or chosen[-2] >= first
        if was_time:  # times come in pairs, but at the end
            if before_was_time:
                scores[first:] = -np.inf
            else:
                scores[: self.end] = -np.inf
        times = [token for token in chosen if token >= first]
        if times:  # they do not go back, and a segment takes time
            scores[first : times[-1] + (0 if was_time and not before_was_time else 1)] = -np.inf
        if not chosen:
            scores[:first] = -np.inf
            if self.latest_first is not None:
                scores[first + self.latest_first + 1 :] = -np.inf
        with np.errstate(divide="ignore"):
            top = scores.max()
            all_times = np.log(np.exp(scores[first:] - top).sum(dtype=np.float32))
        if all_times > scores[:first].max() - top:
            scores[:first] = -np.inf


@dataclasses.dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens of one segment. start, end: in steps of 0.02 s from the window's begin; ``None``: the window's end."""

    start: int
    end: int | None
    tokens: tuple[int, ...]


def spans_of(tokens: Sequence[int], first_timestamp: int) -> tuple[list[TokenSpan], int | None]:
    """The segments of a window, and the step that the next window begins at; ``None``: this one's end."""
    times = [token >= first_timestamp for token in tokens]
    cuts = [number for number in range(1, len(tokens)) if times[number] and times[number - 1]]
    ends_with_one = times[-2:] == [False, True]
    if not cuts:
        last = [token - first_timestamp for token in tokens if token >= first_timestamp]
        return [TokenSpan(0, last[-1] if last and last[-1] else None, tuple(tokens))], None
    spans = []
    begin = 0
    for cut in [*cuts, *([len(tokens)] if ends_with_one else [])]:
        piece = tuple(tokens[begin:cut])
        if piece:
            opening = piece[0] - first_timestamp if piece[0] >= first_timestamp else 0
            spans.append(TokenSpan(max(0, opening), piece[-1] - first_timestamp, piece))
        begin = cut
    return spans, None if ends_with_one else tokens[cuts[-1] - 1] - first_timestamp
