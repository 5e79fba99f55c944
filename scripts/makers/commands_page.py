"""Generate docs/commands.md from the commands: ``python -m scripts.makers.commands_page``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer.main

from qnnbridge_tools import cli
from qnnbridge_tools.examples import GUIDES

PAGE: Final = Path(__file__).parents[2] / "docs" / "commands.md"

_TOP: Final = """# Commands

This page is made from the commands (`python -m scripts.makers.commands_page`). `qnnbridge COMMAND --help`
shows the same in the terminal. [Which command?](index.md#which-command) starts from the task.
"""


def page() -> str:
    """Return the page's text."""
    command: Any = typer.main.get_command(cli.app)
    lines = [_TOP]
    for group, names in cli.GROUPS.items():
        lines += [f"## {group}", ""]
        first: dict[str, str] = {}
        for name, place in names.items():
            if first.setdefault(place, name) != name:
                lines += [f"`{name}` is another name of [{first[place]}](#{first[place]}).", ""]
            else:
                lines += _section(name, command.commands[name])
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, command: Any) -> Iterator[str]:
    guide = GUIDES[name]
    yield f"### {name}"
    yield ""
    yield _cell(inspect.cleandoc(command.help or "").split("\n\n")[0]) + f" More: [{guide.page}]({guide.page})."
    yield ""
    yield "```sh"
    width = max(len(arguments) for arguments, _ in guide.examples)
    yield from (f"qnnbridge {arguments:{width}}   # {what}" for arguments, what in guide.examples)
    yield "```"
    yield ""
    below = getattr(command, "commands", None)
    if below:
        yield from _table(("command", "effect"), [(f"`{name} {one}`", _first(below[one].help)) for one in below])
    rows = [_option(one) for one in command.params if one.param_type_name == "option" and not one.hidden]
    if rows:
        yield from _table(("option", "effect"), rows)


def _option(option: Any) -> tuple[str, str]:
    names = ", ".join((*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" {option.metavar or _type(option.type)}"
    return f"`{names}{value}`", _cell(option.help or "")


def _type(kind: Any) -> str:
    # Separate the choices by commas: a bar would end the cell of the table.
    return ", ".join(map(str, kind.choices)) if getattr(kind, "choices", None) else str(kind.name).upper()


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> Iterator[str]:
    yield f"| {head[0]} | {head[1]} |"
    yield "|---|---|"
    yield from (f"| {left} | {right} |" for left, right in rows)
    yield ""


def _first(text: str | None) -> str:
    return _cell(inspect.cleandoc(text or "").split("\n\n")[0])


def _cell(text: str) -> str:
    """Return the text as a table cell in one line. Angle brackets are escaped: Markdown reads them as tags."""
    return " ".join(text.replace("\b", "").split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
