"""The command `qnnbridge setup`, also available as `setup-host`: set up a host and examine it with the doctor."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.shell import command_line, command_prompt_line, powershell_line, shell_word
from qnnbridge_protocol.visible import visible
from qnnbridge_tools import reporting
from qnnbridge_tools.arguments import refuse_together
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import AsJson, SetupOptions

if TYPE_CHECKING:
    from qnnbridge import HostInfo
    from qnnbridge_tools.doctor.findings import Report
    from qnnbridge_tools.setup_host.made_host import Health, MadeHost
    from qnnbridge_tools.setup_host.plan import SetupPlan


COMMAND_SETTINGS = {"setup-host": {"short_help": "The older name of setup."}}

ALREADY = "Already set up"


class Purpose(enum.Enum):
    """What `setup` does with an existing host."""

    SET_UP = "set-up"
    UPGRADE = "--upgrade"
    REPAIR = "--repair"
    REMOVE = "--remove"


@command
def setup_host(
    options: SetupOptions,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Create the host again if a newer version works on this computer.")
    ] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Create the host again if it is not healthy.")] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the host, its setting and the Python downloaded for it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands without running them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set up this computer: Python, a host, a QNN that fits.

    Downloads what is missing, after asking. A second run changes nothing if the host is healthy. Exit code 0 if the
    host can be used, 1 if no host was created or the doctor finds that QNN cannot be used.
    """
    from qnnbridge_tools.setup_host.made_host import alone

    purpose = _purpose(upgrade=upgrade, repair=repair, remove=remove)
    # Check this before the plan, which takes seconds. With --json the question would become part of the document.
    if not (dry_run or yes) and (as_json or not sys.stdin.isatty()):
        raise OptionError(
            "This command cannot ask for a confirmation here.",
            cause="--json is given, or the input is not a terminal.",
            fix="Add --yes, or --dry-run to see the plan only.",
        )
    ask = None if yes else typer.confirm
    with contextlib.nullcontext() if dry_run else alone():
        if purpose is Purpose.REMOVE:
            _remove(options, ask, dry_run=dry_run, as_json=as_json)
        else:
            _set_up(options, purpose, ask, dry_run=dry_run, as_json=as_json)


def _purpose(*, upgrade: bool, repair: bool, remove: bool) -> Purpose:
    given = [
        one
        for one, is_given in ((Purpose.UPGRADE, upgrade), (Purpose.REPAIR, repair), (Purpose.REMOVE, remove))
        if is_given
    ]
    if len(given) > 1:
        refuse_together(given[0].value, {given[1].value: True})
    return given[0] if given else Purpose.SET_UP


Ask = Callable[[str], bool]


def _set_up(options: SetupOptions, purpose: Purpose, ask: Ask | None, *, dry_run: bool, as_json: bool) -> None:
    from qnnbridge._launch import Surroundings
    from qnnbridge_tools import output
    from qnnbridge_tools.doctor.examine import SurveyOptions, examined
    from qnnbridge_tools.setup_host import environment, made_host
    from qnnbridge_tools.setup_host.plan import make_plan
    from qnnbridge_tools.setup_host.steps import carry_out
    from qnnbridge_tools.setup_host.this_machine import npu_traits

    surroundings = Surroundings.current()
    there = None if options.replace else made_host.made_host(options, surroundings)
    # If the configured host or source of QNN differs from the options, continue with `make_plan`, which handles it.
    if there is not None and _is_the_one_asked_for(options, there, purpose):
        health = made_host.examine(there)
        if purpose is Purpose.SET_UP and health.error is not None:
            raise environment.failed(
                "check",
                f"The host in {there.folder} does not start, although it is set up.",
                cause=health.error.message,
                fix="Create it again: qnnbridge setup --repair" + _dir_words(options),
                evidence=health.error.evidence,
            )
        if purpose is Purpose.SET_UP and _has_version(options, health):
            _show_health(there, health, options, ALREADY, as_json=as_json)
            return
        if purpose is Purpose.REPAIR and health.is_usable:
            _show_health(there, health, options, "Nothing to repair", as_json=as_json)
            return
    else:
        health = made_host.Health(None, None)
    if there is not None and purpose is not Purpose.SET_UP:
        options = made_host.with_settings_of(options, there)
    plan = make_plan(options, npu_traits(options.system_sdk, options.chip), surroundings)
    if there is not None and purpose is Purpose.UPGRADE and _is_as_planned(plan, health):
        _show_health(there, health, options, "Nothing newer works here", as_json=as_json)
        return
    if not as_json:
        print_plan(plan)
        print()
    if dry_run:
        reporting.show(plan, document, print_commands, as_json=as_json)
        return
    if ask is not None and not ask("Go on?"):
        raise typer.Exit(reporting.EXIT_FAILED)
    info = carry_out(plan, _say, _detail)
    _say("Examining the new host")
    if plan.engine != "wheel":
        # Set the variables for the doctor, because with --no-config the configuration does not contain the engine.
        os.environ.update(plan.variables)
    # The known-wrong table was measured in the simulator, so only a real NPU needs to be measured.
    found = examined(SurveyOptions(host_python=str(plan.python), numbers=info.machine == "ARM64"))[0]
    if as_json:
        output.print_json(document(plan, info, found))
    else:
        print_result(plan, info, found)
    _end(found, str(plan.python) if plan.config is None else None, as_json=as_json)


