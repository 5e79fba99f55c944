"""Functions that a model may call: read from a request, written into a grammar, found in the answer. Pure.

How a model writes a call is learned from its chat template, which has to write the calls of earlier messages: a
call with names of our own is rendered, and what stands around them is the form. Guidance keeps the answer to that
form and to the schemas of the functions, so that an answer is a text, or a text and one whole call.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from qnnbridge_serve.errors import Refused, wrong

MOST_TOOLS: Final = 128
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# For the library of guidance: no white space between tokens of JSON, of which small models make any amount.
COMPACT: Final[Mapping[str, Any]] = {"x-guidance": {"whitespace_flexible": False}}
NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """schema: of its arguments."""

    name: str
    schema: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request offers.

    Args:
        tools: JSON of the list, for the chat template.
        functions: Those that may be called.
        required: Whether the answer is a call.
    """

    tools: str
    functions: tuple[Function, ...]
    required: bool


# --- requests ---


def read_tools(document: Mapping[str, Any]) -> ToolUse | None:
    """`tools` and `tool_choice` of /v1/chat/completions; ``None`` if nothing is to be called. Raises `Refused`."""
    given, choice = document.get("tools"), document.get("tool_choice")
    if not given:
        if given not in (None, []):
            raise wrong("tools is a list of functions.", "tools")
        # "auto" is OpenAI's own default, and clients send it with a list that happens to be empty.
        if choice not in (None, "none", "auto"):
            raise wrong("tool_choice goes with tools.", "tool_choice")
        return None
    if not isinstance(given, list) or len(given) > MOST_TOOLS:
        raise wrong(f"tools is a list of up to {MOST_TOOLS} functions.", "tools")
    functions = tuple(_function(one, f"tools[{index}]") for index, one in enumerate(given))
    names = [one.name for one in functions]
    if len(set(names)) < len(names):
        raise wrong("Two functions of tools have one name.", "tools")
    if choice == "none":
        return None
    chosen = _chosen(choice, names)
    text = json.dumps(given)
    # Pairs of backslashes are taken out first: behind one `u0000` is no escape.
    if "\\u0000" in text.replace("\\\\", "") or not _whole(given):
        raise wrong("tools has a character 0 or half a surrogate pair in a text.", "tools")
    return ToolUse(
        text,
        functions if chosen is None else tuple(one for one in functions if one.name == chosen),
        required=choice == "required" or chosen is not None,
    )


def _whole(given: Any) -> bool:
    try:
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _function(given: Any, where: str) -> Function:
    body = given.get("function") if isinstance(given, dict) and given.get("type") == "function" else None
    if not isinstance(body, dict):
        raise wrong(f'{where} has to be {{"type": "function", "function": {{"name": ...}}}}.', where)
    name, schema = body.get("name"), body.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong(f"{where}: a name has up to 64 letters, digits, - and _.", f"{where}.function.name")
    if not isinstance(schema, (dict, type(None))):
        raise wrong(f"{where}: parameters is a JSON schema.", f"{where}.function.parameters")
    if schema and schema.get("type", "object") != "object":
        raise wrong(f"{where}: the arguments of a function are an object.", f"{where}.function.parameters")
    return Function(name, {**schema, "type": "object"} if schema else NO_ARGUMENTS)


def _chosen(choice: Any, names: Sequence[str]) -> str | None:
    """The only function that may be called; ``None`` for any."""
    if choice in (None, "auto", "required"):
        return None
    body = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = body.get("name") if isinstance(body, dict) else None
    if name not in names:
        raise wrong(
            'tool_choice has to be "none", "auto", "required" or {"type": "function", "function": {"name": ...}} '
            "with the name of one of tools.",
            "tool_choice",
        )
    return str(name)


