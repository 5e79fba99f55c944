"""Generate answers of a language model, and write their JSON documents, complete or streamed.

Generating runs in a worker thread; the functions for documents are pure.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from qnnbridge_protocol.errors import BridgeError, GenerationError, OptionError, PromptRefused, TooLarge
from qnnbridge_serve.errors import Refused, error_text, wrong
from qnnbridge_serve.openai_forms import MOST_SEED, GenerationRequest, error_document
from qnnbridge_serve.openai_media import LeftS, decode_media
from qnnbridge_serve.openai_tools import CallForm, CallReader, PartKind, grammar_of, learn_form
from qnnbridge_serve.options import MediaLimits
from qnnbridge_tools.generation.measuring import Pace

if TYPE_CHECKING:
    from qnnbridge.genai import GeneratorPool, NamedTensors, TextStream, Tokenizer
    from qnnbridge_serve.repository import LanguageModel


# Log probability that OpenAI writes for an impossible token.
_NEVER: Final = -9999.0


@dataclasses.dataclass(frozen=True, slots=True)
class TokenScore:
    """Token of an answer, with its probability.

    Args:
        text: text of the token.
        logprob: natural logarithm of its probability.
        offset: number of characters of the answer before it.
        top: texts and log probabilities of the most likely tokens.
    """

    text: str
    logprob: float
    offset: int
    top: tuple[tuple[str, float], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Part of an answer.

    Args:
        choice: number of the answer.
        text: text of the part.
        kind: what `text` is: text of the answer, name of a called function, or arguments of the call.
        scores: scores of the part's tokens.
        call: id of the call, if `text` is the name of a function.
    """

    choice: int
    text: str
    kind: PartKind = "text"
    scores: tuple[TokenScore, ...] = ()
    call: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """End of an answer. choice: number of the answer. finish: OpenAI's finish_reason."""

    choice: int
    finish: str


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of tokens of a request. cached: prompt tokens that were already in a KV cache."""

    prompt: int
    answer: int
    cached: int = 0

    def document(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.answer,
            "total_tokens": self.prompt + self.answer,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


Part = Piece | Finished


class Form(Protocol):
    """Format in which the answer to a request is sent.

    For a language model, `parts` are `Part` objects and `counts` is a `Counts`; for a speech model, `parts` are
    segments and `counts` is the transcript.
    """

    def whole(self, parts: Any, counts: Any) -> Any:
        """Return the complete document."""

    def opening(self) -> list[bytes]:
        """Return the first events of a stream."""

    def part(self, part: Any) -> list[bytes]: ...

    def closing(self, counts: Any) -> list[bytes]:
        """Return the last events of a stream."""

    def failure(self, refused: Refused) -> list[bytes]:
        """Return the last events of a stream that fails."""


# Function that creates the format of an answer. Arguments: request, seconds since 1970, fingerprint of the model.
MakeForm = Callable[[GenerationRequest, int, str], Form]


def event(document: Any, name: str = "") -> bytes:
    """Return a server-sent event."""
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(document)}\n\n".encode()


DONE: Final = b"data: [DONE]\n\n"


@dataclasses.dataclass(slots=True)
class Choice:
    """Complete answer, assembled from its parts. calls: id, name and arguments of each function call."""

    text: str = ""
    calls: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    finish: str = "stop"
    scores: list[TokenScore] = dataclasses.field(default_factory=list)

    def add(self, part: Part) -> None:
        if isinstance(part, Finished):
            self.finish = part.finish
            return
        self.scores += part.scores
        if part.kind == "text":
            self.text += part.text
        elif part.kind == "name":
            self.calls.append((part.call, part.text, ""))
        else:
            number, name, arguments = self.calls.pop()
            self.calls.append((number, name, arguments + part.text))


def gathered(parts: Iterable[Part]) -> dict[int, Choice]:
    found: dict[int, Choice] = {}
    for part in parts:
        found.setdefault(part.choice, Choice()).add(part)
    return found


def call_id(*, short: bool = False) -> str:
    """Return a new id for a call. short: nine letters and digits, as some chat templates require."""
    return uuid.uuid4().hex[:9] if short else f"call_{uuid.uuid4().hex[:24]}"


class AnswerForm:
    """Format of /v1/chat/completions and /v1/completions.

    Args:
        asked: the request.
        created: seconds since 1970.
        fingerprint: fingerprint of the model.
    """

    def __init__(self, asked: GenerationRequest, created: int, fingerprint: str) -> None:
        self._asked = asked
        # Number of function calls that have begun, by number of the answer.
        self._calls: collections.Counter[int] = collections.Counter()
        self._is_chat = asked.kind == "chat"
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        self._head = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": created,
            "model": asked.model,
            "system_fingerprint": f"fp_{fingerprint[:12]}",
        }

    def whole(self, parts: Sequence[Part], counts: Counts) -> dict[str, Any]:
        choices = [self._choice(number, one) for number, one in sorted(gathered(parts).items())]
        name = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head, "object": name, "choices": choices, "usage": counts.document()}

    def opening(self) -> list[bytes]:
        if not self._is_chat:
            return []
        start = {"delta": {"role": "assistant", "content": ""}}
        return [event(self._chunk(choice, start)) for choice in range(self._asked.n)]

    def part(self, part: Part) -> list[bytes]:
        if isinstance(part, Finished):
            return [event(self._chunk(part.choice, {"delta": {}} if self._is_chat else {"text": ""}, part.finish))]
        if not self._is_chat:
            content: dict[str, Any] = {"text": part.text}
        elif part.kind == "text":
            content = {"delta": {"content": part.text}}
        elif part.kind == "name":
            called = {"name": part.text, "arguments": ""}
            begun = {"index": self._calls[part.choice], "id": part.call, "type": "function", "function": called}
            self._calls[part.choice] += 1
            content = {"delta": {"tool_calls": [begun]}}
        else:
            more = {"index": self._calls[part.choice] - 1, "function": {"arguments": part.text}}
            content = {"delta": {"tool_calls": [more]}}
        return [event(self._chunk(part.choice, content, scores=part.scores))]

    def closing(self, counts: Counts) -> list[bytes]:
        if not self._asked.usage:
            return [DONE]
        # Send the counts in a separate chunk without choices, like OpenAI.
        return [event({**self._chunk(0, {}), "choices": [], "usage": counts.document()}), DONE]

    def failure(self, refused: Refused) -> list[bytes]:
        return [event(error_document(refused))]

    def _choice(self, number: int, one: Choice) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, **self._scored(one.scores), "finish_reason": one.finish}
        if not self._is_chat:
            return {**choice, "text": one.text}
        message: dict[str, Any] = {"role": "assistant", "content": one.text, "refusal": None}
        if one.calls:
            message["content"] = one.text if one.text.strip() else None
            message["tool_calls"] = [
                {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
                for number, name, arguments in one.calls
            ]
        return {**choice, "message": message}

    def _chunk(
        self, choice: int, content: Mapping[str, Any], finish: str | None = None, scores: Sequence[TokenScore] = ()
    ) -> dict[str, Any]:
        name = "chat.completion.chunk" if self._is_chat else "text_completion"
        found = {"index": choice, **content, **self._scored(scores), "finish_reason": finish}
        # Like OpenAI, set the field to null in all other chunks if the stream ends with the token counts.
        usage = {"usage": None} if self._asked.usage else {}
        return {**self._head, "object": name, "choices": [found], **usage}

    def _scored(self, scores: Sequence[TokenScore]) -> dict[str, Any]:
        if self._asked.logprobs is None or (not scores and self._asked.stream):
            return {"logprobs": None}
        if self._is_chat:
            return {"logprobs": {"content": [score_document(one) for one in scores], "refusal": None}}
        # Several tokens may have the same text, if each is only a part of a character. Of these, keep the most
        # likely token.
        top = [{text: finite(value) for text, value in reversed(one.top)} for one in scores]
        return {
            "logprobs": {
                "tokens": [one.text for one in scores],
                "token_logprobs": [finite(one.logprob) for one in scores],
                "top_logprobs": top if self._asked.logprobs else None,
                "text_offset": [one.offset for one in scores],
            }
        }


def score_document(score: TokenScore) -> dict[str, Any]:
    top = [_token(text, logprob) for text, logprob in score.top]
    return {**_token(score.text, score.logprob), "top_logprobs": top}


def _token(text: str, logprob: float) -> dict[str, Any]:
    # "\ufffd" shows that the token is only a part of a character. Its bytes are then unknown.
    letters = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": finite(logprob), "bytes": letters}


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _NEVER


# --- plans: prompt and guidance of each answer to a request ---


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Everything that is needed to generate one answer.

    Args:
        number: number of the answer.
        prompt: number of the prompt.
        text: the prompt: a text, token ids, or inputs of a model for pictures and sound.
        seed: seed of the random numbers; ``None`` for none.
        guidance: type and text of the grammar; ``None`` for none.
        form: format in which the model writes function calls; ``None`` if the request has no functions.
    """

    number: int
    prompt: int
    text: Any
    seed: int | None
    guidance: tuple[str, str] | None
    form: CallForm | None


