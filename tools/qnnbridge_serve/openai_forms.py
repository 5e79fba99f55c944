"""OpenAI's interface: parse requests, and return errors as documents. Pure functions.

Fields that would change the text but are not supported are refused, with the field's name. Other unknown fields are
ignored, since clients send many.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from qnnbridge_serve.errors import CODE_HEADER, Refused, wrong
from qnnbridge_serve.openai_media import MediaPart, read_part
from qnnbridge_serve.openai_tools import COMPACT, ToolUse, read_calls, read_tools

Kind = Literal["chat", "text"]
# Maximum number of stop texts. Each piece of an answer is searched for all of them. OpenAI's limit is 4.
MOST_STOPS: Final = 16
# Maximum length of a stop text. If the answer so far ends with the beginning of a stop text, this end is held back.
LONGEST_STOP: Final = 1000
# Maximum length of cache_salt. A random salt needs 43 characters.
LONGEST_SALT: Final = 1000
# OpenAI's default of max_tokens for /v1/completions.
TEXT_TOKENS: Final = 16
MOST_SEED: Final = 2**31
_SMALLEST_FLOAT: Final = 2.0**-126
# Minimum and maximum of each option. repetition_penalty divides logits in float32, so neither tiny nor huge values
# are allowed.
_NUMBERS: Final = (("temperature", 0.0, 2.0), ("top_p", 0.0, 1.0), ("repetition_penalty", 0.01, 100.0))
# Maximum number of answers to a request: prompts times n.
MOST_CHOICES: Final = 128
# OpenAI's limits of logprobs, by kind of request.
_MOST_LOGPROBS: Final[Mapping[str, int]] = {"chat": 20, "text": 5}
# Unsupported fields that change the text. Only these values, which have no effect, are accepted.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "echo": (None, False),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "functions": (None, []),
    "audio": (None,),
    "prediction": (None,),
}


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Parsed request.

    Args:
        messages: JSON of the conversation, for kind "chat".
        prompts: texts and token ids, for kind "text".
        n: number of answers for each prompt.
        logprobs: number of most likely tokens to return for each token; ``None`` for no probabilities.
        tools: functions that the model may call.
        search: options of `qnnbridge.genai.generate`.
        schema: JSON schema of the answer, as JSON.
        usage: whether a stream ends with the token counts.
        user: the field `user`, by which a client distinguishes its users.
        cache_salt: requests share a generator and its KV cache only if both their client and their salt are equal.
        called: names of functions that earlier messages call.
        media: pictures and recordings. In the messages, each is replaced by a part {"media": index}.
    """

    kind: Kind
    model: str
    messages: str
    prompts: tuple[str | tuple[int, ...], ...]
    n: int
    logprobs: int | None
    tools: ToolUse | None
    max_tokens: int | None
    stop: tuple[str, ...]
    search: Mapping[str, Any]
    schema: str | None
    stream: bool
    usage: bool
    user: str
    cache_salt: str
    called: frozenset[str] = frozenset()
    media: tuple[MediaPart, ...] = ()


# --- requests ---


def read_generation(document: Any, kind: Kind) -> GenerationRequest:
    """Parse a request for text generation. Raise `Refused` if it is invalid."""
    model = named_model(document)
    refuse_fields(document, _NEUTRAL, "here; leave it out")
    stream = _flag(document, "stream")
    options = document.get("stream_options")
    if options is not None and not (stream and isinstance(options, dict)):
        raise wrong("stream_options must be an object, and requires stream=true.", "stream_options")
    prompts = _prompts(document.get("prompt")) if kind == "text" else ()
    n = _choices(document, max(1, len(prompts)))
    tools, schema = _tools(document, kind), _schema(document.get("response_format"))
    if tools is not None and schema is not None:
        raise wrong("response_format cannot be combined with tools; leave one of them out.", "response_format")
    logprobs = _logprobs(document, kind)
    if tools is not None and logprobs is not None:  # logprobs list tokens of the text, not of a call
        raise wrong("logprobs cannot be combined with tools; leave one of them out.", "logprobs")
    media: list[MediaPart] = []
    messages, called = _messages(document.get("messages"), media) if kind == "chat" else ("", frozenset[str]())
    return GenerationRequest(
        kind=kind,
        model=model,
        messages=messages,
        prompts=prompts,
        n=n,
        logprobs=logprobs,
        tools=tools,
        max_tokens=_max_tokens(document, kind),
        stop=_stop(document.get("stop")),
        search=_search(document),
        schema=schema,
        stream=stream,
        usage=stream and _flag(options or {}, "include_usage"),
        user=document["user"][:200] if isinstance(document.get("user"), str) else "",
        cache_salt=_cache_salt(document),
        called=called,
        media=tuple(media),
    )


