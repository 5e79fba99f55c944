"""docs/daemon.md matches the code."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import typer
from tests.tools.daemon_documents import busy_daemon

from qnnbridge_tools import reporting
from qnnbridge_tools.cli import app
from qnnbridge_tools.host import service
from qnnbridge_tools.host.figures import read_figures
from qnnbridge_tools.host.metrics import metrics_text
from qnnbridge_tools.host.service import TASK_NAME
from qnnbridge_tools.options import DaemonOptions
from qnnbridge_tools.top import SortOrder, head

PAGE = (Path(__file__).parents[2] / "docs" / "daemon.md").read_text("utf-8")
COMMANDS = typer.main.get_command(app)


def part(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def options_of(command: click.Command) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)} - {"--help"}


def host_commands() -> dict[str, click.Command]:
    return dict(COMMANDS.commands["host"].commands)  # type: ignore[attr-defined]


def test_every_command_on_the_page_exists_with_its_options() -> None:
    found = re.findall(r"(?:`|^|\s)qnnbridge (host|top)((?: [a-z-]+)*)([^`\n]*)", PAGE)
    seen = set()
    for group, words, rest in found:
        command = COMMANDS.commands[group]  # type: ignore[attr-defined]
        name = words.split()[0] if words.split() and group == "host" else ""
        if name:
            command = command.commands[name]
            seen.add(name)
        used = set(re.findall(r"(?<![\w-])--[a-z-]+", rest))
        assert used <= options_of(command), (group, name)
    assert seen == set(host_commands())


def test_every_option_is_on_the_page() -> None:
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    for command in (*host_commands().values(), COMMANDS.commands["top"]):  # type: ignore[attr-defined]
        assert {name for name in options_of(command) if name.startswith("--")} <= mentioned, command.name


def test_the_table_of_options_equals_that_of_a_daemon() -> None:
    listed = re.findall(r"^\| `(--[a-z-]+) ", part("Options of a daemon"), re.MULTILINE)
    fields = {f"--{name.replace('_', '-')}" for name in DaemonOptions.__dataclass_fields__}
    assert (set(listed), len(listed)) == (fields, len(fields))


@pytest.mark.parametrize(
    "name", ["slots", "max_sessions", "max_queued", "max_bytes", "max_kv_bytes", "idle_unload"]
)
def test_the_defaults_on_the_page_and_in_the_help_are_those_of_the_daemon(name: str) -> None:
    from qnnbridge_daemon.main import parse_options

    settings = parse_options([]).settings
    limits = settings.limits
    default = {
        "slots": f"{settings.slots}",
        "max_sessions": f"{limits.sessions}",
        "max_queued": f"{limits.queued}",
        "max_bytes": f"{limits.bytes >> 30}G",
        "max_kv_bytes": f"{limits.kv_bytes >> 30}G",
        "idle_unload": f"{settings.idle_unload_s:g}",
    }[name]
    option = f"--{name.replace('_', '-')}"
    assert re.search(rf"^\| `{option} \w+` \| {default} \|", part("Options of a daemon"), re.MULTILINE)
    (parameter,) = [one for one in host_commands()["start"].params if one.name == name]
    assert f"Default {default}." in str(parameter.help)  # type: ignore[attr-defined]


def test_every_option_that_the_daemon_accepts_can_be_given() -> None:
    """The reverse: the daemon accepts each option that is passed on."""
    from qnnbridge_daemon.main import parse_options

    given = DaemonOptions("/py", 5.0, 7.5, 2, 3, 4, "1G", "3G", "2G", 6)
    parsed = parse_options(given.words())
    limits = parsed.settings.limits
    assert (parsed.python, parsed.idle_exit_s, parsed.settings.idle_unload_s) == ("/py", 5.0, 7.5)
    assert (parsed.settings.slots, limits.sessions, limits.queued, limits.bytes) == (2, 3, 4, 1 << 30)
    assert limits.kv_bytes == 3 << 30
    assert (parsed.recycle.rss_bytes, parsed.recycle.creations) == (2 << 30, 6)


def test_the_exit_codes_equal_those_of_the_commands() -> None:
    from qnnbridge_daemon.main import EXIT_RUNNING

    listed = {int(code): text for code, text in re.findall(r"^\| (\d) \| (.*) \|$", part("Commands"), re.MULTILINE)}
    assert set(listed) == {
        0,
        reporting.EXIT_FAILED,
        reporting.EXIT_BAD_INPUT,
        reporting.EXIT_NO_DAEMON,
        EXIT_RUNNING,
        reporting.EXIT_DAEMON_UNREACHABLE,
        reporting.EXIT_DAEMON_OTHER_VERSION,
    }
    assert listed[reporting.EXIT_NO_DAEMON] == "no daemon runs"
    assert "cannot be reached" in listed[reporting.EXIT_DAEMON_UNREACHABLE]
    assert "version" in listed[reporting.EXIT_DAEMON_OTHER_VERSION]
    assert "host run" in listed[EXIT_RUNNING]


def test_the_table_of_metrics_equals_the_printed_one() -> None:
    text = metrics_text(busy_daemon())
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", part("Metrics"), re.MULTILINE)
    assert rows == [(name, types[name], helps[name]) for name in types]


def test_the_example_of_the_live_view_on_the_page_has_the_printed_lines() -> None:
    for line in head(read_figures(busy_daemon())):
        assert line in part("top").splitlines()
    assert f"(`--sort`: {', '.join(order.value for order in SortOrder)})" in part("top")


def test_the_instructions_on_the_page_equal_the_printed_ones() -> None:
    text = part("As a service")
    assert f"~/.config/systemd/user/{service.UNIT_NAME}" in text
    assert f"enable --now {service.UNIT_NAME}" in text
    assert text.count(f'/TN "{TASK_NAME}"') == 2