def choices_of(
    asked: GenerationRequest,
    model: LanguageModel,
    left_s: LeftS = lambda: None,
    media: MediaLimits | None = None,
) -> Iterator[AnswerPlan]:
    """Yield the plans of all answers to a request, in order. Raise `Refused` or `DeadlineExceeded`."""
    form: CallForm | None = None
    guidance = None if asked.schema is None else ("json_schema", asked.schema)
    prompts: list[Any] = [one if isinstance(one, str) else list(one) for one in asked.prompts]
    if asked.kind == "chat":
        asked, pictures, sounds = _with_media(asked, model, media or MediaLimits(), left_s)
        text, form = _rendered(asked, model.tokenizer, left_s)
        prompts = [text if not asked.media else _inputs(model, text, pictures, sounds, left_s)]
        if form is not None and asked.tools is not None:
            guidance = ("lark_grammar", grammar_of(form, asked.tools))
    seed = asked.search.get("seed")
    for prompt, text in enumerate(prompts):
        for number in range(prompt * asked.n, (prompt + 1) * asked.n):
            # Use another seed for each answer, because with the same seed all answers would be equal.
            own = None if seed is None else (seed + number - prompt * asked.n) % MOST_SEED
            yield AnswerPlan(number, prompt, text, own, guidance, form)


