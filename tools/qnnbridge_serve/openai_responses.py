"""OpenAI's /v1/responses: convert requests to chat completions, and answers to lists of output items.

A request contains either the whole conversation, or the id of the previous response, whose conversation the server
has stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from qnnbridge_serve.errors import Refused, wrong
from qnnbridge_serve.openai_answers import (
    Counts,
    Finished,
    MakeForm,
    Part,
    TokenScore,
    event,
    score_document,
)
from qnnbridge_serve.openai_forms import GenerationRequest, error_document, owner_of, read_generation, refuse_fields
from qnnbridge_serve.openai_stored import StoredResponses

_LOGPROBS: Final = "message.output_text.logprobs"
# Unsupported fields, with the values that have no effect.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "conversation": (None,),
    "context_management": (None, []),
    "prompt": (None,),
    "background": (None, False),
    "truncation": (None, "disabled"),
    "reasoning": (None, {}, {"effort": None}, {"effort": None, "summary": None}),
    "max_tool_calls": (None,),
    "n": (None, 1),
}
# Fields of /v1/chat/completions, with the names that /v1/responses uses for the same fields.
_ELSEWHERE: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
_SAME: Final = ("model", "temperature", "top_p", "stream", "parallel_tool_calls", "user")
# Fields of this server's /v1/chat/completions that OpenAI's /v1/responses does not have.
_OWN: Final = ("stop", "seed", "top_k", "repetition_penalty", "cache_salt")
# Fields that are passed on to `read_generation`, which refuses them because they would change the text.
_REFUSED: Final = ("frequency_penalty", "presence_penalty", "logit_bias")
_FIELDS: Final = (
    (re.compile(r"messages.*"), "input"),
    (re.compile(r"response_format"), "text.format"),
    (re.compile(r"max_completion_tokens"), "max_output_tokens"),
    (re.compile(r"(tools\[\d+\])\.function(.*)"), r"\1\2"),
)
_TEXTS: Final = ("input_text", "output_text", "text")


# --- requests ---


def read_response(
    document: Any, stored: StoredResponses | None = None, machine: str = ""
) -> tuple[GenerationRequest, MakeForm]:
    """Parse a request. Return the request and the format of its answer.

    Args:
        document: JSON document of the request.
        stored: the responses that a request may continue.
        machine: address of the client.

    Raises:
        Refused: the request is invalid.
    """
    if not isinstance(document, dict):
        raise wrong("The request is not a JSON object.")
    refuse_fields(document, _NEUTRAL, "here; leave it out")
    previous, store = document.get("previous_response_id"), document.get("store")
    if not isinstance(previous, (str, type(None))):
        raise wrong("previous_response_id must be the id of a response.", "previous_response_id")
    if not isinstance(store, (bool, type(None))):
        raise wrong("store must be true or false.", "store")
    stores = stored is not None and stored.stores
    if store and not stores:
        raise wrong("This server stores no responses (--keep-responses 0); leave store out.", "store")
    for field, name in _ELSEWHERE.items():
        if document.get(field) is not None:
            raise wrong(f"{field} is not a field of /v1/responses; use {name} instead.", name)
    options = document.get("stream_options")
    if options is not None and not (document.get("stream") is True and isinstance(options, dict)):
        raise wrong("stream_options must be an object, and requires stream=true.", "stream_options")
    include = document.get("include") or []
    if not isinstance(include, list) or any(one != _LOGPROBS for one in include):
        raise wrong(f"include may contain only {_LOGPROBS}.", "include")
    text = document.get("text") or {}
    if not isinstance(text, dict) or text.get("verbosity") not in (None, "medium"):
        raise wrong("text must be an object with format; verbosity is not supported.", "text")
    metadata = document.get("metadata")
    if not isinstance(metadata, (dict, type(None))):
        raise wrong("metadata must be an object.", "metadata")
    instructions = document.get("instructions")
    if not isinstance(instructions, (str, type(None))):
        raise wrong("instructions must be a string.", "instructions")
    chat: dict[str, Any] = {field: document[field] for field in (*_SAME, *_OWN, *_REFUSED) if field in document}
    top = document.get("top_logprobs")
    chat |= {
        "messages": [*([{"role": "system", "content": instructions}] if instructions else []), *_input(document)],
        "max_completion_tokens": document.get("max_output_tokens"),
        "response_format": _format(text.get("format")),
        "tools": _tools(document.get("tools")),
        "tool_choice": _choice(document.get("tool_choice")),
        "logprobs": bool(include),
        "top_logprobs": top,
    }
    try:
        asked = read_generation(chat, "chat")
    except Refused as refused:
        raise renamed(refused) from None
    # As with OpenAI, the instructions apply to this request only and are not stored.
    messages = json.loads(asked.messages)
    system, messages = (messages[:1], messages[1:]) if instructions else ([], messages)
    owner = owner_of(machine, asked)
    if previous is not None:
        messages = [*(stored or StoredResponses(0)).find(previous, owner), *messages]
        called = {call["function"]["name"] for one in messages for call in one.get("tool_calls", ())}
        whole = json.dumps([*system, *messages])
        asked = dataclasses.replace(asked, messages=whole, called=frozenset(called))

    def keep(number: str, answer: Mapping[str, Any]) -> None:
        if stored is not None and stores and store is not False:
            stored.put(number, owner, [*messages, answer])

    given = {
        "previous_response_id": previous,
        "store": stores and store is not False,
        "instructions": instructions,
        "max_output_tokens": asked.max_tokens,
        "temperature": document.get("temperature"),
        "top_p": document.get("top_p"),
        "parallel_tool_calls": document.get("parallel_tool_calls") is not False,
        "tools": document.get("tools") or [],
        "tool_choice": document.get("tool_choice") or "auto",
        "text": {"format": text.get("format") or {"type": "text"}},
        "metadata": metadata or {},
        "user": asked.user or None,
    }
    return asked, functools.partial(ResponseForm, said=given, keep=keep)


def renamed(refused: Refused) -> Refused:
    """Return the error with the field's name in /v1/responses."""
    for pattern, name in _FIELDS:
        found = pattern.fullmatch(refused.field or "")
        if found is not None:
            refused.field = found.expand(name)
    return refused


