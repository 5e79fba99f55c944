"""`qnnbridge setup-host`: an environment for the host, from nothing to a host that the doctor has examined."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import reporting
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import AsJson, SetupOptions

if TYPE_CHECKING:
    from qnnbridge import HostInfo
    from qnnbridge_tools.doctor.findings import Report
    from qnnbridge_tools.setup_host.plan import SetupPlan


@command
def setup_host(
    options: SetupOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the host's environment, with a QNN that fits this computer.

    Ends with 0 if the new host can be used, 1 if nothing was made or the doctor finds that QNN cannot be used.
    """
    from qnnbridge._launch import Surroundings
    from qnnbridge_tools import output
    from qnnbridge_tools.doctor.examine import SurveyOptions, examined
    from qnnbridge_tools.doctor.findings import Severity
    from qnnbridge_tools.setup_host.plan import make_plan
    from qnnbridge_tools.setup_host.steps import carry_out
    from qnnbridge_tools.setup_host.this_machine import npu_traits

    facts = npu_traits(options.system_sdk, options.chip)
    # Before anything is planned. With --json the question would stand in the document on stdout.
    if not (dry_run or yes) and (as_json or not sys.stdin.isatty()):
        raise OptionError(
            "This command cannot ask here whether to go on.",
            fix="Add --yes, or --dry-run to see what would be done.",
        )
    plan = make_plan(options, facts, Surroundings.current())
    if not as_json:
        print_plan(plan)
        print()
    if dry_run:
        reporting.show(plan, document, print_commands, as_json=as_json)
        return
    if not yes and not typer.confirm("Go on?"):
        raise typer.Exit(reporting.EXIT_FAILED)
    info = carry_out(plan, _say, _detail)
    _say("Examining the new host")
    if plan.engine != "wheel":
        os.environ.update(plan.variables)  # for the doctor: with --no-config the file does not say it
    # The table of known-wrong operators comes from the simulator: there it has nothing to measure.
    found = examined(SurveyOptions(host_python=str(plan.python), numbers=info.machine == "ARM64"))[0]
    if as_json:
        output.print_json(document(plan, info, found))
    else:
        print_result(plan, info, found)
    if found.severity is Severity.BLOCKED:
        raise typer.Exit(reporting.EXIT_FAILED)


