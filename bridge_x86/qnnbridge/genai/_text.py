"""Texts and tokens: the tokenizer, and `generate`, from a prompt to text with stop texts, deadline and cancel."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge._supervision.host_process import deadline_after
from qnnbridge.genai._generation import GenerationStats, Generator, GeneratorParams
from qnnbridge.genai._model import Model, Remade, call_object, operation_request, survive, token_values, tokens_of
from qnnbridge.genai._pool import GeneratorPool, can_reuse
from qnnbridge.genai._tensors import Tensor
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_os.shield import start_thread
from qnnbridge_protocol.errors import (
    BridgeError,
    Busy,
    Cancelled,
    DeadlineExceeded,
    GenerationUnsupported,
    OptionError,
    PromptRefused,
    desync,
)
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.shown import Shown, beginning, counted, more

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge_protocol.frames import Frame
    from qnnbridge_protocol.shown import Fact


# --- tokenizer ---


class Tokenizer(Shown):
    """The model's tokenizer. Any thread.

    ``timeout=`` of its methods: seconds that the call may take, then `DeadlineExceeded`. Default: no limit.
    """

    def __init__(self, model: Model) -> None:
        self._model = model._remote
        self._options: dict[str, str] = {}
        self._ids: dict[str, Any] | None = None
        # A local name: with `self` in the function the tokenizer and `remade` would keep each other.
        options = self._options
        self.remade = self._model.child("GenaiTokenizer", "tokenizer", lambda: {"options": options})

    def _shown_name(self) -> str:
        return self._model.recipe.label

    def _shown_facts(self) -> Iterator[Fact]:
        for name, value in list(self._options.items()):
            yield f"{name}={value}", ""

    def encode(self, text: str, *, timeout: float | None = None) -> npt.NDArray[np.int32]:
        """The tokens of a text."""
        import numpy as np

        return np.asarray(self._call("encode", {"texts": [_whole(str(text))]}, timeout=timeout)[0], np.int32)

    def encode_batch(self, texts: Sequence[str]) -> Tensor:
        """The tokens of several texts, padded on the right."""
        import numpy as np

        rows = self._call("encode", {"texts": [_whole(str(text)) for text in texts]})
        padded = np.full((len(rows), max(map(len, rows), default=0)), self.pad_token_id, np.int32)
        for row, tokens in zip(padded, rows, strict=True):
            row[: len(tokens)] = tokens
        return Tensor(padded)

    def decode(self, tokens: Any, *, timeout: float | None = None) -> str:
        """The text of tokens."""
        return str(self._call("decode", {}, token_values(tokens_of(tokens)), timeout)[0])

    def decode_batch(self, tokens: Any, *, timeout: float | None = None) -> list[str]:
        """The texts of several rows of tokens."""
        rows = tokens.as_numpy() if isinstance(tokens, Tensor) else tokens
        return list(self._call("decode", {}, token_values(*(tokens_of(row) for row in rows)), timeout))

    def to_token_id(self, text: str) -> int:
        """The id of a single token by its text."""
        return int(self._call("to_token_id", {"text": str(text)}))

    def apply_chat_template(
        self,
        messages: str,
        *,
        template_str: str | None = None,
        tools: str | None = None,
        add_generation_prompt: bool = True,
        timeout: float | None = None,
    ) -> str:
        """The prompt for a conversation: JSON list of maps with role and content."""
        # An escape of JSON, unless its backslash is one that is escaped itself.
        if "\\u0000" in str(messages).replace("\\\\", ""):
            raise _cut_off()
        arguments = {
            "messages": _whole(str(messages)),
            "template": template_str,
            "tools": tools,
            "add_generation_prompt": bool(add_generation_prompt),
        }
        return str(self._call("apply_chat_template", arguments, timeout=timeout))

    def update_options(self, **options: Any) -> None:
        """Set options of this tokenizer: add_special_tokens, skip_special_tokens."""
        texts = {name: _option_text(value) for name, value in options.items()}
        self._call("update_options", {"options": texts})
        # Behind the call: an option that genai refuses would make each further tokenizer fail.
        self._options.update(texts)

    def create_stream(self) -> TokenizerStream:
        """A decoder for single tokens."""
        return TokenizerStream(self)

    @property
    def bos_token_id(self) -> int:
        return int(self._special("bos_token_id"))

    @property
    def pad_token_id(self) -> int:
        return int(self._special("pad_token_id"))

    @property
    def eos_token_ids(self) -> npt.NDArray[np.int32]:
        import numpy as np

        return np.asarray(self._special("eos_token_ids"), np.int32)

    def _special(self, name: str) -> Any:
        if self._ids is None:
            self._ids = self._call("ids", {})
        if self._ids[name] is None:
            raise GenerationUnsupported(f"The tokenizer does not tell its {name}.")
        return self._ids[name]

    def _call(
        self,
        operation: str,
        arguments: dict[str, Any],
        values: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> Any:
        frame = self.on_object(self.remade, operation, arguments, values, timeout)
        return field(frame.header, "result", "Any")

    def on_object(
        self,
        remade: Remade,
        operation: str,
        arguments: dict[str, Any],
        values: Sequence[Any],
        timeout: float | None = None,
    ) -> Frame:
        """Call an operation of the tokenizer, or of a stream of it."""
        deadline = deadline_after(timeout)
        context = self._model.context_of(f"a call of its tokenizer ({operation})", [operation, arguments], values)

        def attempt(process: HostProcess) -> Frame:
            number = remade.number_in(process, deadline)
            return call_object(process, number, operation, arguments, values, deadline, context)

        return survive(self._model.host, attempt, context, deadline, timeout)


class TokenizerStream(Shown):
    """Decodes tokens one by one; a token may give no text until the next one. One thread at a time.

    Tokens that a generator of the model has made ahead are decoded in the same call as the one before them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # What the application has given, and what the host's stream has been given beyond that, with its texts.
        self._given: list[int] = []
        self._known: collections.deque[tuple[int, str]] = collections.deque()
        self._remade = self._new()

    def _shown_name(self) -> str:
        return self._tokenizer._shown_name()

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"{counted(len(self._given), 'token')} decoded", ""

    def decode(self, token: int, *, timeout: float | None = None) -> str:
        """The text that a token adds. timeout: seconds, then `DeadlineExceeded`."""
        token = int(token)
        # The application decodes another token than the one made ahead. The host's stream has the latter already,
        # and cannot go back: a new stream gets what was given, and no more.
        if self._known and self._known[0][0] != token:
            self._known.clear()
            self._remade.forget()
            self._remade = self._new()
        if not self._known:
            tokens = [token, *self._ahead(token)]
            reply = self._tokenizer.on_object(self._remade, "decode", {"tokens": tokens}, (), timeout)
            pieces = field(reply.header, "result", "tuple[str, ...]")
            if len(pieces) != len(tokens):
                raise desync(f"{len(pieces)} texts for {len(tokens)} tokens")
            self._known.extend(zip(tokens, pieces, strict=True))
        _, piece = self._known.popleft()
        self._given.append(token)
        return piece

    def _ahead(self, token: int) -> list[int]:
        """Tokens that are likely to be given next."""
        reference = self._tokenizer._model.ahead
        generation = None if reference is None else reference()
        # The stream may serve another generation of the model. Its last token is the sign that it does not.
        if generation is None or generation.tokens[-1:] != [token]:
            return []
        return list(generation.ahead)

    def _new(self) -> Remade:
        tokenizer, given = self._tokenizer, self._given

        def make(process: HostProcess, deadline: float | None) -> Any:
            number = tokenizer.remade.number_in(process, deadline)
            values = token_values(given) if given else []
            header, buffers = operation_request(number, "stream", {}, values)
            return header, buffers, tokenizer._model.context

        return Remade(tokenizer._model.host, "GenaiStream", make)


