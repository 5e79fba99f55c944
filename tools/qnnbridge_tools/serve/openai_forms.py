"""OpenAI's interface: requests read, answers and errors as documents. Pure.

Fields that would change the text and cannot be honoured are refused, with the field's name; others that are not
known are passed over, since clients send many.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from qnnbridge_tools.serve.errors import CODE_HEADER, Refused

Kind = Literal["chat", "text"]
# OpenAI's own is 4; each one is looked for in each piece.
MOST_STOPS: Final = 16
# An answer that looks like the beginning of one is held back, and compared with each of its beginnings.
LONGEST_STOP: Final = 1000
# What OpenAI gives to /v1/completions without max_tokens.
TEXT_TOKENS: Final = 16
_SEEDS: Final = 2**31
_SMALLEST_FLOAT: Final = 2.0**-126
# The least and the most of each. Logits are divided by the penalty, in float32.
_NUMBERS: Final = (("temperature", 0.0, 2.0), ("top_p", 0.0, 1.0), ("repetition_penalty", 0.01, 100.0))
# For the library of guidance: no white space between tokens of JSON, of which small models make any amount.
_COMPACT: Final[Mapping[str, Any]] = {"x-guidance": {"whitespace_flexible": False}}
# Fields that change the text: the values that leave it as it is.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "tools": (None, []),
    "functions": (None, []),
    "audio": (None,),
    "prediction": (None,),
}


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request, read.

    Args:
        messages: JSON of the conversation, for kind "chat".
        prompt: Text or token ids, for kind "text".
        search: Options of `qnnbridge.genai.generate`.
        schema: JSON schema that the answer keeps to, as JSON.
        usage: Whether a stream ends with the counts.
        user: The client's own name for whom it asks.
    """

    kind: Kind
    model: str
    messages: str
    prompt: str | tuple[int, ...]
    max_tokens: int | None
    stop: tuple[str, ...]
    search: Mapping[str, Any]
    schema: str | None
    stream: bool
    usage: bool
    user: str


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


# --- requests ---


def wrong(text: str, field: str | None = None, code: str | None = None, status: int = 400) -> Refused:
    return Refused(status, text, field=field, reason=code)


def read_generation(document: Any, kind: Kind) -> GenerationRequest:
    """Raises `Refused`."""
    if not isinstance(document, dict):
        raise wrong("The request is no JSON object.")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise wrong("model has to name one of the models of /v1/models.", "model")
    for field, neutral in _NEUTRAL.items():
        value = document.get(field)
        if not any(value == one and isinstance(value, bool) <= isinstance(one, bool) for one in neutral):
            raise wrong(f"{field} is not supported here; leave it out.", field)
    stream = _flag(document, "stream")
    options = document.get("stream_options")
    if options is not None and not (stream and isinstance(options, dict)):
        raise wrong("stream_options goes with stream=true, and is an object.", "stream_options")
    return GenerationRequest(
        kind=kind,
        model=model,
        messages=_messages(document.get("messages")) if kind == "chat" else "",
        prompt=_prompt(document.get("prompt")) if kind == "text" else "",
        max_tokens=_max_tokens(document, kind),
        stop=_stop(document.get("stop")),
        search=_search(document),
        schema=_schema(document.get("response_format")),
        stream=stream,
        usage=stream and _flag(options or {}, "include_usage"),
        user=document["user"][:200] if isinstance(document.get("user"), str) else "",
    )


def _flag(document: Mapping[str, Any], field: str) -> bool:
    value = document.get(field)
    if value is not None and not isinstance(value, bool):
        raise wrong(f"{field} is true or false.", field)
    return bool(value)


def _messages(told: Any) -> str:
    if not isinstance(told, list) or not told:
        raise wrong("messages is a list with at least one message.", "messages")
    found = []
    for index, one in enumerate(told):
        where = f"messages[{index}]"
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise wrong(f"{where} has to be an object with role and content.", where)
        found.append({**one, "content": _content(one.get("content"), f"{where}.content")})
    return json.dumps(found)


def _content(told: Any, where: str) -> str:
    if isinstance(told, str):
        return _text(told, where)
    if not isinstance(told, list):
        raise wrong(f"{where} has to be a text, or a list of parts.", where)
    parts = []
    for part in told:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise wrong(f"{where}: only parts of type text are supported.", where)
        parts.append(_text(part["text"], where))
    return "\n".join(parts)


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise wrong(f"{where}: half a surrogate pair is no text in UTF-8.", where) from None
    if "\0" in text:
        raise wrong(f"{where}: a text with a character 0 cannot be encoded.", where)
    return text


