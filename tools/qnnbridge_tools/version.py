"""`qnnbridge --version`: names both sides. Always ends with exit code 0, with or without a host."""

from __future__ import annotations

import platform
import sys
import sysconfig
from typing import TYPE_CHECKING

import typer

from qnnbridge_protocol import __version__, errors

if TYPE_CHECKING:
    from qnnbridge import HostInfo


def show_and_exit(wanted: bool) -> None:
    """Callback of the eager `--version` option."""
    if not wanted:
        return
    from qnnbridge_tools import output, reporting

    with reporting.work():
        print(f"qnnbridge {__version__}")
        output.print_pairs("Application", application_pairs())
        output.print_pairs("Host", host_pairs())
    raise typer.Exit(0)


def application_document() -> dict[str, str]:
    return {
        "qnnbridge": __version__,
        "python": platform.python_version(),
        # Not platform.machine(): under emulation that names the machine, this names the interpreter.
        "platform": sysconfig.get_platform(),
        "executable": sys.executable,
    }


def application_pairs() -> list[tuple[str, str]]:
    told = application_document()
    return [
        ("Python", f"{told['python']}, {told['platform']}"),
        ("interpreter", told["executable"]),
    ]


def host_document(info: HostInfo) -> dict[str, object]:
    return {
        "qnnbridge": info.qnnbridge,
        "python": info.python,
        "machine": info.machine,
        "executable": info.executable,
        "pid": info.pid,
        "versions": dict(info.versions),
        "simulator": info.simulator,
        "startup_seconds": info.startup_seconds,
    }


def installed_text(info: HostInfo) -> str:
    """`onnxruntime 1.31.1, onnxruntime-qnn 2.7.0, QNN SDK ...`, as far as the host named them."""
    names = (("onnxruntime", "onnxruntime"), ("onnxruntime_qnn", "onnxruntime-qnn"), ("qnn_sdk", "QNN SDK"))
    return ", ".join(f"{shown} {info.versions[key]}" for key, shown in names if info.versions.get(key))


def host_pairs() -> list[tuple[str, str]]:
    """What the default host says of itself, or why there is none. Starts a host and ends it."""
    try:
        from qnnbridge import Host

        with Host() as host:
            info = host.info
    except errors.BridgeError as error:
        why = error.message if error.cause is None else f"{error.message} ({error.cause})"
        pairs = [("none", why)]
        if error.fix:
            pairs.append(("fix", error.fix))
        return pairs
    pairs = [
        ("Python", f"{info.python}, {info.machine}"),
        ("interpreter", info.executable),
        ("installed", installed_text(info) or "no onnxruntime"),
    ]
    if info.qnnbridge != __version__:
        pairs.append(("qnnbridge", info.qnnbridge))
    return pairs