def _with_media(
    asked: GenerationRequest, model: LanguageModel, limits: MediaLimits, left_s: LeftS
) -> tuple[GenerationRequest, list[bytes], list[bytes]]:
    """Return the request with placeholders instead of pictures and recordings, the pictures, and the recordings."""
    if not asked.media:
        return asked, [], []
    from qnnbridge.genai._parts import split_media

    contents = decode_media(asked.media, limits, left_s)
    messages = json.loads(asked.messages)
    for message in messages:
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if "media" in part:
                part[part["type"]] = contents[part.pop("media")]
    messages, pictures, sounds = split_media(model.model.info, messages)
    return dataclasses.replace(asked, messages=json.dumps(messages)), pictures, sounds


def _inputs(
    model: LanguageModel, text: str, pictures: Sequence[bytes], sounds: Sequence[bytes], left_s: LeftS
) -> NamedTensors:
    from qnnbridge.genai import Audios, Images

    try:
        return model.model.create_multimodal_processor()(
            text,
            images=Images.open_bytes(*pictures) if pictures else None,
            audios=Audios.open_bytes(*sounds) if sounds else None,
            timeout=left_s(),
        )
    except PromptRefused as error:
        raise wrong(error_text(error), "messages") from error


def _rendered(asked: GenerationRequest, tokenizer: Tokenizer, left_s: LeftS) -> tuple[str, CallForm | None]:
    """Return the prompt of a conversation, and the format of function calls if there are functions."""

    def render(messages: str, tools: str | None, add: bool) -> str:
        try:
            return tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=add, timeout=left_s())
        except GenerationError as error:
            text = f"The model's chat template refuses the messages: {error_text(error)}"
            raise wrong(text, "messages") from error

    tools = None if asked.tools is None else asked.tools.tools
    text, form = render(asked.messages, tools, True), None
    if tools is not None:
        if text == render(asked.messages, None, True):
            raise wrong(
                "The model's chat template does not support functions. Leave tools out, or serve a model that "
                "supports them.",
                "tools",
            )
        form = learn_form(render, lambda word: _special(tokenizer, word, left_s), tools)
    left_out = [name for name in asked.called if name not in text]
    if left_out:
        names = ", ".join(left_out)[:200]
        raise wrong(f"The model's chat template omits function calls of earlier messages: {names}.", "messages")
    return text, form


def _special(tokenizer: Tokenizer, word: str, left_s: LeftS) -> int | None:
    """Return the id of `word` if the word is a special token, which decoding omits from the text; else ``None``."""
    tokens = [int(token) for token in tokenizer.encode(word, timeout=left_s())]
    beside = [int(token) for token in tokenizer.encode("x", timeout=left_s())]
    is_one = len(tokens) == 1 and word not in tokenizer.decode([*beside, *tokens, *beside], timeout=left_s())
    return tokens[0] if is_one else None


# --- generating an answer ---


