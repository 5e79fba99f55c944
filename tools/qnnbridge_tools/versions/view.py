"""The version table for a person and as a JSON document."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from qnnbridge.releases.fitness import Judgement, best_of, hexagons_text, judge, pythons_text, short_sdk
from qnnbridge.releases.known_faults import ort_bounds
from qnnbridge.releases.machines import HostMachine
from qnnbridge.releases.table import Release, generated_on

SCHEMA_VERSION = 1
_MARKS = {"works": "works", "doubtful": "may fail", "refused": "no"}


def print_versions(machine: HostMachine, judged: Sequence[Judgement], shown: Sequence[Judgement]) -> None:
    from qnnbridge_tools import output

    best = best_of(judged)
    output.print_pairs("Judged for", machine_pairs(machine))
    print()
    if shown:
        headers = ["", "version", "QNN SDK", "NPUs", "Python", "onnxruntime", "why"]
        output.print_table(headers, [_row(one, is_best=one is best) for one in shown])
        print()
    print(verdict_text(machine, best))
    print(f"The table was read from the wheels on the package index on {generated_on()}.")


def verdict_text(machine: HostMachine, best: Judgement | None) -> str:
    if best is None:
        return f"No release of onnxruntime-qnn works here. {advice(machine)}".rstrip()
    release = best.release
    notes = [reason.text for reason in best.reasons]
    text = f"Best here: {release.name}, QNN {short_sdk(release.qnn_sdk or '?')}"
    text += f". It {'; it '.join(notes)}" if notes else ""
    return f"{text}. To install it: qnnbridge setup-host --version {release.version}"


def advice(machine: HostMachine) -> str:
    """What would have to be different, if one thing is enough."""
    without = {
        "python": dataclasses.replace(machine, python=None),
        "system_sdk": dataclasses.replace(machine, system_sdk=None),
        "ort": dataclasses.replace(machine, ort=None),
        "hexagon": dataclasses.replace(machine, hexagon=None),
    }
    for name, other in without.items():
        best = best_of(judge(other)) if other != machine else None
        if best is not None:
            release = best.release
            return (
                f"{release.name} would, "
                + {
                    "python": f"with Python {pythons_text(release.python_tags)}.",
                    "system_sdk": f"with an NPU driver of QNN {short_sdk(release.qnn_sdk or '?')}.",
                    "ort": f"with onnxruntime {ort_text(release)}.",
                    "hexagon": f"with an NPU of {hexagons_text(release.stubs)}.",
                }[name]
            )
    if machine.is_emulated or machine.platform == "win32":
        return "Use an ARM64 Python for the host."
    return ""


def machine_pairs(machine: HostMachine) -> list[tuple[str, str]]:
    unknown = "unknown, not held against any release"
    pairs = [
        ("host", machine.platform + (" (emulated on an Arm computer)" if machine.is_emulated else "")),
        ("Python", "{}.{}".format(*machine.python) if machine.python else unknown),
    ]
    if machine.has_npu:
        sdk = f"QNN {machine.system_sdk}" if machine.system_sdk else f"{unknown}; give it with --system-sdk"
        pairs.append(("NPU driver", sdk))
        chip = f"V{machine.hexagon}" if machine.hexagon else f"{unknown}; give it with --chip"
        pairs.append(("NPU", chip))
    else:
        pairs.append(("NPU", "none of Qualcomm's in such a computer: compiling and the simulator only"))
    if machine.ort:
        pairs.append(("onnxruntime", machine.ort))
    return pairs


def document(machine: HostMachine, judged: Sequence[Judgement], shown: Sequence[Judgement]) -> dict[str, Any]:
    best = best_of(judged)
    return {
        "schema": SCHEMA_VERSION,
        "generated": generated_on(),
        "machine": {
            "platform": machine.platform,
            "computer": machine.computer,
            "python": "{}.{}".format(*machine.python) if machine.python else None,
            "system_sdk": machine.system_sdk,
            "hexagon": machine.hexagon,
            "onnxruntime": machine.ort,
        },
        "best": best.release.version if best else None,
        "releases": [_release_document(one) for one in shown],
    }


def ort_text(release: Release) -> str:
    if release.layout == "1.x builtin":
        return f"is {release.ort_requirement.lstrip('=')}"
    return ort_bounds(release) or "any"


def _row(one: Judgement, *, is_best: bool) -> list[str]:
    release = one.release
    why = "; ".join(reason.text for reason in one.reasons if one.verdict == "works" or reason.severity != "note")
    return [
        "best" if is_best else _MARKS[one.verdict],
        release.version,
        short_sdk(release.qnn_sdk) if release.qnn_sdk else "none",
        hexagons_text(release.stubs),
        pythons_text(release.python_tags),
        ort_text(release),
        why,
    ]


def _release_document(one: Judgement) -> dict[str, Any]:
    release = one.release
    return {
        "version": release.version,
        "platform": release.platform,
        "verdict": one.verdict,
        "reasons": [
            {"code": reason.code, "severity": reason.severity, "text": reason.text, "fix": reason.fix}
            for reason in one.reasons
        ],
        "layout": release.layout,
        "qnn_sdk": release.qnn_sdk,
        "core_api": release.core_api,
        "backend_api": release.backend_api,
        "stubs": release.stubs,
        "skels": release.skels,
        "python": release.python_tags,
        "onnxruntime": release.ort_requirement,
        "wheels": [{"file": wheel.file, "sha256": wheel.sha256} for wheel in release.wheels],
    }
