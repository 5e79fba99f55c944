"""Versions, placement and start-up of a session, as text and as JSON: shared by the commands. Also
``--version``.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from typing import TYPE_CHECKING

import typer

from qnnbridge_protocol import __version__, errors
from qnnbridge_tools import output

if TYPE_CHECKING:
    from qnnbridge import HostInfo
    from qnnbridge_protocol.specs import Placement


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
    document = application_document()
    return [("Python", f"{document['python']}, {document['platform']}"), ("interpreter", document["executable"])]


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
    """The report of the default host, or why there is none. Starts a host and ends it."""
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


SHOWN_CPU_NODES = 5


def placement_text(placement: Placement) -> str:
    if not placement.known:
        return "unknown: this onnxruntime does not tell (1.24 and later do)"
    text = f"{placement.qnn_nodes} {_plural(placement.qnn_nodes, 'node')} on QNN"
    if placement.partitions > 1:
        text += f" in {placement.partitions} parts"
    text += f", {placement.cpu_nodes} on the CPU"
    if placement.other_nodes:
        text += f", {placement.other_nodes} elsewhere"
    return text


def device_text(placement: Placement) -> str:
    """The device that computed the QNN nodes."""
    if placement.known and not placement.qnn_nodes:
        return "CPU of the host"
    name = "HTP simulator on the CPU, not an NPU" if placement.simulator else "NPU"
    if placement.soc_model is not None:
        name += f"; SoC model {placement.soc_model}"
    if placement.backend:
        name += f"; backend {placement.backend}"
    return name


def placement_pairs(placement: Placement) -> list[tuple[str, str]]:
    pairs = [("nodes", placement_text(placement)), ("device", device_text(placement))]
    if placement.qnn_nodes and placement.cpu_nodes:
        shown = ", ".join(f"{name or '(unnamed)'} ({op})" for name, op in placement.cpu_list[:SHOWN_CPU_NODES])
        more = placement.cpu_nodes - min(SHOWN_CPU_NODES, len(placement.cpu_list))
        pairs.append(("on the CPU", shown + (f" and {more} more" if more else "")))
    if placement.cause:
        pairs.append(("because", placement.cause))
    return pairs


def sides_pairs(host: HostInfo) -> list[tuple[str, str]]:
    application = application_document()
    return [
        ("host", f"Python {host.python}, {host.machine}, {host.executable}"),
        ("", installed_text(host)),
        ("application", f"Python {application['python']}, {application['platform']}"),
    ]


def startup_text(host: HostInfo, ready_s: float) -> str:
    hello = output.seconds(host.startup_seconds)
    return f"{output.seconds(ready_s)} (says hello after {hello}, then loads ONNX Runtime)"


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else noun + "s"