def _whole(text: str) -> str:
    if "\0" in text:
        raise _cut_off()
    return text


def _cut_off() -> PromptRefused:
    return PromptRefused(
        "A text with a character 0 cannot be encoded.",
        cause="genai takes it for the end of the text, and would answer another prompt.",
        fix="Leave the character out.",
    )


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- answers ---

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
FinishReason = Literal["stop", "length", "cancelled"]
# Gives a generator back to its pool; the argument says whether to keep it.
Release = Callable[[bool], None]


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Probability of a token, before temperature, penalties and guidance.

    Args:
        token: the one that was generated.
        logprob: natural logarithm of its probability.
        offset: characters of the answer before it.
        top: the most likely tokens with theirs, the likeliest first.
    """

    token: int
    logprob: float
    offset: int
    top: tuple[tuple[int, float], ...]


class TextStream(Shown, Iterator[str]):
    """The pieces of an answer, as they are made. One thread at a time, but `cancel` may be called by any.

    Attributes:
        text: the answer so far.
        tokens: its tokens.
        prompt_tokens: number of tokens of the prompt.
        cached_tokens: how many of them a generator of the pool had processed before.
        finish_reason: "stop" (an end token or a stop text), "length" or "cancelled"; ``None`` before the end.
        logprobs: one for each of `tokens`, if `generate` was asked for them.
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
        self._pieces = tokenizer.create_stream()
        self._max_tokens = max_tokens
        self._stop = tuple(stop)
        self._deadline = deadline
        self._timeout = timeout
        self._top = logprobs
        self._held = ""
        self._cancelled = False
        self._release = release
        # Held between the end of the answer and `cancel`: the generator may serve another answer afterwards.
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
            # Only an answer that has ended by itself leaves a generator in a known state.
            keep = not self._cancelled and self.finish_reason in ("stop", "length")
            self._cancelled = True
            self._stats = dataclasses.replace(self._generator.stats)
        if self._release is not None:
            self._release(keep)
        else:
            self._generator.close()

    @property
    def stats(self) -> GenerationStats:
        """What was done to keep the generation right."""
        return self._stats or self._generator.stats

    def cancel(self) -> None:
        """Stop the answer before its next token, or the prompt between two nodes of the model. Returns at once."""
        with self._lock:
            if self._stats is not None:
                return
            self._cancelled = True
        flag = self._generator._remote.stopping
        # A listener waits for the host's answer, which the caller need not.
        start_thread("qnnbridge cancel", flag.assign, True)

    def begin(self, tokens: Sequence[int]) -> None:
        """Process the prompt, or what the generator does not have of it. By `generate`."""
        have = self._generator.token_count()
        try:
            self._generator.append_tokens(tokens[have:])
        except Cancelled:
            self._end_if_cancelled()
        # A replay has processed the whole history again.
        self.cached_tokens = 0 if self.stats.replays else have

    def _next_piece(self) -> str:
        if self._cancelled:
            return self._finish("cancelled")
        # An end token is seen below when it comes, so what ends here is a limit.
        if self._generator.is_done() or len(self.tokens) == self._max_tokens:
            return self._finish("length")
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if left is not None and left <= 0:
            self._finish("cancelled")
            raise DeadlineExceeded(
                f"The answer was not complete within {self._timeout:g} s.",
                cause=f"{len(self.tokens)} tokens were generated in that time.",
                fix="Allow more time, or fewer tokens.",
                details={"state": "stopped", "tokens": len(self.tokens)},
            )
        if left is not None:
            self._generator.timeout = left
        logits = None
        try:
            if self._top is not None:
                # Before the token: afterwards they would be those of the next one.
                logits = self._generator.get_logits()
            self._generator.generate_next_token()
        except Cancelled:
            return self._end_if_cancelled()
        token = int(self._generator.get_next_tokens()[0])
        self.tokens.append(token)
        if logits is not None:
            # Text that is held back comes before this token as well.
            before = len(self.text) + len(self._held)
            self.logprobs.append(_logprobs(logits, token, before, self._top or 0))
        # The end token belongs to `tokens` and to no text.
        if token in self._generator._model.info.eos:
            return self._finish("stop")
        return self._up_to_stop(self._pieces.decode(token, timeout=_left_s(self._deadline)))

    def _up_to_stop(self, piece: str) -> str:
        """What can be handed out: not a stop text, nor what may be the beginning of one."""
        if not self._stop:
            return piece
        text = self._held + piece
        # In the held text with the new piece: a stop text may come in several tokens.
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self._held = ""
            self._finish("stop")
            return text[: min(found)]
        # The longest end of the text that begins a stop text. `range` leaves out whole ones, found above.
        keep = max(
            (n for stop in self._stop for n in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:n])),
            default=0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _end_if_cancelled(self) -> str:
        """Where `Cancelled` has been caught."""
        if not self._cancelled:
            raise
        return self._finish("cancelled")

    def _finish(self, reason: FinishReason) -> str:
        self.finish_reason = reason
        # The host is ahead by up to a step: it stops now, and other generations of the device get its turn.
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
        prompt: a text, used unchanged; token ids; or messages (role, content) for the chat template.
        tokenizer: the model's; default a new one.
        max_tokens: maximum length of the answer; default as many as fit.
        stop: texts that end the answer; they are not part of it.
        timeout: seconds for the whole answer, the tokenizer and the chat template included, then
            `DeadlineExceeded`. Default: none.
        seed: of random numbers.
        temperature: 0 takes the most likely token, other values sample. Default: as the model's config says.
        top_p, top_k: restrict sampling to the most likely tokens.
        guidance: kind and text of a grammar, as of `GeneratorParams.set_guidance`.
        template: chat template in place of the model's.
        logprobs: number of most likely tokens in `TextStream.logprobs` for each token. The host then makes
            one token at a time. Default: `TextStream.logprobs` stays empty.
        on_begin: called with the stream before the prompt is processed, so that another thread can cancel it.
        pool: keeps the generator at the end of the `with` block, for later prompts that begin with the same
            tokens. Default: every answer has a new generator.
        cache_salt: only prompts with the same salt share generators of the pool. Give each user another one.
        search: further options of the search.

    Returns:
        The pieces of the answer. The prompt has been processed.

    Raises:
        PromptRefused: the prompt is empty or too long.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if "" in stop:
        raise OptionError("An empty text cannot be a stop text.")
    if max_tokens is not None and max_tokens < 1:
        raise OptionError(f"max_tokens={max_tokens} is less than one.", fix="Give a positive number.")
    if logprobs is not None and logprobs < 0:
        raise OptionError(f"logprobs={logprobs} is less than none.", fix="Give 0 or more.")
    tokenizer = tokenizer or Tokenizer(model)
    tokens = _tokens(tokenizer, prompt, template, deadline)
    params = GeneratorParams(model)
    if temperature is not None:
        search |= {"do_sample": False} if temperature == 0 else {"do_sample": True, "temperature": temperature}
    most = None if max_tokens is None else len(tokens) + max_tokens
    params.set_search_options(top_p=top_p, top_k=top_k, random_seed=seed, **search)
    if guidance is not None:
        params.set_guidance(*guidance)
    if logprobs is not None or (pool is not None and not (pool.takes(model) and can_reuse(params))):
        pool = None
    # So the host makes nothing beyond the limit. A max_length above the context would be refused. A kept generator
    # has the whole context, since max_length cannot be changed.
    if most is not None and most < model.info.context_length and "max_length" not in search:
        params.set_search_options(max_length=most if pool is None else model.info.context_length)
    generator = Generator(model, params) if pool is None else pool.take(model, params, tokens, cache_salt)
    generator.timeout = _left_s(deadline)
    generator._remote.most = most
    release = None
    if pool is not None:
        release = functools.partial(_release, pool, model, params, generator, cache_salt)
    stream = TextStream(generator, tokenizer, len(tokens), max_tokens, stop, deadline, timeout, logprobs, release)
    try:
        if on_begin is not None:
            on_begin(stream)
        try:
            stream.begin(tokens)
        except BridgeError as error:
            # Idle generators go first when memory is short.
            short = isinstance(error, Busy) or error.details.get("npu_memory")
            if pool is None or not short or not pool.clear():
                raise
            stream.begin(tokens)
    except BaseException:
        stream.__exit__()  # else its KV cache stays as long as the traceback of the error
        raise
    return stream


