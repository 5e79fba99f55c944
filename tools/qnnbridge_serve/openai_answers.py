"""OpenAI's interface: answers as documents, whole or in pieces. Pure."""

from __future__ import annotations

import dataclasses
import json
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from qnnbridge_serve.errors import Refused
from qnnbridge_serve.openai_forms import GenerationRequest, error_document
from qnnbridge_serve.openai_tools import PartKind

# What OpenAI writes for a token that cannot be.
_NEVER: Final = -9999.0


@dataclasses.dataclass(frozen=True, slots=True)
class TokenScore:
    """A token of an answer.

    Args:
        logprob: Natural logarithm of its probability.
        offset: Characters of the answer before it.
        top: The most likely tokens.
    """

    text: str
    logprob: float
    offset: int
    top: tuple[tuple[str, float], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A part of the answer `choice`. scores: of the tokens that it comes of."""

    choice: int
    text: str
    kind: PartKind = "text"
    scores: tuple[TokenScore, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """The end of one answer."""

    choice: int
    finish: str


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of a request."""

    prompt: int
    answer: int

    def document(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.answer,
            "total_tokens": self.prompt + self.answer,
        }


Part = Piece | Finished


class Form(Protocol):
    """The documents of one request's answers."""

    def whole(self, parts: Sequence[Part], counts: Counts) -> dict[str, Any]:
        """Without a stream."""

    def opening(self) -> list[bytes]:
        """What a stream begins with."""

    def part(self, part: Part) -> list[bytes]: ...

    def closing(self, counts: Counts) -> list[bytes]:
        """What a stream ends with."""

    def failure(self, refused: Refused) -> list[bytes]:
        """What a stream ends with that cannot go on."""


# request, seconds since 1970, fingerprint of the model
MakeForm = Callable[[GenerationRequest, int, str], Form]


def event(document: Any, name: str = "") -> bytes:
    """One server-sent event."""
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(document)}\n\n".encode()


DONE: Final = b"data: [DONE]\n\n"


@dataclasses.dataclass(slots=True)
class Choice:
    """One answer, put together of its parts. call: name and arguments."""

    text: str = ""
    call: tuple[str, str] | None = None
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
            self.call = (part.text, "")
        else:
            name, arguments = self.call or ("", "")
            self.call = (name, arguments + part.text)


def gathered(parts: Iterable[Part]) -> dict[int, Choice]:
    found: dict[int, Choice] = {}
    for part in parts:
        found.setdefault(part.choice, Choice()).add(part)
    return found


def call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class AnswerForm:
    """Of /v1/chat/completions and /v1/completions.

    Args:
        created: Seconds since 1970.
        fingerprint: Of the model.
    """

    def __init__(self, asked: GenerationRequest, created: int, fingerprint: str) -> None:
        self._asked = asked
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
            begun = {"index": 0, "id": call_id(), "type": "function", "function": called}
            content = {"delta": {"tool_calls": [begun]}}
        else:
            content = {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": part.text}}]}}
        return [event(self._chunk(part.choice, content, scores=part.scores))]

    def closing(self, counts: Counts) -> list[bytes]:
        if not self._asked.usage:
            return [DONE]
        return [event({**self._chunk(0, {}), "choices": [], "usage": counts.document()}), DONE]

    def failure(self, refused: Refused) -> list[bytes]:
        return [event(error_document(refused))]

    def _choice(self, number: int, one: Choice) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": number, **self._scored(one.scores), "finish_reason": one.finish}
        if not self._is_chat:
            return {**choice, "text": one.text}
        message: dict[str, Any] = {"role": "assistant", "content": one.text, "refusal": None}
        if one.call is not None:
            name, arguments = one.call
            message["content"] = one.text if one.text.strip() else None
            called = {"name": name, "arguments": arguments}
            message["tool_calls"] = [{"id": call_id(), "type": "function", "function": called}]
        return {**choice, "message": message}

    def _chunk(
        self, choice: int, content: Mapping[str, Any], finish: str | None = None, scores: Sequence[TokenScore] = ()
    ) -> dict[str, Any]:
        name = "chat.completion.chunk" if self._is_chat else "text_completion"
        found = {"index": choice, **content, **self._scored(scores), "finish_reason": finish}
        usage = {"usage": None} if self._asked.usage else {}
        return {**self._head, "object": name, "choices": [found], **usage}

    def _scored(self, scores: Sequence[TokenScore]) -> dict[str, Any]:
        if self._asked.logprobs is None or (not scores and self._asked.stream):
            return {"logprobs": None}
        if self._is_chat:
            return {"logprobs": {"content": [score_document(one) for one in scores], "refusal": None}}
        # Of tokens that are parts of a character some have one text: the likeliest stays.
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
    # Half a character: which bytes it was, the text does not say any more.
    letters = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": finite(logprob), "bytes": letters}


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _NEVER