def _prompt(told: Any) -> str | tuple[int, ...]:
    if isinstance(told, list) and len(told) == 1 and isinstance(told[0], (str, list)):
        told = told[0]
    if isinstance(told, str) and told:
        return _text(told, "prompt")
    if isinstance(told, list) and told and all(type(one) is int and 0 <= one < _SEEDS for one in told):
        return tuple(told)
    raise wrong("prompt has to be one text that is not empty, or one list of token ids.", "prompt")


def _max_tokens(document: Mapping[str, Any], kind: Kind) -> int | None:
    for field in ("max_completion_tokens", "max_tokens"):
        value = document.get(field)
        if value is not None:
            if type(value) is not int or value < 1:
                raise wrong(f"{field} has to be a positive integer.", field)
            return value
    return None if kind == "chat" else TEXT_TOKENS


def _stop(told: Any) -> tuple[str, ...]:
    found = [] if told is None else [told] if isinstance(told, str) else told
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise wrong("stop has to be a text, or a list of texts, none of them empty.", "stop")
    if len(found) > MOST_STOPS or any(len(one) > LONGEST_STOP for one in found):
        raise wrong(f"stop may have {MOST_STOPS} texts of {LONGEST_STOP} characters.", "stop")
    return tuple(found)


def _search(document: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, least, most in _NUMBERS:
        value = document.get(field)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                raise wrong(f"{field} has to be a number from {least:g} to {most:g}.", field)
            found[field] = float(value)
    top_k = document.get("top_k")
    if top_k is not None:
        if type(top_k) is not int or not 1 <= top_k < _SEEDS:
            raise wrong("top_k has to be a positive integer.", "top_k")
        found["top_k"] = top_k
    seed = document.get("seed")
    if seed is not None:
        if type(seed) is not int:
            raise wrong("seed has to be an integer.", "seed")
        found["seed"] = seed % _SEEDS
    if "temperature" not in found and not found.keys().isdisjoint(("top_p", "top_k", "seed")):
        found["do_sample"] = True  # whoever narrows or repeats a choice wants one
    # What is 0 in genai's float32 would be no limit at all. The smallest nucleus is the most likely token.
    if "top_p" in found and found["top_p"] < _SMALLEST_FLOAT:
        del found["top_p"]
        found["top_k"] = 1
    return found


def _schema(told: Any) -> str | None:
    if told is None or told == {"type": "text"}:
        return None
    kind = told.get("type") if isinstance(told, dict) else None
    if kind == "json_object":
        return json.dumps({"type": "object", **_COMPACT})
    body = told.get("json_schema") if kind == "json_schema" else None
    schema = body.get("schema") if isinstance(body, dict) else None
    if not isinstance(schema, dict):
        raise wrong(
            'response_format has to be {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", '
            '"json_schema": {"name": ..., "schema": {...}}}.',
            "response_format",
        )
    return json.dumps({**_COMPACT, **schema})


# --- answers ---


class AnswerForm:
    """The documents of one answer.

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

    def whole(self, text: str, finish: str, counts: Counts) -> dict[str, Any]:
        """Without a stream."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self._is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        name = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head, "object": name, "choices": [choice], "usage": counts.document()}

    def opening(self) -> list[dict[str, Any]]:
        """What a stream begins with."""
        return [self._chunk({"delta": {"role": "assistant", "content": ""}})] if self._is_chat else []

    def piece(self, text: str) -> dict[str, Any]:
        return self._chunk({"delta": {"content": text}} if self._is_chat else {"text": text})

    def closing(self, finish: str, counts: Counts) -> list[dict[str, Any]]:
        """What a stream ends with."""
        last = self._chunk({"delta": {}} if self._is_chat else {"text": ""}, finish)
        if not self._asked.usage:
            return [last]
        return [last, {**self._chunk({}), "choices": [], "usage": counts.document()}]

    def _chunk(self, content: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        name = "chat.completion.chunk" if self._is_chat else "text_completion"
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self._asked.usage else {}
        return {**self._head, "object": name, "choices": [choice], **usage}


def event(document: Any) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(document)}\n\n".encode()


DONE: Final = b"data: [DONE]\n\n"


def models_document(models: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {"object": "list", "data": [model_document(name, created) for name, created in models]}


def model_document(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "qnnbridge"}


_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


def error_document(refused: Refused) -> dict[str, Any]:
    kind = _TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "server_error")
    code = refused.reason or refused.headers.get(CODE_HEADER)
    return {"error": {"message": refused.text, "type": kind, "param": refused.field, "code": code}}
