"""Makes a command of a function that takes records of options: its parameters are the fields of the records.

A record is a frozen dataclass. Its fields carry `typer.Option` or `typer.Argument` as their annotation, or are
records themselves. The type of a field decides how it is given: a literal is a choice, a tuple is an option that
may be repeated, and `Read` names the function that makes the value of what was written.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from qnnbridge_tools import reporting

WORDS: Final[Any] = tuple[str, ...]
# Metadata of a field that no command line gives: it keeps its default.
APART: Final[Mapping[str, bool]] = {"apart": True}


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """How the value of a field is made of what was written.

    Args:
        given: the type of that, or a record of options.
        default: what stands for nothing written, if the default of the field has another type.
    """

    value: Callable[[Any], Any]
    given: Any = WORDS
    default: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """What a field is on the command line: its parameters, and what makes its value of all that was given."""

    parameters: tuple[inspect.Parameter, ...]
    value: Callable[[Mapping[str, Any]], Any]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The command. It ends as `reporting.work` says; with `as_json` among its options an error is a document."""
    own = inspect.signature(function, eval_str=True)
    parts = {name: _part(name, one.annotation, one.default) for name, one in own.parameters.items()}
    parameters = [one for part in parts.values() for one in part.parameters]
    defaults = {one.name: one.default for one in parameters}

    @functools.wraps(function)
    def made(**values: Any) -> None:
        # Called as a function (`host` without a subcommand calls `status`), it gets the defaults that typer would
        # give.
        given = {**defaults, **values}
        with reporting.work(as_json=bool(given.get("as_json"))):
            function(**{name: part.value(given) for name, part in parts.items()})

    # typer reads the signature and the annotations, and both have to say the same.
    made.__annotations__ = {one.name: one.annotation for one in parameters}
    made.__dict__["__signature__"] = inspect.Signature(parameters)
    return made


def _part(name: str, hint: Any, default: Any) -> _Part:
    notes: list[Any] = []
    if typing.get_origin(hint) is Annotated:
        hint, *notes = typing.get_args(hint)
    read = next((note for note in notes if isinstance(note, Read)), None)
    record = hint if read is None else read.given
    if dataclasses.is_dataclass(record):
        return _of_record(record, read)
    if read is None:
        hint, value, default = _written(hint, default)
    else:
        notes.remove(read)
        given_default = () if read.given is WORDS else read.default if read.default is not None else default
        hint, written, default = _written(read.given, given_default)
        value = functools.partial(_both, written, read.value)
    # `Annotated[hint, *notes]` is no syntax before Python 3.11.
    annotation = operator.getitem(Annotated, (hint, *notes)) if notes else hint
    # Keyword-only: these may stand without a default behind those that have one.
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    return _Part((parameter,), lambda given: value(given[name]))


def _both(first: Callable[[Any], Any], second: Callable[[Any], Any], given: Any) -> Any:
    return second(first(given))


def _of_record(record: Any, read: Read | None) -> _Part:
    hints = typing.get_type_hints(record, include_extras=True)
    parts = {}
    for field in dataclasses.fields(record):
        if not field.metadata.get("apart"):
            needed = field.default is field.default_factory  # neither is there
            default = None if field.default is dataclasses.MISSING else field.default
            parts[field.name] = _part(field.name, hints[field.name], inspect.Parameter.empty if needed else default)

    def value(given: Mapping[str, Any]) -> Any:
        made = record(**{name: part.value(given) for name, part in parts.items()})
        return made if read is None else read.value(made)

    return _Part(tuple(one for part in parts.values() for one in part.parameters), value)


def _written(hint: Any, default: Any) -> tuple[Any, Callable[[Any], Any], Any]:
    """The type that typer reads, what makes a value of this type of it, and the default."""
    inner = hint
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(inner) is tuple:
        element, value, _ = _written(typing.get_args(inner)[0], None)
        absent = default if default is inspect.Parameter.empty else None
        several = types.GenericAlias(list, (element,)) | None
        return several, lambda given: tuple(map(value, given)) if given else default, absent
    if typing.get_origin(inner) is Literal:
        words = typing.get_args(inner)
        choice: Any = enum.Enum("Choice", [(word, word) for word in words], type=str)  # type: ignore[misc]
        form = choice if inner is hint else choice | None
        return (
            form,
            lambda one: None if one is None else one.value,
            choice(default) if default in words else default,
        )
    return hint, lambda one: one, default