def _input(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = document.get("input")
    if isinstance(given, str) and given:
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise wrong("input must be a string, or a list with at least one item.", "input")
    found: list[dict[str, Any]] = []
    for index, one in enumerate(given):
        where = f"input[{index}]"
        kind = one.get("type", "message") if isinstance(one, dict) else None
        if kind == "message" and isinstance(one.get("role"), str):
            found.append({"role": one["role"], "content": _content(one.get("content"), where)})
        elif kind == "function_call":
            call = {
                "id": _word(one, "call_id", where),
                "type": "function",
                "function": {"name": _word(one, "name", where), "arguments": one.get("arguments")},
            }
            # Add a call to the assistant's message before it: in /v1/chat/completions, text and calls form one
            # message.
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": None})
            found[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = _content(one.get("output"), where)
            found.append({"role": "tool", "tool_call_id": _word(one, "call_id", where), "content": content})
        else:
            raise wrong(
                f"{where}: only items of the types message (with a role), function_call and function_call_output "
                "are supported.",
                where,
            )
    return found


def _word(item: Mapping[str, Any], field: str, where: str) -> str:
    value = item.get(field)
    if not isinstance(value, str) or not value:
        raise wrong(f"{where}: {field} must be a string.", f"{where}.{field}")
    return value


def _content(given: Any, where: str) -> Any:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise wrong(f"{where}: content must be a string, or a list of parts.", where)
    return [_part(one, where) for one in given]


def _part(given: Any, where: str) -> dict[str, Any]:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in _TEXTS:
        return {"type": "text", "text": given.get("text")}
    if kind == "input_image" and given.get("file_id") is None:
        return {"type": "image_url", "image_url": {"url": given.get("image_url")}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": given.get("input_audio")}
    raise wrong(f"{where}: a part must be an input_text, an input_image (with image_url) or an input_audio.", where)


def _format(given: Any) -> Any:
    if isinstance(given, dict) and given.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": given}
    return given


def _tools(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    found = []
    for index, one in enumerate(given):
        if not isinstance(one, dict) or one.get("type") != "function":
            raise wrong(f'tools[{index}]: only tools of the type "function" are supported.', f"tools[{index}]")
        found.append({"type": "function", "function": {key: one[key] for key in one if key != "type"}})
    return found


def _choice(given: Any) -> Any:
    if isinstance(given, dict) and given.get("type") == "function":
        return {"type": "function", "function": {"name": given.get("name")}}
    return given


# --- answers ---


@dataclasses.dataclass(slots=True)
class _Item:
    """Item of the answer during generation."""

    kind: Literal["message", "function_call"]
    id: str
    name: str = ""
    call: str = ""
    text: str = ""
    scores: list[TokenScore] = dataclasses.field(default_factory=list)

    def content(self) -> dict[str, Any]:
        scores = [score_document(one) for one in self.scores]
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": scores}

    def document(self, status: str) -> dict[str, Any]:
        if self.kind == "message":
            content = [] if status == "in_progress" else [self.content()]
            return {
                "id": self.id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": content,
            }
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self.call,
            "name": self.name,
            "arguments": self.text,
        }


class ResponseForm:
    """Format of an answer of /v1/responses.

    Args:
        asked: the request.
        created: seconds since 1970.
        fingerprint: unused; see `MakeForm`.
        said: fields of the request to repeat in the answer.
        keep: called at the end with the id of the response and its message.
    """

    def __init__(
        self,
        asked: GenerationRequest,
        created: int,
        fingerprint: str,
        *,
        said: Mapping[str, Any],
        keep: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._keep = keep
        self._head = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": created,
            "model": asked.model,
            "reasoning": {"effort": None, "summary": None},
            "background": False,
            "truncation": "disabled",
            **said,
        }
        self._events = 0
        self._done: list[dict[str, Any]] = []
        self._open: _Item | None = None
        self._finish = "stop"

    def whole(self, parts: Sequence[Part], counts: Counts) -> dict[str, Any]:
        for part in parts:
            self.part(part)
        blank = [one for one in self._done if one["type"] == "message" and not one["content"][0]["text"].strip()]
        if len(self._done) > len(blank):  # omit white space, which models write before a call
            self._done = [one for one in self._done if one not in blank]
        return self._ended(counts)

    def opening(self) -> list[bytes]:
        response = self._response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def part(self, part: Part) -> list[bytes]:
        if isinstance(part, Finished):
            self._finish = part.finish
            begun = [] if self._open or self._done else self._begin(_Item("message", f"msg_{uuid.uuid4().hex}"))
            return begun + self._close()
        made: list[bytes] = []
        if part.kind == "name":
            made += self._close()
            item = _Item("function_call", f"fc_{uuid.uuid4().hex}", name=part.text, call=part.call)
            return made + self._begin(item)
        if self._open is None:
            made += self._begin(_Item("message", f"msg_{uuid.uuid4().hex}"))
        item = self._item()
        item.text += part.text
        item.scores += part.scores
        if item.kind == "function_call":
            return [*made, self._about("response.function_call_arguments.delta", delta=part.text)]
        scores = [score_document(one) for one in part.scores]
        delta = self._about("response.output_text.delta", content_index=0, delta=part.text, logprobs=scores)
        return [*made, delta]

    def closing(self, counts: Counts) -> list[bytes]:
        # This is the last event: OpenAI's streams of responses do not end with [DONE].
        response = self._ended(counts)
        return [self._event(f"response.{response['status']}", response=response)]

    def failure(self, refused: Refused) -> list[bytes]:
        error = error_document(renamed(refused))["error"]
        code = error["code"] or error["type"]
        failed = {**self._response("failed"), "error": {"code": code, "message": error["message"]}}
        event = self._event("error", code=code, message=error["message"], param=error["param"])
        return [event, self._event("response.failed", response=failed)]

    # --- items and events ---

    def _item(self) -> _Item:
        assert self._open is not None
        return self._open

    def _begin(self, item: _Item) -> list[bytes]:
        self._open = item
        place = len(self._done)
        added = self._event("response.output_item.added", output_index=place, item=item.document("in_progress"))
        if item.kind == "function_call":
            return [added]
        return [added, self._about("response.content_part.added", content_index=0, part=item.content())]

    def _close(self) -> list[bytes]:
        item = self._open
        if item is None:
            return []
        made: list[bytes] = []
        if item.kind == "message":
            part = item.content()
            text = {"text": item.text, "logprobs": part["logprobs"]}
            made.append(self._about("response.output_text.done", content_index=0, **text))
            made.append(self._about("response.content_part.done", content_index=0, part=part))
        else:
            made.append(self._about("response.function_call_arguments.done", name=item.name, arguments=item.text))
        document = item.document("incomplete" if self._finish == "length" else "completed")
        made.append(self._event("response.output_item.done", output_index=len(self._done), item=document))
        self._done.append(document)
        self._open = None
        return made

    def _about(self, kind: str, /, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._item().id, output_index=len(self._done), **fields)

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        self._events += 1
        return event({"type": kind, "sequence_number": self._events - 1, **fields}, kind)

    def _ended(self, counts: Counts) -> dict[str, Any]:
        usage = {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached},
            "output_tokens": counts.answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.prompt + counts.answer,
        }
        # Store the conversation before the last event is sent, because the next request may follow immediately.
        self._keep(str(self._head["id"]), self._message())
        cut = self._finish == "length"
        response = self._response("incomplete" if cut else "completed")
        return {
            **response,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": usage,
        }

    def _message(self) -> dict[str, Any]:
        """Return the answer as a message of a conversation, without a truncated call."""
        texts, calls = [], []
        for one in self._done:
            if one["type"] == "message":
                texts.append(one["content"][0]["text"])
                continue
            # Omit a call whose JSON is incomplete, because a stop text ended the answer.
            with contextlib.suppress(ValueError):
                function = {"name": one["name"], "arguments": json.loads(one["arguments"])}
                calls.append({"id": one["call_id"], "type": "function", "function": function})
        return {"role": "assistant", "content": "".join(texts), **({"tool_calls": calls} if calls else {})}

    def _response(self, status: str) -> dict[str, Any]:
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": list(self._done),
            "usage": None,
        }
