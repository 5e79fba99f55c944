"""Does it work? What became of a live host that compiled and ran a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor import advice
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.facts import Facts, ProbeResult
from qnnbridge_tools.doctor.findings import Finding

TITLES: Final = {
    "start": "the host does not come up",
    "import": "onnxruntime cannot be imported in the host",
    "register": "the QNN provider cannot be loaded",
    "devices": "QNN has no device to compute on",
    "create": "a tiny model cannot be compiled for QNN",
    "run": "a tiny model cannot be run on QNN",
    "numbers": "QNN gives wrong numbers",
    "timeout": "QNN does not answer",
}


def find(facts: Facts) -> Iterator[Finding]:
    probe = facts.probe
    if probe is None or not probe.failed:
        return
    yield finding(
        f"probe.{probe.failed}",
        TITLES[probe.failed] + died_text(probe),
        probe.message,
        *probe.evidence[:4],
        fix=probe.fix or advice.reinstall(facts),
        notes=(probe.cause,) if probe.cause else (),
    )


def died_text(probe: ProbeResult) -> str:
    return ": its process dies" if probe.exit_code is not None else ""


def healthy(facts: Facts) -> str | None:
    probe = facts.probe
    if probe is None:
        return None
    if probe.skipped:
        return f"not made: {probe.skipped}"
    where = "QNN's simulator" if probe.simulator else "the NPU"
    return (
        f"a tiny model ran on {where}: {probe.qnn_nodes} nodes on QNN, {probe.cpu_nodes} on the CPU, largest "
        f"difference {probe.difference or 0:.2g}, {probe.seconds:.1f} s"
    )


CHECK = Check("live probe", find, healthy)