def owner_of(machine: str, asked: GenerationRequest) -> str:
    """Return a key of machine, user and salt. Generators and stored responses are shared for equal keys only."""
    return repr((f"{machine} {asked.user}", asked.cache_salt))


def named_model(document: Any) -> str:
    """Return the model of a request. Raise `Refused` if there is none, or if the request is not an object."""
    if not isinstance(document, dict):
        raise wrong("The request is not a JSON object.")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise wrong("model must be the name of a model that /v1/models lists.", "model")
    return model


def refuse_fields(document: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]], where: str) -> None:
    """Raise `Refused` if a field has a value that would have an effect.

    neutral: values without effect, by field.
    """
    for field, values in neutral.items():
        value = document.get(field)
        # Compare bool only with bool: in Python 0 == False and 1 == True, but JSON distinguishes them.
        if not any(value == one and isinstance(value, bool) <= isinstance(one, bool) for one in values):
            raise wrong(f"{field} is not supported {where}.", field)


def _flag(document: Mapping[str, Any], field: str) -> bool:
    value = document.get(field)
    if value is not None and not isinstance(value, bool):
        raise wrong(f"{field} must be true or false.", field)
    return bool(value)


def _messages(given: Any, media: list[MediaPart]) -> tuple[str, frozenset[str]]:
    """Return the messages as JSON, and the names of called functions. Move pictures and recordings to `media`."""
    if not isinstance(given, list) or not given:
        raise wrong("messages must be a list with at least one message.", "messages")
    found, called = [], set()
    for index, one in enumerate(given):
        where = f"messages[{index}]"
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise wrong(f"{where} has to be an object with role and content.", where)
        # Chat templates use the older name "system" for OpenAI's role "developer".
        kept = {**one, "role": "system"} if one["role"] == "developer" else dict(one)
        if kept.pop("tool_calls", None):
            kept["tool_calls"] = read_calls(one["tool_calls"], f"{where}.tool_calls")
            called |= {call["function"]["name"] for call in kept["tool_calls"]}
        nothing = one.get("content") is None and "tool_calls" in kept
        kept["content"] = "" if nothing else _content(one.get("content"), f"{where}.content", media)
        found.append(kept)
    return json.dumps(found), frozenset(called)


def _content(given: Any, where: str, media: list[MediaPart]) -> str | list[dict[str, Any]]:
    """Return a message's content as text, or as a list of parts if it contains pictures or sound."""
    if isinstance(given, str):
        return _text(given, where)
    if not isinstance(given, list):
        raise wrong(f"{where} has to be a string, or a list of parts.", where)
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(given):
        found = read_part(part, f"{where}[{number}]") if isinstance(part, dict) else None
        if found is not None:
            parts.append({"type": found.kind, "media": len(media)})
            media.append(found)
            continue
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise wrong(f"{where}: each part must have the type text, image_url or input_audio.", where)
        text = _text(part["text"], where)
        if parts and parts[-1]["type"] == "text":
            parts[-1]["text"] += f"\n{text}"
        else:
            parts.append({"type": "text", "text": text})
    if all(part["type"] == "text" for part in parts):
        return parts[0]["text"] if parts else ""
    return parts


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise wrong(f"{where}: an unpaired surrogate is not valid UTF-8.", where) from None
    if "\0" in text:
        raise wrong(f"{where}: a string with a null character cannot be converted to tokens.", where)
    return text


def _prompts(given: Any) -> tuple[str | tuple[int, ...], ...]:
    several = isinstance(given, list) and bool(given) and all(isinstance(one, (str, list)) for one in given)
    return tuple(map(_prompt, given if several else [given]))


def _prompt(given: Any) -> str | tuple[int, ...]:
    if isinstance(given, str) and given:
        return _text(given, "prompt")
    if isinstance(given, list) and given and all(type(one) is int and 0 <= one < MOST_SEED for one in given):
        return tuple(given)
    raise wrong(
        "prompt must be a non-empty string, a list of token ids, or a list of such strings or lists.", "prompt"
    )


