"""`generate`: generate text from a prompt, with stop strings, a deadline and cancellation."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge.genai._generation import Generator, GeneratorParams, several_sequences
from qnnbridge.genai._media import Audios, Images
from qnnbridge.genai._model import Model
from qnnbridge.genai._parts import split_media
from qnnbridge.genai._pool import GeneratorPool, can_reuse
from qnnbridge.genai._recipe import GenerationStats
from qnnbridge.genai._remote import tokens_of
from qnnbridge.genai._tensors import INPUT_IDS, NamedTensors
from qnnbridge.genai._tokenizer import Tokenizer
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_os.shield import start_thread
from qnnbridge_protocol.errors import (
    BridgeError,
    Busy,
    Cancelled,
    DeadlineExceeded,
    OptionError,
)
from qnnbridge_protocol.shown import Shown, beginning, counted, more

if TYPE_CHECKING:
    from qnnbridge_protocol.shown import Fact


# --- answers ---

Prompt = str | Sequence[int] | NamedTensors | Sequence[Mapping[str, Any]]
FinishReason = Literal["stop", "length", "cancelled"]
# Function that returns a generator to its pool. Argument: whether the pool should keep the generator.
Release = Callable[[bool], None]


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probability of a generated token, before temperature, penalties and guidance.

    Args:
        token: the generated token.
        logprob: natural logarithm of its probability.
        offset: number of characters of the answer before the token.
        top: the most likely tokens with the logarithms of their probabilities, the most likely first.
    """

    token: int
    logprob: float
    offset: int
    top: tuple[tuple[int, float], ...]


class TextStream(Shown, Iterator[str]):
    """Iterator over the pieces of an answer, as they are generated.

    Not thread-safe, except `cancel`, which any thread may call.

    Attributes:
        text: the answer so far.
        tokens: token ids of the answer so far.
        prompt_tokens: number of tokens of the prompt.
        cached_tokens: number of prompt tokens that a generator of the pool had already processed.
        finish_reason: "stop" (an end token or a stop string), "length" or "cancelled"; ``None`` before the end.
        logprobs: one entry for each token in `tokens` if `generate` was called with `logprobs`.
    """

    def __init__(
        self,
        generator: Generator,
        tokenizer: Tokenizer,
        prompt_tokens: int,
        max_tokens: int | None,
        stop: Sequence[str],
        deadline: float | None,
        timeout: float | None,
        logprobs: int | None = None,
        release: Release | None = None,
    ) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._generator = generator
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._stop = tuple(stop)
        self._deadline = deadline
        self._timeout = timeout
        self._top = logprobs
        self._held = ""
        self._cancelled = False
        self._release = release
        # Lock that keeps `cancel` from acting after the end of the answer, when the generator may be reused.
        self._lock = renew_in_forks(Lock())
        self._stats: GenerationStats | None = None

    def _shown_name(self) -> str:
        return self._generator._shown_name()

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"{counted(len(self.tokens), 'token')} after a prompt of {self.prompt_tokens}", ""
        if self.cached_tokens:
            yield f"{self.cached_tokens} cached", ""
        yield f"finished: {self.finish_reason}" if self.finish_reason else "not finished", ""
        yield beginning(self.text), ""
        yield from more([self.text if beginning(self.text) != f'"{self.text}"' else ""])

    def __next__(self) -> str:
        while self.finish_reason is None:
            piece = self._next_piece()
            if piece:
                self.text += piece
                return piece
        if self._held and self.finish_reason != "cancelled":
            piece, self._held = self._held, ""
            self.text += piece
            return piece
        raise StopIteration

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            if self._stats is not None:
                return
            # Keep the generator only after a completed answer, because otherwise its state is unknown.
            keep = not self._cancelled and self.finish_reason in ("stop", "length")
            self._cancelled = True
            self._stats = dataclasses.replace(self._generator.stats)
        if self._release is not None:
            self._release(keep)
        else:
            self._generator.close()

    @property
    def stats(self) -> GenerationStats:
        """Counters of the generation, such as its restarts in new hosts."""
        return self._stats or self._generator.stats

    def cancel(self) -> None:
        """Stop before the next token, or, while the model processes the prompt, before its next node. Return
        immediately."""
        with self._lock:
            if self._stats is not None:
                return
            self._cancelled = True
        flag = self._generator._remote.stopping
        # Set the flag in another thread, because `assign` waits for the host's answer.
        start_thread("qnnbridge cancel", flag.assign, True)

    def begin(self, prompt: _ReadPrompt) -> None:
        """Process the part of the prompt that the generator has not processed yet. Called by `generate`."""
        have = self._generator.token_count()
        self._generator._remote.decode_with(self._tokenizer.remade, len(prompt.tokens))
        try:
            if prompt.inputs is not None:
                self._generator.set_inputs(prompt.inputs)
            else:
                # Generate the first token in the same request, unless its logits must be read first.
                self._generator._remote.append(tokens_of(prompt.tokens[have:]), 1 if self._top is None else 0)
        except Cancelled:
            self._end_if_cancelled()
        # After a replay no token counts as cached, because the whole history was processed again.
        self.cached_tokens = 0 if self.stats.replays else have

    def _next_piece(self) -> str:
        if self._cancelled:
            return self._finish("cancelled")
        # End tokens are handled below, so a generator that is done here has reached its maximum length.
        if self._generator.is_done() or len(self.tokens) == self._max_tokens:
            return self._finish("length")
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if left is not None and left <= 0:
            self._finish("cancelled")
            raise DeadlineExceeded(
                f"The answer was not complete within {self._timeout:g} s.",
                cause=f"{len(self.tokens)} tokens were generated in that time.",
                fix="Increase timeout, or decrease max_tokens.",
                details={"state": "stopped", "tokens": len(self.tokens)},
            )
        if left is not None:
            self._generator.timeout = left
        logits = None
        try:
            if self._top is not None:
                # Read the logits before generating the token: later they are the logits of the next token.
                logits = self._generator.get_logits()
            self._generator.generate_next_token()
        except Cancelled:
            return self._end_if_cancelled()
        token = int(self._generator.get_next_tokens()[0])
        self.tokens.append(token)
        if logits is not None:
            # The offset includes the text held back in `_held`, because that text comes before this token.
            before = len(self.text) + len(self._held)
            self.logprobs.append(_logprobs(logits, token, before, self._top or 0))
        # The end token belongs to `tokens`, but not to the text.
        if token in self._generator._model.info.eos:
            return self._finish("stop")
        return self._up_to_stop(self._generator._remote.text)

    def _up_to_stop(self, piece: str) -> str:
        """Return the text up to a stop string. If the text ends with the beginning of a stop string, keep that part
        until the next token shows whether the stop string continues."""
        if not self._stop:
            return piece
        text = self._held + piece
        # Search the held text, too, because a stop string may consist of several tokens.
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self._held = ""
            self._finish("stop")
            return text[: min(found)]
        # Length of the longest suffix that begins a stop string. Complete stop strings were found above.
        keep = max(
            (n for stop in self._stop for n in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:n])),
            default=0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _end_if_cancelled(self) -> str:
        """Finish the answer if `cancel` was called; otherwise raise the current `Cancelled` exception again."""
        if not self._cancelled:
            raise
        return self._finish("cancelled")

    def _finish(self, reason: FinishReason) -> str:
        self.finish_reason = reason
        # Stop generating ahead in the host, so that other generations can run.
        self._generator._remote.settle()
        return ""


