"""Generation of several sequences at once (batches, beams): only models with dynamic shapes can do it.

There is no history that a new generator could be given: beams and finished sequences of a batch have states of
their own. So the operations are kept, and repeated from the start in a new generator. That is exact for greedy
search and beams; random numbers would not be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qnnbridge_host.genai.generation import Generation
from qnnbridge_host.genai.native import token_array
from qnnbridge_host.request.client import StopSignal
from qnnbridge_protocol.errors import Cancelled, StateLost


class BatchGeneration(Generation):
    """`tokens` stays empty: the sequences are in the native generator."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rows = int(self._option("batch_size", 1))

    def repeat(self, log: Sequence[tuple[Sequence[int], int]], stop: StopSignal) -> None:
        """Bring a new generator to where an old one was: prompts, and the number of tokens generated after each."""
        # Prompts alone may be repeated: no random number was drawn yet.
        if self._option("do_sample", False) and any(count for _, count in log):
            raise StateLost(
                "The generation of several sequences cannot be taken up again: random numbers cannot be repeated.",
                cause="Its host has ended, or a call of it was given up halfway.",
                fix="Generate again. Greedy search, beams and single sequences survive.",
            )
        self.repairs.replays += 1
        self._native, self.done = None, False  # an attempt before this one may have been given up halfway
        for tokens, count in log:
            self.append(tokens, stop)
            while count and not self.done:
                if stop.stopped:
                    raise Cancelled("The call was cancelled.")
                self._one(stop)
                count -= 1

    def append(self, tokens: Sequence[int], stop: StopSignal) -> None:
        self._check_prompt(tokens)
        tokens = self._with_fillers(tokens)
        if self._native is None:
            self._native = self._make(0, again=False)
        with self._model.turns.prompt():
            self._call("OgaGenerator_AppendTokens", token_array(tokens), len(tokens))
        self.done = self._is_done()

    def generate(self, count: int, stop: StopSignal, emit: Callable[[list[int]], None] | None) -> list[Any]:
        made: list[list[int]] = []
        while len(made) < count and not self.done and not stop.stopped:
            made.append(self._one(stop))
        return made

    def sequence(self, index: int) -> list[int]:
        """All tokens of one sequence; of beams the best ones, when they are done."""
        if self._native is None:
            return []
        native, handle = self._model.library, self._native.handle
        count = native.get("OgaGenerator_GetSequenceCount", handle, index)
        found: list[int] = native.get("OgaGenerator_GetSequenceData", handle, index)[:count]
        return self._with_pads(found)

    def _with_fillers(self, tokens: Sequence[int]) -> list[int]:
        """Pads at the ends of each row, as genai has them here."""
        pad, filler = self._model.folder.pad, self._model.filler
        given = list(tokens)
        if pad == filler or filler is None or self.rows < 2:
            return given
        size = len(given) // self.rows
        for start in range(0, len(given), size or 1):
            # From each end of the row inwards, up to the first token that is none: a pad in the middle is a token.
            for way in (range(start, start + size), range(start + size - 1, start - 1, -1)):
                for at in way:
                    if given[at] != pad:
                        break
                    given[at] = filler
        return given

    def _with_pads(self, tokens: list[int]) -> list[int]:
        pad, filler = self._model.folder.pad, self._model.filler
        return tokens if pad == filler or pad is None else [pad if one == filler else one for one in tokens]

    def _ready(self, stop: StopSignal) -> None:
        if self._native is None:
            super()._ready(stop)

    def _one(self, stop: StopSignal) -> list[int]:
        with self._model.turns:
            self._call("OgaGenerator_GenerateNextToken")
        self.done = self._is_done()
        assert self._native is not None
        return self._with_pads(self._model.library.ints("OgaGenerator_GetNextTokens", self._native.handle))
