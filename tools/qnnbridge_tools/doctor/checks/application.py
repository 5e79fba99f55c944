"""Has this side what qnnbridge needs, and what would its own onnxruntime do on an Arm computer?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor import advice
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.findings import Finding, Remedy

NEEDED: Final = ("numpy", "msgpack", "qnnbridge_protocol")
DISTRIBUTIONS: Final = {"qnnbridge_protocol": "qnnbridge"}


def find(facts: Facts) -> Iterator[Finding]:
    packages = facts.application_packages
    missing = [name for name in NEEDED if name not in packages.modules]
    if missing:
        names = " ".join(DISTRIBUTIONS.get(name, name) for name in missing)
        yield finding(
            "application.packages-missing",
            f"this interpreter lacks {', '.join(missing)}",
            f"{facts.application.executable} (Python {facts.application.version})",
            fix=Remedy(
                commands=advice.pip(facts, f"install --force-reinstall {names}", path=facts.application.executable)
            ),
        )
    if facts.is_windows and facts.is_arm and facts.application_machine == "x64":
        yield from _simulator(facts)


def _simulator(facts: Facts) -> Iterator[Finding]:
    """An emulated x64 Python with onnxruntime-qnn: which libraries would it load?"""
    packages = facts.application_packages
    loaded, version = packages.loaded_set, packages.version("onnxruntime-qnn")
    if loaded is None or version is None or loaded.of("stub"):
        return
    seen = f"onnxruntime-qnn {version} loads {loaded.folder}, which has no stub: no way to an NPU"
    fix = "Use qnnbridge.InferenceSession, which runs in the ARM64 host, in place of onnxruntime's."
    if loaded.folder.replace("\\", "/").endswith("libs/amd64"):
        yield finding(
            "application.python311-loader",
            "this Python's own onnxruntime-qnn would load its simulator instead of the NPU's libraries",
            seen,
            f"Python {facts.application.version} says that the machine is {facts.application.machine}",
            fix=fix + " Or use Python 3.12 or newer.",
        )
    else:
        yield finding(
            "application.simulator-wheel",
            f"this Python's own onnxruntime-qnn {version} has no way to the NPU",
            seen,
            fix=fix,
        )


def healthy(facts: Facts) -> str:
    answer = facts.application
    return f"Python {answer.version}, {facts.application_machine or answer.platform}, qnnbridge {facts.qnnbridge}"


CHECK = Check("application", find, healthy)
