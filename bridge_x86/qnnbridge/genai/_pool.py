"""`GeneratorPool`: generators of finished answers, kept so that a later prompt processes only its new tokens.

The key of a kept generator is the model object, the search options, the guidance and the salt. Model, search
options and guidance are fixed when the native generator is created. The salt separates users, since the number of
reused tokens and the time to the first token reveal which prompts were sent before. Nothing else changes the state
of a generator: the model object includes the folder, the QNN options and the host; the chat template and earlier
messages affect only the tokens, which are compared one by one; `generate` does not set an adapter. Stop texts,
`timeout` and `max_tokens` are applied in this process and set for each answer.

With guidance, onnxruntime-genai (0.13 to 0.18) resets the grammar when a generator is rewound. A kept generator is
always rewound by at least one token, which is then appended again, so each answer starts at the beginning of its
grammar.

A generator is not kept if its answer could differ from the answer of a new generator, or if reuse would save no
time:

- with a sampling seed, since random numbers continue where the last answer ended;
- with `logprobs`, several sequences, or after a cancelled or failed answer;
- for pipelines with fixed windows, and for models whose past and present do not share a buffer: after a rewind, the
host runs such a model on the whole history again;
- beyond 4096 tokens of Phi models, whose rotary factors change at that length for the whole history.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge.genai._generation import Generator, GeneratorParams, several_sequences
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.shown import Shown

if TYPE_CHECKING:
    from qnnbridge.genai._model import Model
    from qnnbridge_protocol.shown import Fact

# Above this length Phi models use other rotary factors. onnxruntime-genai recomputes the KV cache if a generated
# token reaches this length, but not if an appended prompt exceeds it.
_LONG_ROPE: Final = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    model: Model
    search: dict[str, Any]
    guidance: tuple[str, str, bool] | None
    salt: str
    generator: Generator

    def fits(self, model: Model, params: GeneratorParams, salt: str) -> bool:
        return (
            self.model is model
            and self.search == params._search
            and self.guidance == params._guidance
            and self.salt == salt
        )

    @property
    def tokens(self) -> list[int]:
        return self.generator._remote.tokens


@dataclasses.dataclass(frozen=True, slots=True)
class PoolStats:
    """Statistics of a `GeneratorPool`.

    Attributes:
        idle: generators that wait for a prompt.
        in_use: generators of unfinished answers.
        kept_bytes: memory that the KV caches of idle and used generators need for a full context. Unknown sizes
            count as 0.
        hits: answers that reused a kept generator.
        misses: answers that were allowed to reuse a generator and got a new one.
        reused_tokens: prompt tokens that were not processed again.
    """

    idle: int = 0
    in_use: int = 0
    kept_bytes: int = 0
    hits: int = 0
    misses: int = 0
    reused_tokens: int = 0


class GeneratorPool(Shown):
    """Idle generators for `generate(..., pool=)`. Safe to use from any thread.

    A generator serves one answer at a time. If two answers with the same prefix overlap, the second answer gets a
    new generator.

    Args:
        most: maximum number of generators, including those in use. The least recently used idle generator is freed
            first; generators in use beyond the maximum are freed when their answer ends.
        max_bytes: maximum size of all KV caches, including those in use; applied like `most`. A model whose KV
            cache alone is larger always gets new generators. Default: no limit.
    """

    def __init__(self, most: int = 4, max_bytes: int | None = None) -> None:
        if most < 0:
            raise OptionError(f"most={most} is negative.", fix="Give 0 or more.")
        if max_bytes is not None and max_bytes < 0:
            raise OptionError(f"max_bytes={max_bytes} is negative.", fix="Give 0 or more.")
        self._most = most
        self._max_bytes = max_bytes
        self._lock = renew_in_forks(Lock())
        # Idle generators, ordered by last use, the oldest first.
        self._idle: list[_Kept] = []
        # Size of the KV cache and number of reused tokens of each generator in use, by the generator's `id`.
        self._busy: dict[int, tuple[int, int]] = {}
        self._hits = self._misses = self._reused = 0

    def _shown_facts(self) -> Iterator[Fact]:
        limit = "" if self._max_bytes is None else f" and {self._max_bytes:,} bytes"
        yield f"{len(self._idle)} idle, {len(self._busy)} in use, at most {self._most}{limit}", ""

    def __len__(self) -> int:
        """Number of idle generators."""
        return len(self._idle)

    @property
    def stats(self) -> PoolStats:
        """Statistics of the pool."""
        with self._lock:
            counts = len(self._idle), len(self._busy), self._bytes()
            return PoolStats(*counts, self._hits, self._misses, self._reused)

    def takes(self, model: Model) -> bool:
        """Return whether a generator of this model may be kept."""
        return self._most > 0 and (self._max_bytes is None or model.info.kv_bytes <= self._max_bytes)

    def take(self, model: Model, params: GeneratorParams, tokens: Sequence[int], salt: str) -> Generator:
        """Return the generator with the longest common prefix, or a new one.

        The caller returns the generator to the pool with `put`.
        """
        with self._lock:
            found = self._best(model, params, tokens, salt)
            if found is not None:
                self._idle.remove(found)
            # A new generator sends nothing to the host before its first call, so the lock is held only briefly.
            generator = Generator(model, params) if found is None else found.generator
            common = 0 if found is None else _common(found.tokens, tokens)
            self._busy[id(generator)] = (model.info.kv_bytes, common)
            self._hits += found is not None
            self._misses += found is None
            surplus = self._surplus()
        _free(surplus)
        try:
            if found is not None:
                generator._remote.begin_again(common)
        except BaseException:
            self._end_use(generator)
            raise
        return generator

    def put(self, model: Model, params: GeneratorParams, generator: Generator, salt: str, *, keep: bool) -> None:
        """Return a generator to the pool, which keeps the generator for later prompts or frees it."""
        if not keep or generator.stats.reseeded:
            self._end_use(generator)
            generator.close()
            return
        with self._lock:
            self._count(generator)
            self._idle.append(_Kept(model, dict(params._search), params._guidance, salt, generator))
            surplus = self._surplus()
        _free(surplus)

    def clear(self) -> bool:
        """Free all idle generators. Return whether there were any."""
        with self._lock:
            idle, self._idle = self._idle, []
        _free(idle)
        return bool(idle)

    def _end_use(self, generator: Generator) -> None:
        with self._lock:
            self._count(generator)

    def _count(self, generator: Generator) -> None:
        _, common = self._busy.pop(id(generator))
        # After a replay no token was reused, because the whole history was processed again.
        self._reused += 0 if generator.stats.replays else common

    def _bytes(self) -> int:
        return sum(kept.model.info.kv_bytes for kept in self._idle) + sum(size for size, _ in self._busy.values())

    def _best(self, model: Model, params: GeneratorParams, tokens: Sequence[int], salt: str) -> _Kept | None:
        best, longest = None, 0
        for kept in self._idle:
            if not kept.fits(model, params, salt):
                continue
            common = _common(kept.tokens, tokens)
            # Do not use a generator that shares less than half of its tokens with the prompt: another conversation
            # may continue with it.
            if common > longest and 2 * common >= len(kept.tokens) and not _doubtful(model, kept.tokens, tokens):
                best, longest = kept, common
        return best

    def _surplus(self) -> list[_Kept]:
        surplus, size = [], self._bytes()
        while self._idle and (
            len(self._idle) + len(self._busy) > self._most
            or (self._max_bytes is not None and size > self._max_bytes)
        ):
            surplus.append(self._idle.pop(0))
            size -= surplus[-1].model.info.kv_bytes
        return surplus


def can_reuse(params: GeneratorParams) -> bool:
    """Return whether a reused generator with these parameters gives the same answers as a new one."""
    info, options = params._model.info, params.get_search_options()
    shares = options.get("past_present_share_buffer")
    seed = options.get("random_seed")
    return (
        info.layout == "dynamic"
        and (shares is None or bool(shares))
        and not (options.get("do_sample") and seed is not None and seed >= 0)
        and not several_sequences(params)
    )


def _common(kept: Sequence[int], tokens: Sequence[int]) -> int:
    """Return the length of the common prefix, without the last prompt token, which the model must process."""
    most = min(len(kept), len(tokens) - 1)
    return next((at for at in range(most) if kept[at] != tokens[at]), most)


def _doubtful(model: Model, kept: Sequence[int], tokens: Sequence[int]) -> bool:
    return model.info.type.startswith("phi") and max(len(kept), len(tokens)) >= _LONG_ROPE


def _free(kept: Sequence[_Kept]) -> None:
    for one in kept:
        one.generator.close()