def _is_the_one_asked_for(options: SetupOptions, there: MadeHost, purpose: Purpose) -> bool:
    if purpose is not Purpose.SET_UP:
        return True
    is_named = there.is_configured or not options.write_config
    return is_named and options.engine == "wheel" and options.ep_path is None


def _has_version(options: SetupOptions, health: Health) -> bool:
    installed = health.info.versions.get("onnxruntime_qnn") if health.info is not None else None
    return options.version in (None, installed)


def _is_as_planned(plan: SetupPlan, health: Health) -> bool:
    """Return whether the host is healthy and has the versions that would be installed now."""
    if plan.choice is None or health.info is None or not health.is_usable:
        return False
    installed = health.info.versions.get("onnxruntime_qnn")
    return installed == plan.choice.release.version and health.info.qnnbridge == __version__


def _dir_words(options: SetupOptions) -> str:
    return f" --dir {shell_word(options.folder)}" if options.folder is not None else ""


def _remove(options: SetupOptions, ask: Ask | None, *, dry_run: bool, as_json: bool) -> None:
    from qnnbridge._launch import Surroundings
    from qnnbridge_tools import output
    from qnnbridge_tools.setup_host import made_host

    there = made_host.made_host(options, Surroundings.current())
    error = made_host.no_host(options) if there is None else None
    if error is not None:
        raise error
    folder = made_host.host_folder(options)
    parts = made_host.to_remove(folder, there)
    if not parts:
        if as_json:
            output.print_json({"schema": SCHEMA_VERSION, "state": "absent", "removed": []})
        else:
            print("There is no host to remove.")
        return
    if not as_json:
        setting = f", and [host] in {there.config}" if there is not None and there.is_configured else ""
        print(f"To remove: {', '.join(map(str, parts))}{setting}")
    if dry_run:
        if as_json:
            output.print_json({"schema": SCHEMA_VERSION, "state": "planned", "removed": []})
        return
    if ask is not None and not ask("Go on?"):
        raise typer.Exit(reporting.EXIT_FAILED)
    removed = made_host.remove_host(folder, there)
    if as_json:
        output.print_json({"schema": SCHEMA_VERSION, "state": "removed", "removed": removed})
    else:
        print(f"Removed: {', '.join(removed)}")
        print("Next: pip uninstall qnnbridge, or qnnbridge setup to begin again")


def _show_health(there: MadeHost, health: Health, options: SetupOptions, head: str, *, as_json: bool) -> None:
    from qnnbridge_tools import output
    from qnnbridge_tools.doctor.findings import Severity, report_document, report_text

    assert health.info is not None
    assert health.found is not None
    if as_json:
        output.print_json(
            {
                "schema": SCHEMA_VERSION,
                "done": True,
                "state": health.found.severity.name.lower(),
                "folder": str(there.folder),
                "python": str(there.python),
                "host": reporting.host_document(health.info),
                "doctor": report_document(health.found),
            }
        )
    else:
        installed = ("installed", health.info.installed_text())
        is_well = health.found.severity is Severity.HEALTHY
        words = f"{head} and healthy" if is_well and head == ALREADY else head
        output.print_pairs(words, [*reporting.interpreter_pairs(health.info), installed])
        if not is_well:
            print()
            print(report_text(health.found))
    _end(health.found, None if options.write_config else str(there.python), as_json=as_json)


