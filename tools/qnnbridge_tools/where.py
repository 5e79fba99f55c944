"""Where a session ran, for a person and as JSON: shared by `run` and `demo`. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qnnbridge_tools import output, version

if TYPE_CHECKING:
    from qnnbridge import HostInfo
    from qnnbridge_protocol.specs import Placement

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
    """What computed the QNN nodes."""
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
    application = version.application_document()
    return [
        ("host", f"Python {host.python}, {host.machine}, {host.executable}"),
        ("", version.installed_text(host)),
        ("application", f"Python {application['python']}, {application['platform']}"),
    ]


def startup_text(host: HostInfo, ready_s: float) -> str:
    hello = output.seconds(host.startup_seconds)
    return f"{output.seconds(ready_s)} (says hello after {hello}, then loads ONNX Runtime)"


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else noun + "s"