def _release(
    pool: GeneratorPool, model: Model, params: GeneratorParams, generator: Generator, salt: str, keep: bool
) -> None:
    pool.put(model, params, generator, salt, keep=keep)


def _left_s(deadline: float | None) -> float | None:
    """Seconds until then, for a call that raises `DeadlineExceeded` itself."""
    return None if deadline is None else max(0.001, deadline - time.monotonic())


def _tokens(tokenizer: Tokenizer, prompt: Prompt, template: str | None, deadline: float | None) -> Sequence[int]:
    if not isinstance(prompt, str):
        given: list[Any] = list(prompt)
        if given and not isinstance(given[0], Mapping):
            return given
        prompt = tokenizer.apply_chat_template(json.dumps(given), template_str=template, timeout=_left_s(deadline))
    return [int(token) for token in tokenizer.encode(prompt, timeout=_left_s(deadline))]


def _logprobs(logits: Any, token: int, offset: int, count: int) -> TokenLogprobs:
    import numpy as np

    # The last row: of several, the others belong to tokens of the prompt.
    row = np.asarray(logits).reshape(-1, logits.shape[-1])[-1].astype(np.float64)
    # The largest becomes 0, so that no exponential overflows.
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    # Stable: of equal ones the smaller token id comes first.
    best = np.argsort(-row, kind="stable")[:count]
    return TokenLogprobs(token, float(row[token]), offset, tuple((int(one), float(row[one])) for one in best))
