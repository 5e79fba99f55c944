"""`qnnbridge host service`: write a service file, with which the system starts and restarts the daemon.

The file is a systemd user unit, or a task for Windows Task Scheduler. Printed tasks are ASCII without an encoding
declaration, so that they are well-formed in any shell's encoding; task files are UTF-16 with a byte order mark,
like Task Scheduler's own files.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from qnnbridge._daemon.discovery import variables_from_anywhere
from qnnbridge_os.outputs import OutputFile, is_stdout
from qnnbridge_protocol.errors import OptionError

SERVICE_NAME: Final = "qnnbridge"
# Variables that determine how the daemon is found, what it runs and where it stores data. A service starts without
# a shell's environment, but must use the same values as the applications. systemd sets XDG_RUNTIME_DIR.
CARRIED: Final = (
    "QNNBRIDGE_CACHE",
    "QNNBRIDGE_CACHE_DIR",
    "QNNBRIDGE_CACHE_MAX_BYTES",
    "QNNBRIDGE_CACHE_MIN_MODEL_BYTES",
    "QNNBRIDGE_CONFIG",
    "QNNBRIDGE_ENGINE",
    "QNNBRIDGE_EP_PATH",
    "QNNBRIDGE_HOST_PYTHON",
    "QNNBRIDGE_RUNTIME_DIR",
    "QNNBRIDGE_STATE_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
)

ON_WINDOWS: Final = os.name == "nt"


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceCommand:
    """The command that a service manager runs.

    Args:
        program: interpreter that runs the daemon.
        arguments: arguments of the interpreter.
        environment: variables of qnnbridge that the service needs.
        user: DOMAIN\\name, in the notation of Windows.
    """

    program: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    user: str


def this_computer(options: Sequence[str], windows: bool) -> ServiceCommand:
    """Return the command for this computer; for another system, program and user are placeholders.

    Args:
        options: options of the daemon.
        windows: whether the command is for Windows Task Scheduler.
    """
    if windows and not ON_WINDOWS:
        program = r"C:\path\to\pythonw.exe"
    elif not windows and ON_WINDOWS:
        program = "/path/to/python3"
    else:
        program = without_console(sys.executable) if windows else sys.executable
    domain = os.environ.get("USERDOMAIN", "")
    name = os.environ.get("USERNAME", "")
    user = (f"{domain}\\{name}" if domain else name) if windows and ON_WINDOWS and name else r"COMPUTER\user"
    environment = variables_from_anywhere({name: os.environ[name] for name in CARRIED if os.environ.get(name)})
    for text in (program, *options, *environment.values()):
        if not text.isprintable():
            raise OptionError(
                f"A service file cannot contain {text!r}.",
                cause="systemd and Task Scheduler read UTF-8 text without control characters.",
                fix="Use a path of printable characters.",
            )
    return ServiceCommand(program, ("-m", "qnnbridge_tools", "host", "run", *options), environment, user)


def without_console(python: str) -> str:
    """Return pythonw.exe next to the interpreter, which opens no window; if it is missing, return the
    interpreter.
    """
    silent = Path(python).with_name("pythonw.exe")
    return str(silent) if silent.is_file() else python


TASK_NAME: Final = "qnnbridge daemon"
FILE_NAME: Final = "qnnbridge-daemon.xml"
NAMESPACE: Final = "http://schemas.microsoft.com/windows/2004/02/mit/task"
_RESTART_INTERVAL: Final = "PT1M"  # The shortest interval that Task Scheduler accepts.
_RESTART_COUNT: Final = "255"  # The largest number that Task Scheduler's schema accepts.
# PT0S means no limit; the default, PT72H, ends a task after three days.
_NO_LIMIT: Final = "PT0S"
# Task Scheduler's default, 7, runs a program and its children below normal priority, with slow disk access.
_NORMAL_PRIORITY: Final = "5"

_SETTINGS: Final = (
    ("MultipleInstancesPolicy", "IgnoreNew"),
    # The default of the next two settings is true, which would end the daemon when a laptop is unplugged.
    ("DisallowStartIfOnBatteries", "false"),
    ("StopIfGoingOnBatteries", "false"),
    ("AllowHardTerminate", "true"),
    ("StartWhenAvailable", "true"),
    ("RunOnlyIfNetworkAvailable", "false"),
    ("AllowStartOnDemand", "true"),
    ("Enabled", "true"),
    ("Hidden", "false"),
    ("RunOnlyIfIdle", "false"),
    ("WakeToRun", "false"),
    ("ExecutionTimeLimit", _NO_LIMIT),
    ("Priority", _NORMAL_PRIORITY),
)


def task_text(service: ServiceCommand) -> str:
    """Return the task as ASCII text for stdout."""
    return '<?xml version="1.0"?>\n' + _body(service).encode("ascii", "xmlcharrefreplace").decode("ascii") + "\n"


def task_file(service: ServiceCommand) -> bytes:
    """Return the task as UTF-16 for a file."""
    text = '<?xml version="1.0" encoding="UTF-16"?>\n' + _body(service) + "\n"
    # `utf-16` starts with a byte order mark, `utf-16-le` would not.
    return text.replace("\n", "\r\n").encode("utf-16")


def task_instructions(path: str = "") -> str:
    """Return instructions to register the task.

    Args:
        path: path of the file; empty if it was printed.
    """
    lines = ["To let Windows start the daemon when you log in, and restart it after a crash:"]
    if not path:
        lines.append(f"  qnnbridge host service --task-scheduler --output {FILE_NAME}")
    file = path or FILE_NAME
    return "\n".join(
        (
            *lines,
            f'  schtasks /Create /TN "{TASK_NAME}" /XML "{file}"',
            f'  schtasks /Run /TN "{TASK_NAME}"',
            "(The file is UTF-16, as Task Scheduler expects. If access is denied, register it as administrator.)",
            f'To remove it: qnnbridge host stop, then schtasks /Delete /TN "{TASK_NAME}" /F',
        )
    )


def variables_note(service: ServiceCommand) -> str:
    """Return instructions to set variables permanently, because a task cannot define any; empty if none is set."""
    if not service.environment:
        return ""
    lines = [f'  setx {name} "{value}"' for name, value in service.environment.items()]
    return "\n".join(
        ("A task gets your variables only if they are set permanently, not only in this window:", *lines)
    )


def _body(service: ServiceCommand) -> str:
    # Version 1.2 of the schema, which Windows supports since Vista.
    task = ET.Element("Task", {"version": "1.2", "xmlns": NAMESPACE})
    registration = ET.SubElement(task, "RegistrationInfo")
    _leaf(registration, "Description", "qnnbridge daemon: one NPU host for all applications.")
    _leaf(registration, "URI", f"\\{TASK_NAME}")
    trigger = ET.SubElement(ET.SubElement(task, "Triggers"), "LogonTrigger")
    _leaf(trigger, "Enabled", "true")
    _leaf(trigger, "UserId", service.user)
    principal = ET.SubElement(ET.SubElement(task, "Principals"), "Principal", {"id": "Author"})
    _leaf(principal, "UserId", service.user)
    # The task runs only while the user is logged in, so no password has to be stored.
    _leaf(principal, "LogonType", "InteractiveToken")
    _leaf(principal, "RunLevel", "LeastPrivilege")
    settings = ET.SubElement(task, "Settings")
    for name, value in _SETTINGS:
        _leaf(settings, name, value)
    # A regular end, such as by `qnnbridge host stop`, is not a failure and causes no restart.
    again = ET.SubElement(settings, "RestartOnFailure")
    _leaf(again, "Interval", _RESTART_INTERVAL)
    _leaf(again, "Count", _RESTART_COUNT)
    program = ET.SubElement(ET.SubElement(task, "Actions", {"Context": "Author"}), "Exec")
    _leaf(program, "Command", service.program)
    # Quote by the rules of Microsoft's C runtime, which Python uses to parse its command line.
    _leaf(program, "Arguments", subprocess.list2cmdline(service.arguments))
    ET.indent(task)
    return ET.tostring(task, encoding="unicode")


def _leaf(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, name).text = text


UNIT_NAME: Final = f"{SERVICE_NAME}.service"
# Must be longer than the daemon needs to let calls finish and to end the NPU host.
STOP_TIMEOUT_S: Final = 45
_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9_\-./:=+,@]+")


def unit_text(service: ServiceCommand, another_runs_code: int) -> str:
    """Return the text of the unit.

    Args:
        service: the command.
        another_runs_code: exit code of a daemon that found a running daemon; a restart would not help.
    """
    # In the arguments $ starts a variable, but not in the program's path.
    command = " ".join((quoted(service.program), *(quoted(word).replace("$", "$$") for word in service.arguments)))
    lines = [
        "[Unit]",
        "Description=qnnbridge daemon: one NPU host for all applications",
        "StartLimitIntervalSec=60",
        "StartLimitBurst=5",
        "",
        "[Service]",
        # Supported from systemd 240 on: `systemctl start` reports a program that cannot be started.
        "Type=exec",
        f"ExecStart={command}",
        "# Otherwise the service would run in the home folder, and Python would import files from there.",
        "WorkingDirectory=/",
        # Unlike in ExecStart, $ has no meaning in Environment.
        *(f"Environment={quoted(f'{name}={value}')}" for name, value in service.environment.items()),
        # Exit code 0 and SIGTERM are clean ends for `on-failure`, so `qnnbridge host stop` is final.
        "Restart=on-failure",
        "RestartSec=1",
        f"RestartPreventExitStatus={another_runs_code}",
        "# SIGTERM goes to the daemon only, which lets calls finish and ends the NPU host itself.",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_TIMEOUT_S}",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def unit_instructions(path: str = "") -> str:
    """Return instructions to enable the unit.

    Args:
        path: path of the file; empty if it was printed.
    """
    folder = "~/.config/systemd/user"
    put = (
        f"mkdir -p {folder} && cp {shlex.quote(path)} {folder}/{UNIT_NAME}"
        if path
        else f"mkdir -p {folder} && qnnbridge host service --systemd > {folder}/{UNIT_NAME}"
    )
    return "\n".join(
        (
            "To let systemd start the daemon when you log in, and restart it after a crash:",
            f"  {put}",
            "  systemctl --user daemon-reload",
            f"  systemctl --user enable --now {UNIT_NAME}",
            "To run it also while nobody is logged in: loginctl enable-linger",
            f"To remove it: systemctl --user disable --now {UNIT_NAME}, then delete the file.",
        )
    )


def quoted(word: str) -> str:
    """Quote a word for systemd, where % starts a specifier."""
    word = word.replace("%", "%%")
    if _PLAIN_WORD.fullmatch(word.replace("%", "")):
        return word
    inner = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{inner}"'


def give_service_file(
    options: Sequence[str],
    *,
    systemd: bool,
    task_scheduler: bool,
    output: Path | None,
    overwrite: bool,
    another: int,
) -> None:
    """Print the file on stdout or write it to `output`; print instructions on stderr.

    Args:
        options: options of the daemon.
        systemd, task_scheduler: requested format; default: that of this system.
        output: path of the file.
        overwrite: replace an existing file.
        another: exit code of a daemon that found a running daemon (see `unit_text`).
    """
    if systemd and task_scheduler:
        raise OptionError("--systemd and --task-scheduler are for different systems.", fix="Give one of them.")
    for_windows = task_scheduler or (ON_WINDOWS and not systemd)
    service = this_computer(options, for_windows)
    place = OutputFile(output, overwrite=overwrite) if output is not None else None
    if place is None or is_stdout(place.path):
        sys.stdout.write(task_text(service) if for_windows else unit_text(service, another))
        sys.stdout.flush()
    else:
        # Write bytes, because text mode on Windows would write the unit with \r\n.
        place.write(task_file(service) if for_windows else unit_text(service, another).encode())
    # Print instructions on stderr, so that `qnnbridge host service > FILE` writes only the service file.
    written = "" if place is None or is_stdout(place.path) else str(place.path)
    print(_instructions(service, written, for_windows), file=sys.stderr)


def _instructions(service: ServiceCommand, path: str, for_windows: bool) -> str:
    if not for_windows:
        return unit_instructions(path)
    parts = [task_instructions(path), variables_note(service)]
    if not ON_WINDOWS:
        parts.append(
            "This file was created on a different system: replace the placeholders by your interpreter and user."
        )
    return "\n".join(part for part in parts if part)
