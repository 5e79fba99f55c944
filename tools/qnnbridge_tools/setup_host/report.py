"""A set-up's plan and result, as text, as commands for a shell, and as a JSON document."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge_tools.setup_host.plan import SetupPlan
from qnnbridge_tools.versions.fitness import short_sdk

if TYPE_CHECKING:
    from qnnbridge import HostInfo
    from qnnbridge_tools.doctor.findings import Report

_PLAIN_CMD = re.compile(r"[A-Za-z0-9_\-.:\\/+=,@\[\]]+")
_PLAIN_POWERSHELL = re.compile(r"[A-Za-z0-9_\-.:\\/+=]+")


def posix_text(command: Sequence[str]) -> str:
    return shlex.join(command)


def cmd_text(command: Sequence[str]) -> str:
    """A line for the Command Prompt, where ``<`` and ``>`` need double quotes."""
    return " ".join(word if _PLAIN_CMD.fullmatch(word) else _quoted_for_windows(word) for word in command)


def powershell_text(command: Sequence[str]) -> str:
    """A line for PowerShell, which runs a quoted program only after ``&``."""
    words = [word if _PLAIN_POWERSHELL.fullmatch(word) else "'" + word.replace("'", "''") + "'" for word in command]
    return " ".join(["&", *words] if words[0].startswith("'") else words)


def _quoted_for_windows(word: str) -> str:
    quoted = subprocess.list2cmdline([word])
    return quoted if quoted.startswith('"') else f'"{word}"'


SCHEMA_VERSION = 1


def print_plan(plan: SetupPlan) -> None:
    from qnnbridge_tools import output
    from qnnbridge_tools.versions.view import machine_pairs

    choice = plan.choice
    bundled = f" with QNN {short_sdk(choice.release.qnn_sdk)}" if choice.release.qnn_sdk else ""
    pairs = [
        ("interpreter", choice.candidate.text),
        ("package", f"{choice.release.name}{bundled}"),
        *[("", f"{reason.severity}: {reason.text}") for reason in choice.judgement.reasons],
        ("qnnbridge", f"from {plan.source.text}"),
        ("folder", f"{plan.folder}" + (" (replaces the environment there)" if plan.replaces_environment else "")),
        ("configuration", _config_text(plan)),
    ]
    output.print_pairs("Judged for", machine_pairs(choice.machine))
    print()
    output.print_pairs("The host", pairs)
    for warning in plan.warnings:
        print(f"Warning: {warning}")


def print_commands(plan: SetupPlan) -> None:
    """The same work by hand."""
    shells = (("Command Prompt", cmd_text), ("PowerShell", powershell_text)) if os.name == "nt" else None
    for name, to_text in shells or (("Commands", posix_text),):
        print(f"{name}:")
        for command in (*plan.commands, doctor_command(plan)):
            print(f"  {to_text(command)}")
        print()
    if plan.config is not None:
        print(f"{plan.config} becomes:")
        print("\n".join(f"  {line}" for line in plan.config_text.splitlines()))


def doctor_command(plan: SetupPlan) -> tuple[str, ...]:
    """The last step: it ends with 0 if QNN can be used. Run by this interpreter, in which the command is."""
    return (sys.executable, "-m", "qnnbridge_tools", "doctor", "--host-python", str(plan.python))


def print_result(plan: SetupPlan, info: HostInfo, found: Report) -> None:
    from qnnbridge_tools import output, session_report
    from qnnbridge_tools.doctor.report import report_text

    pairs = [
        ("Python", f"{info.python}, {info.machine}"),
        ("interpreter", info.executable),
        ("installed", session_report.installed_text(info)),
    ]
    print()
    output.print_pairs("The host is set up", pairs)
    if plan.config is None:
        print(f"Name it in QNNBRIDGE_HOST_PYTHON, or as Host(python=...): {plan.python}")
    print()
    print(report_text(found))


def document(plan: SetupPlan, info: HostInfo | None = None, found: Report | None = None) -> dict[str, Any]:
    """`info` and `found` are of a set-up that was carried out."""
    from qnnbridge_tools import session_report
    from qnnbridge_tools.doctor.report import report_document

    choice = plan.choice
    return {
        "schema": SCHEMA_VERSION,
        "done": info is not None,
        "interpreter": {
            "path": choice.candidate.path,
            "version": "{}.{}.{}".format(*choice.candidate.answer.version),
            "platform": choice.candidate.answer.platform,
        },
        "onnxruntime_qnn": choice.release.version,
        "qnn_sdk": choice.release.qnn_sdk,
        "reasons": [
            {"code": reason.code, "severity": reason.severity, "text": reason.text}
            for reason in choice.judgement.reasons
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
        "host": session_report.host_document(info) if info is not None else None,
        "doctor": report_document(found) if found is not None else None,
    }


def _config_text(plan: SetupPlan) -> str:
    if plan.config is None:
        return "is left alone"
    return f"{plan.config}" + (f" (replaces {plan.replaced_setting})" if plan.replaced_setting else "")
