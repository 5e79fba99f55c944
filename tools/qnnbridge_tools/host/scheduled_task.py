"""A task for Windows Task Scheduler that runs the daemon, and how to register it. Pure.

As text it is ASCII without a declared encoding, so that it is well-formed in whatever encoding a shell redirects
it; as a file it is UTF-16 with a byte order mark, as Task Scheduler itself writes its tasks.
"""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from typing import Final

from qnnbridge_tools.host.service import Service

TASK_NAME: Final = "qnnbridge daemon"
FILE_NAME: Final = "qnnbridge-daemon.xml"
NAMESPACE: Final = "http://schemas.microsoft.com/windows/2004/02/mit/task"
_RESTART_INTERVAL: Final = "PT1M"  # the shortest that Task Scheduler takes
_RESTART_COUNT: Final = "255"  # the most that its schema has room for
_NO_LIMIT: Final = "PT0S"
_NORMAL_PRIORITY: Final = "5"
"""Task Scheduler's default, 7, runs a program and all that it starts below normal, with slow access to the disk."""

_SETTINGS: Final = (
    ("MultipleInstancesPolicy", "IgnoreNew"),
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


def task_text(service: Service) -> str:
    """For stdout."""
    return '<?xml version="1.0"?>\n' + _body(service).encode("ascii", "xmlcharrefreplace").decode("ascii") + "\n"


def task_file(service: Service) -> bytes:
    """For a file."""
    text = '<?xml version="1.0" encoding="UTF-16"?>\n' + _body(service) + "\n"
    return text.replace("\n", "\r\n").encode("utf-16")


def instructions(path: str = "") -> str:
    """path: where the file was written; empty if it was printed."""
    lines = ["To have Windows start the daemon when you log in, and again if it dies:"]
    if not path:
        lines.append(f"  qnnbridge host service --task-scheduler --output {FILE_NAME}")
    file = path or FILE_NAME
    return "\n".join(
        (
            *lines,
            f'  schtasks /Create /TN "{TASK_NAME}" /XML "{file}"',
            f'  schtasks /Run /TN "{TASK_NAME}"',
            "(The file is UTF-16, as Task Scheduler wants it. If access is denied, register it as administrator.)",
            f'To take it away: qnnbridge host stop, then schtasks /Delete /TN "{TASK_NAME}" /F',
        )
    )


def variables_note(service: Service) -> str:
    """A task has no variables of its own; empty if none is set."""
    if not service.environment:
        return ""
    lines = [f'  setx {name} "{value}"' for name, value in service.environment.items()]
    return "\n".join(
        ("A task gets your variables only if they are set for good, not in this window alone:", *lines)
    )


def _body(service: Service) -> str:
    task = ET.Element("Task", {"version": "1.2", "xmlns": NAMESPACE})
    registration = ET.SubElement(task, "RegistrationInfo")
    _leaf(registration, "Description", "qnnbridge daemon: one NPU host for all applications.")
    _leaf(registration, "URI", f"\\{TASK_NAME}")
    trigger = ET.SubElement(ET.SubElement(task, "Triggers"), "LogonTrigger")
    _leaf(trigger, "Enabled", "true")
    _leaf(trigger, "UserId", service.user)
    principal = ET.SubElement(ET.SubElement(task, "Principals"), "Principal", {"id": "Author"})
    _leaf(principal, "UserId", service.user)
    _leaf(principal, "LogonType", "InteractiveToken")
    _leaf(principal, "RunLevel", "LeastPrivilege")
    settings = ET.SubElement(task, "Settings")
    for name, value in _SETTINGS:
        _leaf(settings, name, value)
    again = ET.SubElement(settings, "RestartOnFailure")
    _leaf(again, "Interval", _RESTART_INTERVAL)
    _leaf(again, "Count", _RESTART_COUNT)
    program = ET.SubElement(ET.SubElement(task, "Actions", {"Context": "Author"}), "Exec")
    _leaf(program, "Command", service.program)
    _leaf(program, "Arguments", subprocess.list2cmdline(service.arguments))
    ET.indent(task)
    return ET.tostring(task, encoding="unicode")


def _leaf(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, name).text = text
