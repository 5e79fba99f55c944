"""Commands in messages and pages, linked files, and names that examples import exist."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import re
from pathlib import Path

import pytest
import typer.main

from qnnbridge_tools.cli import app

ROOT = Path(__file__).parents[2]
FOLDERS = ("bridge_x86", "daemon", "host_arm64", "protocol", "tools", "tests", "docs", "examples")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".toml") and path != Path(__file__)
]

# A command line in backquotes, as in messages and pages.
_NAMED = re.compile(r"`qnnbridge(?P<words>(?: +[^\s`]+)+)`")
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
_DOTTED = re.compile(r"`(?P<name>qnnbridge_\w+(?:\.\w+)+)`")

# Building the command takes a tenth of a second, and hundreds of texts contain a command.
the_command = functools.cache(lambda: typer.main.get_command(app))


def complaint(words: list[str]) -> str | None:
    """Return the fault in the commands and options of a command line; ``None`` if there is none."""
    command = the_command()
    for word in words:
        commands = getattr(command, "commands", None)
        if word.startswith("-") and word != "-":
            known = {name for option in command.params for name in option.opts}
            if not word.lstrip("-").isdigit() and word not in known | {"--help"}:
                return f"no option {word}"
        elif commands is not None and re.fullmatch(r"[a-z][a-z-]*", word):
            if word not in commands:
                return f"no command {word}"
            command = commands[word]
    return None


def named(text: str) -> list[list[str]]:
    # Texts in source code consist of several lines; a command line does not span two of them.
    return [match["words"].partition("|")[0].split() for match in _NAMED.finditer(text)]


def test_every_command_in_a_text_exists() -> None:
    found = [
        (path, words, wrong)
        for path in (*SOURCES, ROOT / "README.md", ROOT / "CHANGELOG.md")
        for words in named(path.read_text("utf-8"))
        for wrong in [complaint(words)]
    ]
    assert len(found) > 20
    assert not [f"{path.relative_to(ROOT)}: {' '.join(words)}: {wrong}" for path, words, wrong in found if wrong]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("physician", "no command physician"),
        ("crashes shaw last", "no command shaw"),
        ("demo --colour", "no option --colour"),
        ("crashes show last", None),
        ("run MODEL --random", None),
        ("explain -1073740791", None),
        ("--version", None),
    ],
)
def test_the_check_detects_a_wrong_command(line: str, expected: str | None) -> None:
    assert complaint(line.split()) == expected


PRODUCT = [
    path for path in SOURCES if path.suffix == ".py" and path.relative_to(ROOT).parts[0] not in ("tests", "docs")
]
# Commands without a model: an option follows, or the text continues.
_WITHOUT_A_MODEL = {"cache", "crashes", "doctor", "exec", "host", "serve", "setup", "versions"}


def by_hand(source: str) -> list[str]:
    """Return the beginnings of commands for a model that a text builds without `model_command`."""
    found = []
    commands = getattr(the_command(), "commands", {}).keys() - _WITHOUT_A_MODEL
    texts = [text for text in ast.walk(ast.parse(source)) if isinstance(text, ast.JoinedStr)]
    for text in texts:
        for before, after in itertools.pairwise(text.values):
            words = str(before.value) if isinstance(before, ast.Constant) else ""
            command = re.search(r"qnnbridge ([a-z]+) $", words)
            if command and command[1] in commands and "word" not in ast.unparse(after):
                found.append(f"line {text.lineno}: {words[-40:]}")
    return found


@pytest.mark.parametrize(
    "path", [path for path in PRODUCT if "qnnbridge " in path.read_text("utf-8")], ids=lambda path: path.stem
)
def test_commands_for_a_model_are_built_in_one_place(path: Path) -> None:
    source = path.read_text("utf-8")
    assert not by_hand(source)
    for text in ast.walk(ast.parse(source)):
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            assert not re.search(r"-o OUT\b|-o \.\.\.", text.value), text.lineno


def test_the_check_detects_a_command_that_is_built_by_hand() -> None:
    assert by_hand('f"Run: qnnbridge verify {path}."') == ["line 1: Run: qnnbridge verify "]
    assert not by_hand('f"Run: qnnbridge verify {shell_word(path)}." + model_command("verify", path)')


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    text = _FENCE.sub("", page.read_text("utf-8"))
    targets = [match["target"].partition("#")[0] for match in _LINK.finditer(text)]
    missing = [
        target
        for target in targets
        if target and not re.match(r"[a-z]+:", target) and not (page.parent / target).exists()
    ]
    assert not missing


def exists(dotted: str) -> bool:
    """Return whether a dotted name is a module or a name in a module."""
    module, _, name = dotted.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(dotted))
    except ImportError:
        return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_that_a_page_imports_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    names = {match["name"] for match in _DOTTED.finditer(text)}
    for block in _PYTHON.finditer(text):
        for node in ast.walk(ast.parse(block["code"], str(page), type_comments=False)):
            if isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    missing = {name for name in names if name.startswith("qnnbridge") and not exists(name)}
    assert missing == set()