def open_choice(
    asked: GenerationRequest,
    model: LanguageModel,
    choice: AnswerPlan,
    timeout_s: float | None,
    on_begin: Callable[[TextStream], object],
    pool: GeneratorPool | None = None,
    cache_salt: str = "",
) -> TextStream:
    """Start generating an answer. Raise `Refused` for an error of the client."""
    from qnnbridge.genai import generate

    options = dict(asked.search)
    if choice.seed is not None:
        options["seed"] = choice.seed
    if asked.logprobs is not None:
        options["logprobs"] = asked.logprobs
    field = "messages" if asked.kind == "chat" else "prompt"
    try:
        return generate(
            model.model,
            choice.text,
            tokenizer=model.tokenizer,
            max_tokens=asked.max_tokens,
            stop=asked.stop,
            timeout=timeout_s,
            guidance=choice.guidance,
            on_begin=on_begin,
            pool=pool,
            cache_salt=cache_salt,
            **options,
        )
    except PromptRefused as error:
        # Use OpenAI's code context_length_exceeded: clients then shorten the conversation and try again.
        raise (
            _too_long(error, field) if "context_length" in error.details else wrong(error_text(error), field)
        ) from error
    except TooLarge as error:
        raise _too_long(error, field) from error
    except OptionError as error:
        raise wrong(error_text(error), error.details.get("option")) from error
    except GenerationError as error:
        if choice.guidance is None:
            raise
        raise _schema_refused(error, choice) from error


def _schema_refused(error: GenerationError, choice: AnswerPlan) -> Refused:
    text = f"The answer cannot follow the schema: {error_text(error)}"
    return wrong(text, "response_format" if choice.form is None else "tools")


def _too_long(error: BridgeError, field: str) -> Refused:
    """Return an error with OpenAI's wording: clients that recognise it shorten the conversation."""
    context, tokens = (error.details.get(name) for name in ("context_length", "tokens"))
    text = error_text(error)
    if context is not None:
        given = f" However, your {field} resulted in {tokens} tokens." if tokens is not None else ""
        text = f"This model's maximum context length is {context} tokens.{given}\n{text}"
    return wrong(text, field, "context_length_exceeded")


def parts_of(
    asked: GenerationRequest,
    model: LanguageModel,
    choice: AnswerPlan,
    stream: TextStream,
    pace: Pace,
    left_s: LeftS = lambda: None,
) -> Iterator[Part]:
    """Yield the parts of an answer. The last part is `Finished`, unless the answer was cancelled."""
    form = choice.form
    calls = None if form is None or asked.tools is None else CallReader(form, asked.tools)
    scores = None if asked.logprobs is None else _Scores(model.tokenizer, stream, left_s)
    special = None if form is None else form.special
    seen = 0
    while True:
        try:
            piece = next(stream, None)
        except GenerationError as error:
            # A grammar may fail within an answer: the guidance library compiles parts of it only when the answer
            # reaches them.
            if "guidance" in error.details:
                raise _schema_refused(error, choice) from error
            raise
        new = stream.tokens[seen:]
        if new:
            pace.token(len(new))
            seen += len(new)
        if piece is None:
            break
        if calls is None:
            yield Piece(choice.number, piece, scores=() if scores is None else scores.take())
        else:
            for kind, text in calls.feed(piece, special=special in new):
                number = call_id(short=form.short_ids) if kind == "name" and form is not None else ""
                yield Piece(choice.number, text, kind, call=number)
    if stream.finish_reason == "cancelled":
        return
    if calls is not None:
        for kind, text in calls.end():
            yield Piece(choice.number, text, kind)
    left = () if scores is None else scores.take(last=True)
    if left:
        yield Piece(choice.number, "", scores=left)
    finish = "length" if stream.finish_reason == "length" else "stop"
    yield Finished(choice.number, "tool_calls" if calls is not None and calls.complete else finish)


class _Scores:
    """Scores of tokens, which are held back until the text of the tokens is returned."""

    def __init__(self, tokenizer: Tokenizer, stream: TextStream, left_s: LeftS) -> None:
        self._tokenizer = tokenizer
        self._left_s = left_s
        self._stream = stream
        self._used = 0

    def take(self, *, last: bool = False) -> tuple[TokenScore, ...]:
        """Return scores of tokens that begin within the text so far. last: include tokens without text."""
        stream = self._stream
        new = stream.logprobs[self._used :]
        if not (last and stream.finish_reason == "length"):
            # Omit tokens that begin after the text so far: an end token, a stop text, or a possible beginning of a
            # stop text.
            with contextlib.suppress(StopIteration):
                new = new[: next(i for i, one in enumerate(new) if one.offset >= len(stream.text))]
        if not new:
            return ()
        self._used += len(new)
        numbers = [[number] for one in new for number in (one.token, *(token for token, _ in one.top))]
        texts = iter(self._tokenizer.decode_batch(numbers, timeout=self._left_s()))
        return tuple(
            TokenScore(next(texts), one.logprob, one.offset, tuple((next(texts), value) for _, value in one.top))
            for one in new
        )