def _end(found: Report, python: str | None, *, as_json: bool) -> None:
    """Print the next command as the last line.

    Args:
        found: the doctor's report.
        python: the host's interpreter, if no configuration contains it.
        as_json: print no text.
    """
    from qnnbridge_tools.doctor.findings import Severity

    if found.severity is Severity.BLOCKED:
        raise typer.Exit(reporting.EXIT_FAILED)
    if not as_json:
        print()
        words = ("qnnbridge", "demo", *(("--host-python", python) if python is not None else ()))
        print(f"Next: {command_line(words)}")


def _say(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


def _detail(line: str) -> None:
    """Print those lines of pip, uv and the install manager that show progress."""
    shown = visible(line.strip())
    if shown.startswith(("Downloading cpython", "Downloaded cpython", "Installed Python", "Installing Python")):
        print(f"  {shown}", file=sys.stderr, flush=True)
        return
    # pip prints the size of each download; only downloads in MB take noticeable time.
    if (shown.startswith("Downloading ") and shown.endswith("MB)")) or shown.startswith("Building wheel"):
        print(f"  {shown}", file=sys.stderr, flush=True)
    elif shown.startswith('{"progress":'):
        # `qnnbridge_host.windows_ml download` prints a number from 0 to 1.
        percent = shown.removeprefix('{"progress":').removesuffix("}")
        print(f"  {float(percent):.0%}", file=sys.stderr, flush=True)
    elif shown.startswith("Installing collected packages"):
        print(f"  Unpacking {shown.count(',') + 1} packages", file=sys.stderr, flush=True)


# --- plan and result of a set-up as text, as commands for a shell, and as a JSON document ---

SCHEMA_VERSION = 1


def print_plan(plan: SetupPlan) -> None:
    from qnnbridge_tools import output
    from qnnbridge_tools.versions.view import machine_pairs

    reasons = plan.choice.judgement.reasons if plan.choice else ()
    pairs = [
        *[("", f"not used: {text}") for text in (plan.passed_over if plan.brought is not None else ())],
        ("interpreter", plan.candidate.text if plan.brought is None else plan.brought.text),
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
    """Print the commands of the plan, for a user who runs them by hand."""
    # On Windows print the commands for both shells, because the user may use either.
    shells = (("Command Prompt", command_prompt_line), ("PowerShell", powershell_line)) if os.name == "nt" else None
    for name, to_text in shells or (("Commands", command_line),):
        print(f"{name}:")
        for words in (*plan.all_commands, doctor_command(plan)):
            print(f"  {to_text(words)}")
        print()
    if plan.config is not None:
        print(f"{plan.config} becomes:")
        print("\n".join(f"  {line}" for line in plan.config_text.splitlines()))


def doctor_command(plan: SetupPlan) -> tuple[str, ...]:
    """Return the command of the last step. Its exit code is 0 if QNN can be used."""
    return (sys.executable, "-m", "qnnbridge_tools", "doctor", "--host-python", str(plan.python))


def print_result(plan: SetupPlan, info: HostInfo, found: Report) -> None:
    from qnnbridge_tools import output, reporting
    from qnnbridge_tools.doctor.findings import report_text

    print()
    installed = ("installed", info.installed_text())
    output.print_pairs("The host is set up", [*reporting.interpreter_pairs(info), installed])
    if plan.config is None:
        print(f"Set QNNBRIDGE_HOST_PYTHON to the host's interpreter, or pass Host(python=...): {plan.python}")
        for name, value in plan.variables.items():
            if value and plan.engine != "wheel":
                print(f"and set {name}={value}")
    if plan.download is not None and not info.qnn_source:
        print(f"Windows' provider for QNN is not on this computer. To download it: {command_line(plan.download)}")
    print()
    print(report_text(found))


def document(plan: SetupPlan, info: HostInfo | None = None, found: Report | None = None) -> dict[str, Any]:
    """Return plan and result as a JSON document.

    Args:
        info, found: host and doctor's report of a set-up that was carried out.
    """
    from qnnbridge_tools import reporting
    from qnnbridge_tools.doctor.findings import report_document

    choice, provider = plan.choice, plan.provider
    return {
        "schema": SCHEMA_VERSION,
        "done": info is not None,
        "state": "made" if info is not None else "planned",
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
        "downloads_python": plan.brought.by or None if plan.brought is not None else None,
        "passed_over": list(plan.passed_over),
        "commands": [list(command) for command in plan.all_commands],
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


def _config_text(plan: SetupPlan) -> str:
    if plan.config is None:
        return "not changed"
    return f"{plan.config}" + (f" (replaces {plan.replaced_setting})" if plan.replaced_setting else "")
