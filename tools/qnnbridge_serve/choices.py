"""The answers to one request, one after another: prompt and guidance of each, and its parts as they come.

Called in a worker's thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol.errors import GenerationError, OptionError, PromptRefused, TooLarge
from qnnbridge_serve.errors import Refused, in_words
from qnnbridge_serve.openai_answers import Finished, Part, Piece, TokenScore
from qnnbridge_serve.openai_forms import MOST_SEED, GenerationRequest
from qnnbridge_serve.openai_tools import CallForm, CallReader, grammar_of, learn_form
from qnnbridge_tools.generation.pace import Pace

if TYPE_CHECKING:
    from qnnbridge.genai import TextStream, Tokenizer
    from qnnbridge_serve.language_models import LanguageModel


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What one answer is made from. prompt: its number. form: how functions are called; ``None`` without them."""

    number: int
    prompt: int
    text: Any
    seed: int | None
    guidance: tuple[str, str] | None
    form: CallForm | None


def choices_of(asked: GenerationRequest, model: LanguageModel) -> Iterator[AnswerPlan]:
    """All of a request, in the order of their numbers. Raises `Refused`."""
    form: CallForm | None = None
    guidance = None if asked.schema is None else ("json_schema", asked.schema)
    prompts: list[Any] = [one if isinstance(one, str) else list(one) for one in asked.prompts]
    if asked.kind == "chat":
        text, form = _rendered(asked, model.tokenizer)
        prompts = [text]
        if form is not None and asked.tools is not None:
            guidance = ("lark_grammar", grammar_of(form, asked.tools))
    seed = asked.search.get("seed")
    for prompt, text in enumerate(prompts):
        for number in range(prompt * asked.n, (prompt + 1) * asked.n):
            # One seed would make all of them the same.
            own = None if seed is None else (seed + number - prompt * asked.n) % MOST_SEED
            yield AnswerPlan(number, prompt, text, own, guidance, form)


def _rendered(asked: GenerationRequest, tokenizer: Tokenizer) -> tuple[str, CallForm | None]:
    """The prompt of a conversation."""
    if asked.tools is None:
        try:
            text = tokenizer.apply_chat_template(asked.messages)
        except GenerationError as error:
            raise _template_refuses(error) from error
        form = None
    else:

        def render(messages: str, tools: str | None, add: bool) -> str:
            try:
                return tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=add)
            except GenerationError as error:
                raise _template_refuses(error) from error

        text = render(asked.messages, asked.tools.tools, True)
        if text == render(asked.messages, None, True):
            raise Refused(
                400,
                "The model's chat template does not tell the model of functions. Leave tools out, or serve a model "
                "that was made for them.",
                field="tools",
            )
        form = learn_form(render, lambda word: _special(tokenizer, word), asked.tools.tools)
    left_out = [name for name in asked.called if name not in text]
    if left_out:
        raise Refused(
            400,
            f"The model's chat template leaves calls of functions out: {', '.join(left_out)[:200]}.",
            field="messages",
        )
    return text, form


def _special(tokenizer: Tokenizer, word: str) -> int | None:
    """The token that a word is, if the tokenizer leaves it out of texts."""
    tokens = [int(token) for token in tokenizer.encode(word)]
    beside = [int(token) for token in tokenizer.encode("x")]
    is_one = len(tokens) == 1 and word not in tokenizer.decode([*beside, *tokens, *beside])
    return tokens[0] if is_one else None


def _template_refuses(error: GenerationError) -> Refused:
    return Refused(400, f"The model's chat template refuses the messages: {in_words(error)}", field="messages")


# --- making one ---


def open_choice(
    asked: GenerationRequest,
    model: LanguageModel,
    choice: AnswerPlan,
    timeout_s: float | None,
    on_begin: Callable[[TextStream], object],
) -> TextStream:
    """Raises `Refused` for what is the client's fault."""
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
            **options,
        )
    except PromptRefused as error:
        # Clients shorten the conversation and ask again when they see it.
        code = "context_length_exceeded" if "context_length" in error.details else None
        raise Refused(400, in_words(error), field=field, reason=code) from error
    except TooLarge as error:
        raise Refused(400, in_words(error), field=field, reason="context_length_exceeded") from error
    except OptionError as error:
        raise Refused(400, in_words(error), field=error.details.get("option")) from error
    except GenerationError as error:
        if choice.guidance is None:
            raise
        raise Refused(
            400,
            f"The schema cannot be kept to: {in_words(error)}\n"
            "Fix: Correct the schema; or use a release of onnxruntime-genai that was built with guidance.",
            field="response_format" if choice.form is None else "tools",
        ) from error


def parts_of(
    asked: GenerationRequest, model: LanguageModel, choice: AnswerPlan, stream: TextStream, pace: Pace
) -> Iterator[Part]:
    """The parts of one answer; the last is `Finished`, unless it was cancelled."""
    calls = None if choice.form is None or asked.tools is None else CallReader(choice.form, asked.tools)
    scores = None if asked.logprobs is None else _Scores(model.tokenizer, stream)
    special = None if choice.form is None else choice.form.special
    seen = 0
    while True:
        piece = next(stream, None)
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
                yield Piece(choice.number, text, kind)
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
    """The figures of tokens, handed out with the texts that they became."""

    def __init__(self, tokenizer: Tokenizer, stream: TextStream) -> None:
        self._tokenizer = tokenizer
        self._stream = stream
        self._used = 0

    def take(self, *, last: bool = False) -> tuple[TokenScore, ...]:
        """Of tokens that begin in the text so far. last: also of those that became no text."""
        stream = self._stream
        new = stream.logprobs[self._used :]
        if not (last and stream.finish_reason == "length"):
            # What is behind the text: an end token, a stop text, or what may become one.
            with contextlib.suppress(StopIteration):
                new = new[: next(i for i, one in enumerate(new) if one.offset >= len(stream.text))]
        if not new:
            return ()
        self._used += len(new)
        numbers = [[number] for one in new for number in (one.token, *(token for token, _ in one.top))]
        texts = iter(self._tokenizer.decode_batch(numbers))
        return tuple(
            TokenScore(next(texts), one.logprob, one.offset, tuple((next(texts), value) for _, value in one.top))
            for one in new
        )