def generate(
    model: Model,
    prompt: Prompt,
    *,
    tokenizer: Tokenizer | None = None,
    max_tokens: int | None = None,
    stop: str | Sequence[str] = (),
    timeout: float | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    guidance: tuple[str, str] | None = None,
    template: str | None = None,
    logprobs: int | None = None,
    on_begin: Callable[[TextStream], object] | None = None,
    pool: GeneratorPool | None = None,
    cache_salt: str = "",
    **search: Any,
) -> TextStream:
    """Generate an answer.

    Args:
        model: the model.
        prompt: a string, used unchanged; token ids; inputs of a `MultiModalProcessor`; or messages (role, content)
            for the chat template. The content of a message is a string, or a list of parts: {"type": "text",
            "text": ...}, {"type": "image"} and {"type": "audio"}, the last two with "path", or with the bytes of a
            file as "image" or "audio".
        tokenizer: tokenizer of the model. Default: a new one.
        max_tokens: maximum number of tokens of the answer. Default: as many as fit into the context.
        stop: strings that end the answer. The answer does not include them.
        timeout: seconds for the whole answer, including tokenizer and chat template, until `DeadlineExceeded` is
            raised. Default: no limit.
        seed: seed of the random numbers.
        temperature: 0 always selects the most likely token, other values sample. Default: the model's config.
        top_p, top_k: restrict sampling to the most likely tokens.
        guidance: type and text of a grammar, as in `GeneratorParams.set_guidance`.
        template: chat template to use instead of the model's.
        logprobs: number of most likely tokens in `TextStream.logprobs` for each token. The host then generates
            one token at a time. Default: `TextStream.logprobs` stays empty.
        on_begin: called with the stream before the prompt is processed, so that another thread can cancel it.
        pool: pool that keeps the generator after the `with` block, for later prompts that begin with the same
            tokens. Default: every answer has a new generator.
        cache_salt: only prompts with the same salt share generators of the pool. Use a different salt for each
            user.
        search: further search options, see `GeneratorParams.set_search_options`.

    Returns:
        Iterator over the pieces of the answer. The prompt has been processed already.

    Raises:
        OptionError: an option is out of range, or requests several sequences (beams, batches).
        PromptRefused: the prompt is empty or too long, or a picture or recording cannot be read.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if "" in stop:
        raise OptionError("stop contains an empty string.")
    if max_tokens is not None and max_tokens < 1:
        raise OptionError(f"max_tokens={max_tokens} is less than 1.", fix="Give a positive number.")
    if logprobs is not None and logprobs < 0:
        raise OptionError(f"logprobs={logprobs} is negative.", fix="Give 0 or more.")
    tokenizer = tokenizer or Tokenizer(model)
    read = _read(model, tokenizer, prompt, template, deadline)
    tokens = read.tokens
    params = GeneratorParams(model)
    if temperature is not None:
        search |= {"do_sample": False} if temperature == 0 else {"do_sample": True, "temperature": temperature}
    most = None if max_tokens is None else len(tokens) + max_tokens
    params.set_search_options(top_p=top_p, top_k=top_k, random_seed=seed, **search)
    several = several_sequences(params)
    if several:
        raise OptionError(
            f"{several}={params.get_search_options()[several]:g} requests several sequences; generate returns one.",
            cause="generate returns text as it is generated; the best of several sequences is known at the end.",
            fix=f"Pass {several}=1, or set it to 1 in genai_config.json. For several sequences, use a Generator.",
        )
    if guidance is not None:
        params.set_guidance(*guidance)
    reusable = pool is not None and pool.takes(model) and can_reuse(params)
    if logprobs is not None or read.inputs is not None or not reusable:
        pool = None
    # Set max_length, so that the host does not generate beyond max_tokens. genai refuses a max_length above the
    # context length. A generator of a pool gets the whole context, since max_length cannot be changed later.
    if most is not None and most < model.info.context_length and "max_length" not in search:
        params.set_search_options(max_length=most if pool is None else model.info.context_length)
    left_s = _left_s(deadline)
    generator = Generator(model, params) if pool is None else pool.take(model, params, tokens, cache_salt)
    generator.timeout = left_s
    generator._remote.most = most
    release = None
    if pool is not None:
        release = functools.partial(_release, pool, model, params, generator, cache_salt)
    stream = TextStream(generator, tokenizer, len(tokens), max_tokens, stop, deadline, timeout, logprobs, release)
    try:
        if on_begin is not None:
            on_begin(stream)
        try:
            stream.begin(read)
        except BridgeError as error:
            # If memory ran out, free the pool's idle generators and try again.
            short = isinstance(error, Busy) or error.details.get("npu_memory")
            if pool is None or not short or not pool.clear():
                raise
            stream.begin(read)
    except BaseException:
        stream.__exit__()  # otherwise the error's traceback would keep the KV cache alive
        raise
    return stream


def _release(
    pool: GeneratorPool, model: Model, params: GeneratorParams, generator: Generator, salt: str, keep: bool
) -> None:
    pool.put(model, params, generator, salt, keep=keep)


def _left_s(deadline: float | None) -> float | None:
    """Return the seconds until the deadline. Raise `DeadlineExceeded` if the deadline has passed."""
    left_s = None if deadline is None else deadline - time.monotonic()
    if left_s is not None and left_s <= 0:
        raise DeadlineExceeded(
            "The timeout of generate expired before the first token.",
            fix="Increase timeout, or shorten the prompt.",
            details={"state": "not-started", "tokens": 0},
        )
    return left_s


@dataclasses.dataclass(frozen=True, slots=True)
class _ReadPrompt:
    """Tokenized prompt. tokens: its token ids. inputs: the model's inputs if the prompt has pictures or sound."""

    tokens: Sequence[int]
    inputs: NamedTensors | None = None