def read_calls(given: Any, where: str) -> list[dict[str, Any]]:
    """`tool_calls` of an earlier message. Templates want the arguments as an object. Raises `Refused`."""
    if not isinstance(given, list):
        raise wrong(f"{where} is a list of calls.", where)
    found = []
    for index, one in enumerate(given):
        body = one.get("function") if isinstance(one, dict) else None
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            raise wrong(f"{where}[{index}] is no call of a function.", where)
        try:
            arguments = json.loads(body.get("arguments") or "{}")
        except (TypeError, ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise wrong(f"{where}[{index}]: arguments is no object, written as JSON.", where)
        found.append({**one, "type": "function", "function": {**body, "arguments": arguments}})
    return found


# --- the form of a call ---


@dataclasses.dataclass(frozen=True, slots=True)
class CallForm:
    """A call is `before`, the name, `between`, and the arguments as JSON.

    Args:
        before: Texts, and ids of special tokens.
        written: All of `before` as text.
        special: The first special token of `before`, if there is one.
    """

    before: tuple[str | int, ...]
    written: str
    between: str

    @property
    def special(self) -> int | None:
        return next((part for part in self.before if isinstance(part, int)), None)

    @property
    def shown(self) -> str:
        """`before` as the tokenizer decodes it, which leaves special tokens out."""
        return "".join(part for part in self.before if isinstance(part, str))

    @property
    def mark(self) -> str:
        """Where no special token begins a call: the text that does, and that no other text may have in it."""
        return "" if self.special is not None else re.split(r"[{\[(]", self.written)[0].strip()


# messages, tools or None, whether the answer's beginning is added; the prompt.
Render = Callable[[str, "str | None", bool], str]
# The id of a text that is a special token.
SpecialOf = Callable[[str], "int | None"]

_PROBE: Final = "qnnbridge_probe"
_ARGUMENTS: Final = re.compile(rf'\{{\s*"{_PROBE}_key"\s*:\s*"{_PROBE}_value"\s*\}}')
# What special tokens look like.
_TOKEN_LIKE: Final = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")


def learn_form(render: Render, special_of: SpecialOf, tools: str) -> CallForm:
    """How a model writes calls. Raises `Refused` for a template that writes none, or none of this form."""
    user = {"role": "user", "content": "x"}
    call = {
        "id": f"{_PROBE}_id",
        "type": "function",
        "function": {"name": f"{_PROBE}_name", "arguments": {f"{_PROBE}_key": f"{_PROBE}_value"}},
    }
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": f"{_PROBE}_id", "name": f"{_PROBE}_name", "content": "x"}
    text = {"role": "assistant", "content": f"{_PROBE}_text"}
    # The last message of a conversation has what others have not: an empty thought, for example.
    for behind in ([result, text, user], [result], []):
        try:
            written = render(json.dumps([user, calls, *behind]), tools, False)
            plain = render(json.dumps([user, text, *(one for one in behind if one is not result)]), tools, False)
        except Refused:
            continue
        found = _form_in(written, plain, special_of)
        if found is not None:
            return found
    raise wrong(
        "The model's chat template does not write calls of functions in a form that can be kept to: a name and "
        "then its arguments as JSON. Leave tools out, or serve a model that was made for them.",
        "tools",
    )


def _form_in(written: str, plain: str, special_of: SpecialOf) -> CallForm | None:
    at = written.find(f"{_PROBE}_name")
    arguments = _ARGUMENTS.search(written)
    if at < 0 or arguments is None or arguments.start() < at:
        return None
    begin = next((index for index, (a, b) in enumerate(zip(written, plain, strict=False)) if a != b), at)
    before, between = written[min(begin, at) : at], written[at + len(f"{_PROBE}_name") : arguments.start()]
    if f"{_PROBE}_id" in before + between or not between:
        return None
    parts: list[str | int] = []
    for part in filter(None, _TOKEN_LIKE.split(before)):
        number = special_of(part) if _TOKEN_LIKE.fullmatch(part) else None
        if number is not None and not "".join(one for one in parts if isinstance(one, str)).strip():
            parts.clear()  # a line feed before it, which the model need not write
        if number is None and parts and isinstance(parts[-1], str):
            part = str(parts.pop()) + part
        parts.append(part if number is None else number)
    form = CallForm(tuple(parts), before, between)
    # Otherwise every text could be the beginning of a call.
    return form if form.shown.strip() or form.special is not None else None


# --- grammar ---

_ANY: Final = r"/(.|\n)*/"


def grammar_of(form: CallForm, use: ToolUse) -> str:
    """In Lark's language, as the library of guidance reads it."""
    called = " | ".join(
        # The schema comes last: an `x-guidance` of its own counts.
        f"{_literal(one.name + form.between)} %json {json.dumps({**COMPACT, **one.schema})}"
        for one in use.functions
    )
    call = " ".join(_literal(part) if isinstance(part, str) else f"<[{part}]>" for part in form.before)
    lines = [f"called: {called}", f"call: {call} called"]
    if use.required:
        return "\n".join(["start: call", *lines])
    if form.special is not None:
        return "\n".join(["start: TEXT | call | TEXT call", *lines, r"TEXT: /(.|\n)+/"])
    mark = form.mark
    if mark:
        # A text ends where the mark begins a call; what has the mark in it is no text.
        rest = form.written.split(mark, 1)[1]
        behind = f"{_literal(rest)} called" if rest else "called"
        no_mark = f"{_ANY} & ~/(.|\\n)*{_escaped(mark)}(.|\\n)*/"
        starts = ["start: TEXT | before behind", f"before[suffix={_literal(mark)}]: {_ANY}"]
        return "\n".join([*starts, f"TEXT: {no_mark}", f"behind: {behind}", lines[0]])
    first = _escaped(form.written.lstrip()[0])
    stripped = f"call: {_literal(form.written.lstrip())} called"
    return "\n".join(["start: TEXT | call", lines[0], stripped, rf"TEXT: /[^{first}](.|\n)*/"])


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    # Not all that is no letter: \\< and \\> have a meaning.
    return re.sub(r"([\\.+*?()|\[\]{}^$#&~/-])", r"\\\1", text).replace("\n", "\\n")


# --- answers ---

PartKind = Literal["text", "name", "arguments"]


class CallReader:
    """Sorts the pieces of one answer: text, the name of a function, its arguments.

    Attributes:
        complete: Whether there was a whole call.
    """

    def __init__(self, form: CallForm, use: ToolUse) -> None:
        self._form = form
        self._heads = [
            (before + one.name + form.between, one.name)
            for before in dict.fromkeys([form.shown, form.written, form.written.lstrip()])
            for one in use.functions
        ]
        self._state: Literal["text", "head", "arguments", "end"] = "head" if use.required else "text"
        self._held = ""
        self._depth = 0
        self._in_text = self._escaped = False
        self._anything = False
        self.complete = False

    def feed(self, piece: str, *, special: bool = False) -> Iterator[tuple[PartKind, str]]:
        """special: whether the special token that begins a call was generated before this piece."""
        self._held += piece
        if self._state == "text":
            if special:
                self._state = "head"
            else:
                yield from self._text()
        if self._state == "head":
            # A text may stand before it that was held back, since it could have become a stop text.
            places = [(self._held.find(head), -len(head), name) for head, name in self._heads]
            at, length, name = min((one for one in places if one[0] >= 0), default=(-1, 0, ""))
            if at >= 0:
                text, self._held = self._held[:at], self._held[at - length :]
                self._state = "arguments"
                if text.strip():
                    yield "text", text
                yield "name", name
        if self._state == "arguments":
            yield from self._arguments()

    def end(self) -> Iterator[tuple[PartKind, str]]:
        """What was held back."""
        if self._state == "text" and self._held:
            yield "text", self._held
            self._held = ""

    def _text(self) -> Iterator[tuple[PartKind, str]]:
        mark = self._form.mark
        if self._form.special is None and not mark:
            if not self._anything and self._held[:1] == self._form.written.lstrip()[:1]:
                self._state = "head"
                return
        elif mark and mark in self._held:
            text, _, rest = self._held.partition(mark)
            begins = self._form.written.split(mark, 1)
            self._held = begins[0] + mark + rest
            self._state = "head"
            if text.strip():
                yield "text", text
            return
        # The end of this piece may be the beginning of the mark, so it waits for the next piece.
        keep = max((n for n in range(1, len(mark)) if self._held.endswith(mark[:n])), default=0)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if text:
            self._anything = True
            yield "text", text

    def _arguments(self) -> Iterator[tuple[PartKind, str]]:
        # Brackets are counted, since pieces end anywhere and no parser of JSON takes such parts.
        for index, letter in enumerate(self._held):
            if self._in_text:
                if self._escaped:
                    self._escaped = False
                elif letter == "\\":
                    self._escaped = True
                elif letter == '"':
                    self._in_text = False
            elif letter == '"':
                self._in_text = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if not self._depth:
                    self._state, self.complete = "end", True
                    yield "arguments", self._held[: index + 1]
                    self._held = ""
                    return
        if self._held:
            yield "arguments", self._held
            self._held = ""