def _say(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


def _detail(line: str) -> None:
    """The lines of pip that say why it takes long."""
    shown = line.strip()
    # pip names a size for each download; only those in MB take time.
    if (shown.startswith("Downloading ") and shown.endswith("MB)")) or shown.startswith("Building wheel"):
        print(f"  {shown}", file=sys.stderr, flush=True)
    elif shown.startswith('{"progress":'):
        # The line of `qnnbridge_host.windows_ml download`, a number from 0 to 1.
        percent = shown.removeprefix('{"progress":').removesuffix("}")
        print(f"  {float(percent):.0%}", file=sys.stderr, flush=True)
    elif shown.startswith("Installing collected packages"):
        print(f"  Unpacking {shown.count(',') + 1} packages", file=sys.stderr, flush=True)


# --- a set-up's plan and result, as text, as commands for a shell, and as a JSON document ---

_PLAIN_CMD = re.compile(r"[A-Za-z0-9_\-.:\\/+=,@\[\]]+")
# Fewer characters than for cmd: `@`, `,` and square brackets have a meaning in PowerShell.
_PLAIN_POWERSHELL = re.compile(r"[A-Za-z0-9_\-.:\\/+=]+")


def cmd_text(command: Sequence[str]) -> str:
    """A line for the Command Prompt, where ``<`` and ``>`` need double quotes."""
    return " ".join(word if _PLAIN_CMD.fullmatch(word) else _quoted_for_windows(word) for word in command)


def powershell_text(command: Sequence[str]) -> str:
    """A line for PowerShell, which runs a quoted program only after ``&``."""
    words = [word if _PLAIN_POWERSHELL.fullmatch(word) else "'" + word.replace("'", "''") + "'" for word in command]
    return " ".join(["&", *words] if words[0].startswith("'") else words)


def _quoted_for_windows(word: str) -> str:
    quoted = subprocess.list2cmdline([word])
    # `list2cmdline` quotes for spaces alone, and `<` would redirect.
    return quoted if quoted.startswith('"') else f'"{word}"'


SCHEMA_VERSION = 1


def print_plan(plan: SetupPlan) -> None:
    from qnnbridge_tools import output
    from qnnbridge_tools.versions.view import machine_pairs

    reasons = plan.choice.judgement.reasons if plan.choice else ()
    pairs = [
        ("interpreter", plan.candidate.text),
        ("QNN", plan.package),
        *[("", f"{reason.severity}: {reason.text}") for reason in reasons],
        *([("download", _download_text(plan))] if plan.download else []),
        ("qnnbridge", f"from {plan.source.text}"),
        ("folder", f"{plan.folder}" + (" (replaces the environment there)" if plan.replaces_environment else "")),
        ("configuration", _config_text(plan)),
    ]
    output.print_pairs("Judged for", machine_pairs(plan.machine))
    print()
    output.print_pairs("The host", pairs)
    for warning in plan.warnings:
        print(f"Warning: {warning}")


def print_commands(plan: SetupPlan) -> None:
    """The same work by hand."""
    # Both shells of Windows are served: nobody knows which one the lines will be pasted into.
    shells = (("Command Prompt", cmd_text), ("PowerShell", powershell_text)) if os.name == "nt" else None
    for name, to_text in shells or (("Commands", shlex.join),):
        print(f"{name}:")
        for words in (*plan.commands, doctor_command(plan)):
            print(f"  {to_text(words)}")
        print()
    if plan.config is not None:
        print(f"{plan.config} becomes:")
        print("\n".join(f"  {line}" for line in plan.config_text.splitlines()))


def doctor_command(plan: SetupPlan) -> tuple[str, ...]:
    """The last step: it ends with 0 if QNN can be used. Run by this interpreter, in which the command is."""
    return (sys.executable, "-m", "qnnbridge_tools", "doctor", "--host-python", str(plan.python))


def print_result(plan: SetupPlan, info: HostInfo, found: Report) -> None:
    from qnnbridge_tools import output, reporting
    from qnnbridge_tools.doctor.findings import report_text

    print()
    installed = ("installed", reporting.installed_text(info))
    output.print_pairs("The host is set up", [*reporting.interpreter_pairs(info), installed])
    if plan.config is None:
        print(f"Name it in QNNBRIDGE_HOST_PYTHON, or as Host(python=...): {plan.python}")
        for name, value in plan.variables.items():
            if value and plan.engine != "wheel":
                print(f"and set {name}={value}")
    if plan.download is not None and not info.qnn_source:
        print(f"Windows has not got its provider for QNN here. To download it: {_shell_text(plan.download)}")
    print()
    print(report_text(found))


def document(plan: SetupPlan, info: HostInfo | None = None, found: Report | None = None) -> dict[str, Any]:
    """`info` and `found` are of a set-up that was carried out."""
    from qnnbridge_tools import reporting
    from qnnbridge_tools.doctor.findings import report_document

    choice, provider = plan.choice, plan.provider
    return {
        "schema": SCHEMA_VERSION,
        "done": info is not None,
        "engine": plan.engine,
        "provider": plan.provider.to_wire() if plan.provider else None,
        "download_command": list(plan.download) if plan.download else None,
        "interpreter": {
            "path": plan.candidate.path,
            "version": "{}.{}.{}".format(*plan.candidate.answer.version),
            "platform": plan.candidate.answer.platform,
        },
        "onnxruntime_qnn": choice.release.version if choice else provider.release if provider else None,
        "qnn_sdk": choice.release.qnn_sdk if choice else provider.sdk if provider else None,
        "reasons": [
            {"code": reason.code, "severity": reason.severity, "text": reason.text}
            for reason in (choice.judgement.reasons if choice else ())
        ],
        "source": str(plan.source.path) if plan.source.path else None,
        "folder": str(plan.folder),
        "python": str(plan.python),
        "commands": [list(command) for command in plan.commands],
        "configuration": str(plan.config) if plan.config else None,
        "configuration_text": plan.config_text if plan.config else None,
        "replaces_environment": plan.replaces_environment,
        "replaced_setting": plan.replaced_setting,
        "warnings": list(plan.warnings),
        "host": reporting.host_document(info) if info is not None else None,
        "doctor": report_document(found) if found is not None else None,
    }


def _download_text(plan: SetupPlan) -> str:
    if plan.download in plan.commands:
        return "Windows downloads its provider for QNN, if it is not on this computer"
    return "none; a provider that is not on this computer is downloaded only with --download"


def _shell_text(command: Sequence[str]) -> str:
    return powershell_text(command) if os.name == "nt" else shlex.join(command)


def _config_text(plan: SetupPlan) -> str:
    if plan.config is None:
        return "is left alone"
    return f"{plan.config}" + (f" (replaces {plan.replaced_setting})" if plan.replaced_setting else "")