def _read(
    model: Model, tokenizer: Tokenizer, prompt: Prompt, template: str | None, deadline: float | None
) -> _ReadPrompt:
    if isinstance(prompt, NamedTensors):
        return _ReadPrompt(tokens_of(prompt[INPUT_IDS]), prompt)
    pictures: Sequence[bytes] = ()
    sounds: Sequence[bytes] = ()
    if not isinstance(prompt, str):
        given: list[Any] = list(prompt)
        if given and not isinstance(given[0], Mapping):
            return _ReadPrompt(given)
        given, pictures, sounds = split_media(model.info, given)
        prompt = tokenizer.apply_chat_template(json.dumps(given), template_str=template, timeout=_left_s(deadline))
    if not pictures and not sounds:
        return _ReadPrompt([int(token) for token in tokenizer.encode(prompt, timeout=_left_s(deadline))])
    inputs = model.create_multimodal_processor()(
        prompt,
        images=Images.open_bytes(*pictures) if pictures else None,
        audios=Audios.open_bytes(*sounds) if sounds else None,
        timeout=_left_s(deadline),
    )
    return _ReadPrompt(tokens_of(inputs[INPUT_IDS]), inputs)


def _logprobs(logits: Any, token: int, offset: int, count: int) -> TokenLogprobs:
    import numpy as np

    # Use the last row: earlier rows belong to tokens of the prompt.
    row = np.asarray(logits).reshape(-1, logits.shape[-1])[-1].astype(np.float64)
    # Subtract the largest value, so that no exponential overflows.
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    # Use a stable sort: among equal values, the smaller token id comes first.
    best = np.argsort(-row, kind="stable")[:count]
    return TokenLogprobs(token, float(row[token]), offset, tuple((int(one), float(row[one])) for one in best))
