"""Every finding has a machine, every area has a check, and the commands of every fix exist."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from pathlib import Path

import click
import pytest
import typer
from broken_machines import BROKEN
from documented_attempts import ATTEMPTS
from healthy_machines import HEALTHY

from qnnbridge_tools.cli import app
from qnnbridge_tools.doctor import subjects
from qnnbridge_tools.doctor.examine import CHECKS, SurveyOptions, diagnose, survey
from qnnbridge_tools.doctor.findings import CATALOGUE, Finding, SubjectCheck

HERE = Path(__file__).parent
# Findings that test_doctor_model and test_doctor_report show with real files.
ELSEWHERE = ("model.", "doctor.")


@functools.cache
def findings() -> list[Finding]:
    found: list[Finding] = []
    for case in (*ATTEMPTS, *BROKEN):
        built = case.build()
        machine, order = built if isinstance(built, tuple) else (built, SurveyOptions())
        found += diagnose(survey(machine, order)).findings
    return found


def test_the_ten_documented_attempts_and_the_most_common_mistake_are_present() -> None:
    numbers = [attempt.name.split()[0] for attempt in ATTEMPTS]
    assert numbers[:10] == [str(number) for number in range(1, 11)]
    assert len(ATTEMPTS) == 11
    assert len({attempt.build for attempt in ATTEMPTS}) == 11
    assert [attempt.code for attempt in ATTEMPTS if attempt.name.startswith(("9 ", "10 "))] == [None, None]


def test_there_are_forty_or_more_further_broken_computers() -> None:
    attempts = {attempt.build.__name__ for attempt in ATTEMPTS}
    further = {broken.build.__name__ for broken in BROKEN} - attempts
    assert len(further) == len(BROKEN) >= 80
    assert len({broken.code for broken in BROKEN}) >= 65


def test_there_are_ten_or_more_healthy_computers() -> None:
    names = {build.__name__ for build in HEALTHY}
    assert len(names) == len(HEALTHY) >= 15
    assert names >= {
        "native_host_with_1_23",
        "native_host_with_2_7",
        "linux_with_the_simulator",
        "x64_pc_for_compiling",
        "two_native_interpreters_and_an_empty_newer_one",
    }


def test_every_finding_of_the_catalogue_occurs_on_a_simulated_computer() -> None:
    shown = {broken.code for broken in BROKEN} | {attempt.code for attempt in ATTEMPTS}
    texts = "".join((HERE / name).read_text() for name in ("test_doctor_model.py", "test_doctor_report.py"))
    missing = [code for code in CATALOGUE if code not in shown]
    assert [code for code in missing if not code.startswith(ELSEWHERE)] == []
    assert [code for code in missing if f'"{code}"' not in texts] == []


def test_every_check_of_the_subjects_is_made() -> None:
    modules = [
        importlib.import_module(f"{subjects.__name__}.{one.name}")
        for one in pkgutil.iter_modules(subjects.__path__)
    ]
    written = [one for module in modules for one in vars(module).values() if isinstance(one, SubjectCheck)]
    assert {check.name for check in written} == {check.name for check in CHECKS}
    assert len(written) == len({check.name for check in CHECKS}) == len(CHECKS) == 16


@pytest.mark.parametrize("code", CATALOGUE)
def test_the_code_that_a_finding_hides_is_a_finding(code: str) -> None:
    order = list(CATALOGUE)
    for hidden in CATALOGUE[code].hides:
        hits = [other for other in order if other.startswith(hidden)]
        assert hits, hidden
        assert any(order.index(other) > order.index(code) for other in hits), "consequences stand after causes"


def test_commands_in_fixes_exist() -> None:
    """Each ``qnnbridge ...`` in a fix is an existing command with existing options."""
    command = typer.main.get_command(app)
    seen = set()
    for found in findings():
        for text in re.findall(r"\bqnnbridge ((?:[a-z][a-z-]*)(?: [^\s().;]+)*)", found.fix):
            if text.split()[0] in ("needs", "in", "on"):
                continue
            seen.add(text.split()[0])
            _walk(command, text.split(), text)
    assert seen >= {"setup", "cache", "crashes", "quarantine"}


def _walk(command: click.Command, words: list[str], text: str) -> None:
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, text
        command = command.commands[words.pop(0)]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        assert not word.startswith("--") or word in options, text


def test_every_fix_with_pip_names_the_interpreter() -> None:
    """A bare ``pip`` is the first one on the PATH, which often belongs to another interpreter."""
    for found in findings():
        for match in re.finditer(r"\bpip (?:un)?install", found.fix):
            assert found.fix[: match.start()].rstrip().endswith("-m"), found.fix