def _choices(document: Mapping[str, Any], prompts: int) -> int:
    n = document.get("n")
    n = 1 if n is None else n
    if type(n) is not int or not 1 <= n * prompts <= MOST_CHOICES:
        raise wrong(f"n must be a positive integer, and the number of prompts times n at most {MOST_CHOICES}.", "n")
    best = document.get("best_of")
    if best is not None and (type(best) is not int or best != n):
        raise wrong("best_of must be equal to n; leave best_of out.", "best_of")
    return n


def _logprobs(document: Mapping[str, Any], kind: Kind) -> int | None:
    most, given = _MOST_LOGPROBS[kind], document.get("logprobs")
    if kind == "chat":
        wanted, top = _flag(document, "logprobs"), document.get("top_logprobs")
        if top is None:
            return 0 if wanted else None
        if type(top) is not int or not 0 <= top <= most or not (wanted or top == 0):
            raise wrong(f"top_logprobs must be an integer from 0 to {most}, and requires logprobs.", "top_logprobs")
        return top if wanted else None
    if given is None or given is False:
        return None
    if type(given) is not int or not 0 <= given <= most:
        raise wrong(f"logprobs must be an integer from 0 to {most}.", "logprobs")
    return given


def _tools(document: Mapping[str, Any], kind: Kind) -> ToolUse | None:
    if kind == "chat":
        _flag(document, "parallel_tool_calls")
        return read_tools(document)
    if document.get("tools"):
        raise wrong("Only /v1/chat/completions and /v1/responses support tools.", "tools")
    return None


def _max_tokens(document: Mapping[str, Any], kind: Kind) -> int | None:
    for field in ("max_completion_tokens", "max_tokens"):
        value = document.get(field)
        if value is not None:
            if type(value) is not int or value < 1:
                raise wrong(f"{field} has to be a positive integer.", field)
            return value
    return None if kind == "chat" else TEXT_TOKENS


def _stop(given: Any) -> tuple[str, ...]:
    found = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise wrong("stop has to be a non-empty string, or a list of such strings.", "stop")
    if len(found) > MOST_STOPS or any(len(one) > LONGEST_STOP for one in found):
        raise wrong(f"stop may contain up to {MOST_STOPS} strings of up to {LONGEST_STOP} characters.", "stop")
    return tuple(found)


def _cache_salt(document: Mapping[str, Any]) -> str:
    given = document.get("cache_salt")
    if given is None:
        return ""
    if not isinstance(given, str) or not 1 <= len(given) <= LONGEST_SALT:
        raise wrong(f"cache_salt has to be a string of 1 to {LONGEST_SALT} characters.", "cache_salt")
    return given


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
        if type(top_k) is not int or not 1 <= top_k < MOST_SEED:
            raise wrong("top_k has to be a positive integer.", "top_k")
        found["top_k"] = top_k
    seed = document.get("seed")
    if seed is not None:
        if type(seed) is not int:
            raise wrong("seed has to be an integer.", "seed")
        found["seed"] = seed % MOST_SEED
    if "temperature" not in found and not found.keys().isdisjoint(("top_p", "top_k", "seed")):
        found["do_sample"] = True  # top_p, top_k and seed have no effect without sampling
    # Replace a tiny top_p by top_k = 1, which also selects the most likely token: genai's float32 rounds such a
    # top_p to 0, which means no limit.
    if "top_p" in found and found["top_p"] < _SMALLEST_FLOAT:
        del found["top_p"]
        found["top_k"] = 1
    return found


def _schema(given: Any) -> str | None:
    if given is None or given == {"type": "text"}:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "json_object":
        return json.dumps({"type": "object", **COMPACT})
    body = given.get("json_schema") if kind == "json_schema" else None
    schema = body.get("schema") if isinstance(body, dict) else None
    if not isinstance(schema, dict):
        raise wrong(
            'response_format has to be {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", '
            '"json_schema": {"name": ..., "schema": {...}}}.',
            "response_format",
        )
    return json.dumps({**COMPACT, **schema})


# --- errors ---

_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


def error_document(refused: Refused) -> dict[str, Any]:
    kind = _TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "server_error")
    code = refused.reason or refused.headers.get(CODE_HEADER)
    return {"error": {"message": refused.text, "type": kind, "param": refused.field, "code": code}}
