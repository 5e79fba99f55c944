"""Pages and pictures that are generated from the code are up to date; programs and commands on pages run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from scripts.makers import commands_page, which_command
from tests.unit.test_texts import PAGES, ROOT, complaint

_FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_RUNS = re.compile(r"<!-- runs as: (?P<path>\S+) -->\n```python\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_TYPED = re.compile(r"^(?:\$ )?(?P<command>qnnbridge [a-z-].*)$", re.MULTILINE)


def test_the_page_of_commands_is_generated_from_the_commands() -> None:
    assert commands_page.PAGE.read_text("utf-8") == commands_page.page(), (
        "run: python -m scripts.makers.commands_page"
    )


def test_the_picture_of_commands_shows_its_table_and_only_commands_that_exist() -> None:
    assert which_command.PICTURE.read_text("utf-8") == which_command.picture(), (
        "run: python -m scripts.makers.which_command"
    )
    commands = [command for _, row in which_command.ROWS for command, _ in row]
    assert len(commands) > 20
    assert [(one, wrong) for one in commands if (wrong := complaint(one.split()))] == []


def programs() -> list[tuple[str, str, str]]:
    return [
        (str(page.relative_to(ROOT)), found["path"], found["body"])
        for page in PAGES
        for found in _RUNS.finditer(page.read_text("utf-8"))
    ]


@pytest.mark.parametrize(("page", "path", "body"), programs(), ids=lambda value: value if len(value) < 60 else "")
def test_a_program_on_a_page_is_the_one_that_a_test_runs(page: str, path: str, body: str) -> None:
    assert body == (ROOT / path).read_text("utf-8"), page


def test_pages_with_programs_are_found() -> None:
    assert len(programs()) >= 3


def typed(page: Path) -> list[str]:
    return [
        found["command"]
        for block in _FENCE.finditer(page.read_text("utf-8"))
        if block["kind"] in ("sh", "bat", "console", "")
        for found in _TYPED.finditer(block["body"])
    ]


def test_every_command_in_a_code_block_of_a_page_exists_with_its_options() -> None:
    found = [(page, command) for page in PAGES for command in typed(page)]
    assert len(found) > 100
    wrong = [
        f"{page.relative_to(ROOT)}: {command}: {what}"
        for page, command in found
        if (what := complaint(_words(command)))
    ]
    assert wrong == []


def _words(command: str) -> list[str]:
    # Up to the operators of the shell; arguments after a program of `exec` belong to the program.
    words = shlex.split(command.replace("\\", "/"), comments=True)[1:]
    for end in ("&&", "|", ">", ";"):
        words = words[: words.index(end)] if end in words else words
    if words[:1] == ["exec"]:
        program = next(
            (place for place, word in enumerate(words) if word.endswith(".py") or word == "-m"), len(words)
        )
        words = words[:program]
    return words
