"""Does it work? What became of a live host that compiled and ran a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor import advice
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.facts import Facts, ProbeResult
from qnnbridge_tools.doctor.findings import Finding, Remedy

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
        fix=Remedy(probe.fix) if probe.fix else _remedy(facts, probe),
        notes=(*([probe.cause] if probe.cause else []), *_unknown(facts)),
    )


def _unknown(facts: Facts) -> Iterator[str]:
    unknown = advice.unknown_packages(facts)
    if unknown:
        yield (
            f"Whether the versions are to blame cannot be told: of {' and '.join(unknown)} nothing is known here. "
            f"This qnnbridge has a table of {advice.table_date()}; another may know more."
        )


def _remedy(facts: Facts, probe: ProbeResult) -> Remedy:
    """Where nothing better is known about the fault itself."""
    if probe.failed == "timeout":
        words = "Restart the computer, in case the NPU hangs; then give it more time."
        return Remedy(words, ("qnnbridge doctor --timeout 300",))
    if probe.failed != "start" and advice.unknown_packages(facts):
        return advice.install_known(facts, "Update qnnbridge, which may know more, or install what it knows.")
    again = advice.reinstall(facts)
    if again.words or probe.failed in ("start", "import", "register"):
        return again
    then = advice.UPDATE_DRIVER if facts.is_arm else "report it with: qnnbridge doctor --snapshot FILE"
    return Remedy(f"Install the libraries anew; if that does not help, {then}.", again.commands)


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
