"""Functions that a model may call: parse requests, write grammars, and find calls in answers. Pure functions.

`learn_form` derives the format of calls from the model's chat template, which has to render the calls of earlier
messages. `learn_form` renders one call and two calls with made-up names; the texts around and between the names and
arguments are the format. Guidance restricts the answer to this format and to the schemas of the functions, so that
an answer is a text, or a text with complete calls. The model writes calls exactly as the template renders them, so
that they are in the KV cache for the next prompt.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from qnnbridge_serve.errors import Refused, wrong

MOST_TOOLS: Final = 128
# Maximum number of calls in an answer. Otherwise a small model may repeat a call until its context is full.
MOST_CALLS: Final = 16
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Option of the guidance library that forbids white space between JSON tokens: small models may write it endlessly.
COMPACT: Final[Mapping[str, Any]] = {"x-guidance": {"whitespace_flexible": False}}
NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """Function that may be called. schema: JSON schema of its arguments."""

    name: str
    schema: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ToolUse:
    """Functions of a request.

    Args:
        tools: JSON of the list, for the chat template.
        functions: functions that may be called.
        required: whether the answer must be a call.
        parallel: whether the answer may contain several calls.
    """

    tools: str
    functions: tuple[Function, ...]
    required: bool
    parallel: bool = True


# --- requests ---


def read_tools(document: Mapping[str, Any]) -> ToolUse | None:
    """Parse `tools` and `tool_choice`; return ``None`` if the model may call no function. Raise `Refused`."""
    given, choice = document.get("tools"), document.get("tool_choice")
    if not given:
        if given not in (None, []):
            raise wrong("tools must be a list of functions.", "tools")
        # Accept "auto", OpenAI's default: clients send it even with an empty list of functions.
        if choice not in (None, "none", "auto"):
            raise wrong("tool_choice requires tools.", "tool_choice")
        return None
    if not isinstance(given, list) or len(given) > MOST_TOOLS:
        raise wrong(f"tools must be a list of up to {MOST_TOOLS} functions.", "tools")
    functions = tuple(_function(one, f"tools[{index}]") for index, one in enumerate(given))
    names = [one.name for one in functions]
    if len(set(names)) < len(names):
        raise wrong("Two functions of tools have the same name.", "tools")
    if choice == "none":
        return None
    chosen = _chosen(choice, names)
    text = json.dumps(given)
    # Remove pairs of backslashes first: `u0000` after a pair is ordinary text.
    if "\\u0000" in text.replace("\\\\", "") or not _whole(given):
        raise wrong("A string in tools contains a null character or an unpaired surrogate.", "tools")
    return ToolUse(
        text,
        functions if chosen is None else tuple(one for one in functions if one.name == chosen),
        required=choice == "required" or chosen is not None,
        # As with OpenAI, an answer contains only one call if the request chooses the function.
        parallel=document.get("parallel_tool_calls") is not False and chosen is None,
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
        raise wrong(f"{where}: a name must consist of up to 64 letters, digits, - and _.", f"{where}.function.name")
    if not isinstance(schema, (dict, type(None))):
        raise wrong(f"{where}: parameters must be a JSON schema.", f"{where}.function.parameters")
    if schema and schema.get("type", "object") != "object":
        raise wrong(
            f"{where}: the schema of a function's arguments must have the type object.",
            f"{where}.function.parameters",
        )
    return Function(name, {**schema, "type": "object"} if schema else NO_ARGUMENTS)


def _chosen(choice: Any, names: Sequence[str]) -> str | None:
    """Return the name of the only function that may be called; ``None`` for any function."""
    if choice in (None, "auto", "required"):
        return None
    body = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = body.get("name") if isinstance(body, dict) else None
    if name not in names:
        raise wrong(
            'tool_choice has to be "none", "auto", "required" or {"type": "function", "function": {"name": ...}} '
            "with the name of a function in tools.",
            "tool_choice",
        )
    return str(name)


def read_calls(given: Any, where: str) -> list[dict[str, Any]]:
    """Parse `tool_calls` of an earlier message.

    Convert the arguments to objects, as templates require. Raise `Refused`.
    """
    if not isinstance(given, list):
        raise wrong(f"{where} must be a list of calls.", where)
    found = []
    for index, one in enumerate(given):
        body = one.get("function") if isinstance(one, dict) else None
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            raise wrong(f"{where}[{index}] is not a function call: it needs a function with a name.", where)
        try:
            arguments = json.loads(body.get("arguments") or "{}")
        except (TypeError, ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise wrong(f"{where}[{index}]: arguments must be the JSON text of an object.", where)
        found.append({**one, "type": "function", "function": {**body, "arguments": arguments}})
    return found


# --- format of calls ---


# Sequence of texts and ids of special tokens.
Written = tuple["str | int", ...]


@dataclasses.dataclass(frozen=True, slots=True)
class CallForm:
    """Format in which a model writes a call: `before` NAME `between` ARGUMENTS `after`. The arguments are JSON.

    Args:
        before: text and special tokens before the name.
        written: `before` as text, including special tokens.
        between: text between the name and the arguments.
        after: text after the arguments of each call.
        more: text between `after` and the name of the next call; ``None`` if an answer has at most one call.
        end: text between `after` of the last call and the end of the answer.
        separators: the template's JSON separators between entries, and between key and value.
        short_ids: whether the template accepts only call ids of nine letters and digits.
    """

    before: Written
    written: str
    between: str
    after: Written = ()
    more: Written | None = None
    end: Written = ()
    separators: tuple[str, str] = (",", ":")
    short_ids: bool = False

    @property
    def special(self) -> int | None:
        """First special token of `before`, or ``None``."""
        return next((part for part in self.before if isinstance(part, int)), None)

    @property
    def shown(self) -> str:
        """Text of `before` as the tokenizer decodes it, without special tokens."""
        return shown_of(self.before)

    @property
    def mark(self) -> str:
        """Text with which a call begins; other text must not contain it. "" if a special token begins calls."""
        return "" if self.special is not None else re.split(r"[{\[(]", self.written)[0].strip()


def shown_of(written: Written) -> str:
    """Return the text without special tokens."""
    return "".join(part for part in written if isinstance(part, str))


# Function that renders a prompt. Arguments: messages, tools or None, whether to add the beginning of an answer.
Render = Callable[[str, "str | None", bool], str]
# Function that returns the id of a text that is a special token, else ``None``.
SpecialOf = Callable[[str], "int | None"]

_PROBE: Final = "qnnbridge_probe"
# Call ids for rendering. Mistral's templates accept only ids of nine characters.
_IDS: Final = ((f"{_PROBE}_id", f"{_PROBE}_di"), ("qnnprobe1", "qnnprobe2"))
_NAMES: Final = (f"{_PROBE}_name", f"{_PROBE}_other")
_TEXT: Final = f"{_PROBE}_text"
_ARGUMENTS: Final = re.compile(
    rf'\{{\s*"{_PROBE}_key"(\s*:\s*)"{_PROBE}_value"(\s*,\s*)"{_PROBE}_more"\s*:\s*"{_PROBE}_value"\s*\}}'
)
_GIVEN: Final = {f"{_PROBE}_key": f"{_PROBE}_value", f"{_PROBE}_more": f"{_PROBE}_value"}
# JSON field with the id of a call, which is removed from the format: the server chooses ids, not the model.
_ID_FIELD: Final = re.compile(rf',\s*"\w+"\s*:\s*"(?:{"|".join(one for some in _IDS for one in some)})"')
# Texts that may be special tokens, such as <tool_call> or [TOOL_CALLS].
_TOKEN_LIKE: Final = re.compile(r"(<[^<>\s]+>|\[/?[A-Z_]+\])")


def learn_form(render: Render, special_of: SpecialOf, tools: str) -> CallForm:
    """Return the format of a model's calls.

    Raise `Refused` if its template does not write calls of a supported format.
    """
    for ids in _IDS:
        found = _form_with(ids, render, special_of, tools)
        if found is not None:
            return dataclasses.replace(found, short_ids=ids is _IDS[1])
    raise wrong(
        "The model's chat template does not write calls of functions in a supported form: a name and "
        "then its arguments as JSON. Leave tools out, or serve a model that supports them.",
        "tools",
    )


def _form_with(ids: Sequence[str], render: Render, special_of: SpecialOf, tools: str) -> CallForm | None:
    """Return the format learned by rendering calls with these ids; ``None`` if no format is found."""
    user = {"role": "user", "content": "x"}
    text = {"role": "assistant", "content": _TEXT}
    named = tuple(zip(ids, _NAMES, strict=True))
    calls = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": _GIVEN}} for one, name in named
    ]
    results = [{"role": "tool", "tool_call_id": one, "name": name, "content": "x"} for one, name in named]

    def rendered(count: int, behind: Sequence[Mapping[str, str]], *, with_results: bool) -> str:
        called = {"role": "assistant", "content": "", "tool_calls": calls[:count]}
        got = results[:count] if with_results else []
        return render(json.dumps([user, called, *got, *behind]), tools, False)

    # Prefer a call in the middle of the conversation: templates may add parts, such as an empty thought, to the
    # last message.
    for behind, with_results in (([text, user], True), ([], True), ([], False)):
        try:
            written = rendered(1, behind, with_results=with_results)
            plain = render(json.dumps([user, text, *behind]), tools, False)
        except Refused:
            continue
        found = _form_in(written, plain, special_of)
        if found is None:
            continue
        try:
            several = rendered(2, behind, with_results=with_results)
        except Refused:
            several = ""  # some templates, such as Llama's, refuse a message with two calls
        return _with_end(found, written, several, plain, special_of)
    return None


def _form_in(written: str, plain: str, special_of: SpecialOf) -> CallForm | None:
    at = written.find(_NAMES[0])
    arguments = _ARGUMENTS.search(written)
    if at < 0 or arguments is None or arguments.start() < at:
        return None
    begin = next((index for index, (a, b) in enumerate(zip(written, plain, strict=False)) if a != b), at)
    before, between = written[min(begin, at) : at], written[at + len(_NAMES[0]) : arguments.start()]
    if any(one in before + between for one in (*_IDS[0], *_IDS[1])) or not between:
        return None
    parts: list[str | int] = []
    for part in _parts(before, special_of):
        if isinstance(part, int) and not shown_of(tuple(parts)).strip():
            parts.clear()  # the model need not write white space before a special token
        parts.append(part)
    key, item = arguments.groups()
    # Use compact JSON instead of separators with line feeds: the indentation after a line feed depends on the
    # value's depth.
    known = item in (",", ", ") and key in (":", ": ")
    form = CallForm(tuple(parts), before, between, separators=(item, key) if known else (",", ":"))
    # Refuse a format without text before the name: any text could then be the beginning of a call.
    return form if form.shown.strip() or form.special is not None else None


def _with_end(form: CallForm, written: str, several: str, plain: str, special_of: SpecialOf) -> CallForm:
    """Return the format with `after`, `more` and `end`, which are found in the rendered texts."""
    arguments = _ARGUMENTS.search(written)
    turn_end = _TOKEN_LIKE.match(plain[plain.rfind(_TEXT) + len(_TEXT) :].lstrip())
    if arguments is None or turn_end is None:
        return form  # without a turn-end token, an answer ends after the arguments
    tail = written[arguments.end() :]
    if turn_end[0] not in tail:
        return form
    end = _ID_FIELD.sub("", tail[: tail.index(turn_end[0])])
    if _PROBE in end:
        return form
    both, second = list(_ARGUMENTS.finditer(several)), several.find(_NAMES[1])
    between = several[both[0].end() : second] if len(both) == 2 and second > both[0].end() else ""
    between = _ID_FIELD.sub("", between)
    same = several[second + len(_NAMES[1]) :].startswith(form.between)
    if not between or not same or _PROBE in between:
        return dataclasses.replace(form, end=_parts(end, special_of))
    length = next((at for at, (a, b) in enumerate(zip(end, between, strict=False)) if a != b), len(end))
    length = min(length, len(between))
    # Shorten the beginning that `end` and `between` share, so that it does not end within a token.
    for text in (end, between):
        inside = [found.start() for found in _TOKEN_LIKE.finditer(text) if found.start() < length < found.end()]
        length = min([length, *inside])
    return dataclasses.replace(
        form,
        after=_parts(end[:length], special_of),
        more=_parts(between[length:], special_of),
        end=_parts(end[length:], special_of),
    )


def _parts(written: str, special_of: SpecialOf) -> Written:
    """Split a text into texts and ids of special tokens."""
    parts: list[str | int] = []
    for part in filter(None, _TOKEN_LIKE.split(written)):
        number = special_of(part) if _TOKEN_LIKE.fullmatch(part) else None
        if number is None and parts and isinstance(parts[-1], str):
            part = str(parts.pop()) + part
        parts.append(part if number is None else number)
    return tuple(parts)


# --- grammar ---

_ANY: Final = r"/(.|\n)*/"


def grammar_of(form: CallForm, use: ToolUse) -> str:
    """Return a grammar in the Lark format of the guidance library."""
    item, key = form.separators
    style = {"x-guidance": {**COMPACT["x-guidance"], "item_separator": item, "key_separator": key}}
    called = " | ".join(
        # Merge the schema last, so that its own `x-guidance` overrides the default.
        f"{_literal(one.name + form.between)} %json {json.dumps({**style, **one.schema})}"
        for one in use.functions
    )
    more = _sequence(form.more) if use.parallel and form.more is not None else ""
    after, end = _sequence(form.after), _sequence(form.end)
    lines = [
        f"calls: called {after} {f'more{{0,{MOST_CALLS - 1}}}' if more else ''} {end}",
        *([f"more: {more} called {after}"] if more else []),
        f"called: {called}",
    ]
    before = _sequence(form.before)
    if use.required:
        return "\n".join([f"start: {before} calls", *lines])
    if form.special is not None:
        return "\n".join([f"start: TEXT | {before} calls | TEXT {before} calls", *lines, r"TEXT: /(.|\n)+/"])
    mark = form.mark
    if mark:
        # Free text ends where the mark of a call begins, and must not contain the mark.
        rest = form.written.split(mark, 1)[1]
        behind = f"{_literal(rest)} calls" if rest else "calls"
        no_mark = f"{_ANY} & ~/(.|\\n)*{_escaped(mark)}(.|\\n)*/"
        starts = ["start: TEXT | before behind", f"before[suffix={_literal(mark)}]: {_ANY}"]
        return "\n".join([*starts, f"TEXT: {no_mark}", f"behind: {behind}", *lines])
    first = _escaped(form.written.lstrip()[0])
    stripped = _literal(form.written.lstrip())
    return "\n".join([f"start: TEXT | {stripped} calls", *lines, rf"TEXT: /[^{first}](.|\n)*/"])


def _sequence(parts: Written) -> str:
    return " ".join(_literal(part) if isinstance(part, str) else f"<[{part}]>" for part in parts)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    # Escape only these characters: a backslash before others has a special meaning, for example in \\< and \\>.
    return re.sub(r"([\\.+*?()|\[\]{}^$#&~/-])", r"\\\1", text).replace("\n", "\\n")


# --- answers ---

PartKind = Literal["text", "name", "arguments"]


class CallReader:
    """Parser of the pieces of an answer, into text, names of functions and their arguments.

    Attributes:
        complete: whether there was a call, and all calls are complete.
    """

    def __init__(self, form: CallForm, use: ToolUse) -> None:
        self._form = form
        names = [one.name for one in use.functions]
        befores = dict.fromkeys([form.shown, form.written, form.written.lstrip()])
        self._heads = [(before + name + form.between, name) for before in befores for name in names]
        # Beginnings of further calls. The text of `form.more` belongs to the format, and is not part of the answer.
        more = shown_of(form.more or ())
        self._next = [(more + name + form.between, name) for name in names] if form.more is not None else []
        self._state: Literal["text", "head", "arguments", "next"] = "head" if use.required else "text"
        self._held = ""
        self._depth = 0
        self._in_text = self._escaped = False
        self._anything = False
        self.complete = False

    def feed(self, piece: str, *, special: bool = False) -> Iterator[tuple[PartKind, str]]:
        """Add a piece of the answer, and yield the parts that are complete.

        special: whether the special token that begins a call was generated before this piece.
        """
        self._held += piece
        if self._state == "text":
            if special:
                self._state = "head"
            else:
                yield from self._text()
        if self._state == "head":
            yield from self._head(self._heads)
        # A piece may contain the end of one call and the whole next call.
        while self._held and self._state in ("arguments", "next"):
            before = self._state, len(self._held)
            yield from self._arguments() if self._state == "arguments" else self._head(self._next)
            if (self._state, len(self._held)) == before:
                break

    def _head(self, heads: Sequence[tuple[str, str]]) -> Iterator[tuple[PartKind, str]]:
        # Text that was held back as a possible stop text may precede the call, so search for the call's beginning.
        places = [(self._held.find(head), -len(head), name) for head, name in heads]
        at, length, name = min((one for one in places if one[0] >= 0), default=(-1, 0, ""))
        if at < 0:
            return
        text, self._held = self._held[:at], self._held[at - length :]
        if text.strip() and self._state == "head":
            yield "text", text
        self._state, self.complete = "arguments", False
        yield "name", name

    def end(self) -> Iterator[tuple[PartKind, str]]:
        """Yield the text that was held back."""
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
        # The end of this piece may be the beginning of the mark, so it is held back until the next piece.
        keep = max((n for n in range(1, len(mark)) if self._held.endswith(mark[:n])), default=0)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if text:
            self._anything = True
            yield "text", text

    def _arguments(self) -> Iterator[tuple[PartKind, str]]:
        # Count brackets to find the end of the arguments: a JSON parser would need the complete text.
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
                    self._state, self.complete = "next", True
                    whole, self._held = self._held[: index + 1], self._held[index + 1 :]
                    yield "arguments", whole
                    return
        if self._held:
            yield "arguments", self._held
            self._held = ""
