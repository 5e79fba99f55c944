"""A systemd user unit for the daemon, and how to use it. Pure."""

from __future__ import annotations

import re
from typing import Final

from qnnbridge_tools.host.service import SERVICE_NAME, Service

UNIT_NAME: Final = f"{SERVICE_NAME}.service"
STOP_TIMEOUT_S: Final = 45
"""More than the daemon takes at most to let calls finish and to end the NPU host."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_\-./:=+,@]+")


def unit_text(service: Service, another_runs_code: int) -> str:
    """another_runs_code: the exit code of a daemon that found another one, which starting again cannot change."""
    # In the arguments $ begins a variable, in the program's path it does not.
    command = " ".join((quoted(service.program), *(quoted(word).replace("$", "$$") for word in service.arguments)))
    lines = [
        "[Unit]",
        "Description=qnnbridge daemon: one NPU host for all applications",
        "StartLimitIntervalSec=60",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={command}",
        "# Else it is the home folder, and Python would take a file there for a module of its own.",
        "WorkingDirectory=/",
        *(f"Environment={quoted(f'{name}={value}')}" for name, value in service.environment.items()),
        "Restart=on-failure",
        "RestartSec=1",
        f"RestartPreventExitStatus={another_runs_code}",
        "# SIGTERM goes to the daemon alone: it lets calls finish and ends the NPU host itself.",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_TIMEOUT_S}",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def instructions(path: str = "") -> str:
    """path: where the file was written; empty if it was printed."""
    folder = "~/.config/systemd/user"
    put = (
        f"mkdir -p {folder} && cp {path} {folder}/{UNIT_NAME}"
        if path
        else f"mkdir -p {folder} && qnnbridge host service --systemd > {folder}/{UNIT_NAME}"
    )
    return "\n".join(
        (
            "To have systemd start the daemon when you log in, and again if it dies:",
            f"  {put}",
            "  systemctl --user daemon-reload",
            f"  systemctl --user enable --now {UNIT_NAME}",
            "To have it run without anybody logged in, also: loginctl enable-linger",
            f"To take it away: systemctl --user disable --now {UNIT_NAME}, then delete the file.",
        )
    )


def quoted(word: str) -> str:
    """A word as systemd reads it: % begins a specifier there."""
    word = word.replace("%", "%%")
    if _PLAIN.fullmatch(word.replace("%", "")):
        return word
    inner = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{inner}"'
