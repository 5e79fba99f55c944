"""The version table as text, within 80 columns, and as a JSON document."""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

from qnnbridge_host.machine import QNN_DISTRIBUTION, installed
from qnnbridge_host.model.chips import CHIPS
from qnnbridge_host.model.genai_folder import DISTRIBUTIONS, LAYOUTS, TRIED, installed_version, releases_of
from qnnbridge_host.model.genai_folder import standing_of as standing_of_genai
from qnnbridge_host.model.releases import (
    AFTER_THE_TABLE,
    STANDING_WORDS,
    Release,
    Standing,
    generated_on,
    is_final,
    newest_final,
    standing,
    standing_of,
)
from qnnbridge_tools.versions.fitness import (
    NEWEST_ORT_TRIED,
    OLDEST_ORT_FOR_PLUGINS,
    PLATFORM_MACHINES,
    HostMachine,
    Judgement,
    Reason,
    best_of,
    hexagons_text,
    judge,
    ort_bounds,
    pythons_text,
    short_sdk,
)
from qnnbridge_tools.versions.packages import READER, RUNTIME, ml_releases, newest

SCHEMA_VERSION = 1
NARROWEST_COLUMNS: Final = 60
WIDEST_COLUMNS: Final = 100
PIPED_COLUMNS: Final = 80

_MARKS = {"works": "works", "doubtful": "maybe", "refused": "no"}
_HEADERS = ("", "version", "QNN SDK", "NPUs V", "Python", "onnxruntime", "why")
# Short labels for the table, for reasons whose code is unsuitable. Lines below the table explain the labels.
_LABELS = {
    "no-wheel-for-python": "no wheel",
    "no-libraries": "no QNN inside",
    "arm-only": "Arm code only",
    "chip-not-supported": "not this NPU",
    "sdk-newer-than-system": "QNN too new",
    "other-ort": "other ORT",
    "development-build": "development",
    "ort-too-new": "ORT too new",
    "ort-too-old": "ORT too old",
    "ort-not-tried": "ORT not tried",
    "loader-picks-simulator": "picks simulator",
}


def print_versions(machine: HostMachine, judged: Sequence[Judgement], shown: Sequence[Judgement]) -> None:
    from qnnbridge_tools import output

    best = best_of(judged)
    output.print_pairs("Judged for", machine_pairs(machine))
    for note in (*notes(machine), *(one.text for one in installed_beyond(machine))):
        print(paragraph(note))
    print()
    # Show a development build only if it is the best release.
    rows = [one for one in shown if is_final(one.release.version) or one is best]
    if rows:
        output.print_table(_HEADERS, [_row(one, is_best=one is best) for one in rows])
        print()
    for line in _explanations(machine, [one for one in rows if one is not best]):
        print(line)
    left_out = [one.release.version for one in shown if one not in rows]
    if left_out:
        print(paragraph(f"Not listed: development builds ({', '.join(left_out)}); --json lists them.\n"))
    for line in verdict_lines(machine, best):
        print(line)
    print(paragraph(origin_text()))
    print()
    if text := windows_ml_text(machine):
        print(paragraph(text))
        print()
    print(paragraph(genai_text()))


def genai_text() -> str:
    """Return which releases of onnxruntime-genai run which layout of a model for text generation."""
    rows = "; ".join(f"{row.layout} ({row.what}): {releases_of(row.layout)}" for row in LAYOUTS)
    return f"Releases of onnxruntime-genai that were tested, by the layout of the model: {rows}."


@dataclasses.dataclass(frozen=True, slots=True)
class InstalledPackage:
    """A package of the running Python, and how its version relates to the table, which ends with `newest`."""

    name: str
    version: str
    standing: Standing
    newest: str

    @property
    def text(self) -> str:
        words = STANDING_WORDS[self.standing]
        text = f"Installed here: {self.name} {self.version}, {words}"
        if self.standing in AFTER_THE_TABLE:
            text += f", which ends with {self.newest}. Run qnnbridge doctor to test the installed version"
        return f"{text}."


def installed_here(machine: HostMachine) -> list[InstalledPackage]:
    """Return the packages of the running Python if the host would run in it."""
    from qnnbridge._launch import process_machine

    if PLATFORM_MACHINES[machine.platform] != process_machine():
        return []
    found = installed()
    qnn = found.distributions.get(QNN_DISTRIBUTION)
    # Skip the onnxruntime that a 1.x release includes.
    ort = found.onnxruntime if found.generation != "builtin" else None
    genai = installed_version()
    given = (
        (QNN_DISTRIBUTION, qnn, newest_final(), None if qnn is None else standing_of(qnn)),
        ("onnxruntime", ort, NEWEST_ORT_TRIED, None if ort is None else _standing_of_ort(ort)),
        (DISTRIBUTIONS[0], genai, TRIED[-1], None if genai is None else standing_of_genai(genai)),
    )
    return [
        InstalledPackage(name, version, position, newest)
        for name, version, newest, position in given
        if version is not None and position is not None
    ]


def installed_beyond(machine: HostMachine) -> list[InstalledPackage]:
    """Return the installed packages that the table does not contain."""
    return [one for one in installed_here(machine) if one.standing != "listed"]


def _standing_of_ort(version: str) -> Standing:
    # Report only versions after the newest tested one. No table lists which older versions were tested, so all of
    # them count as listed.
    position = standing(version, (NEWEST_ORT_TRIED,))
    return position if position in AFTER_THE_TABLE else "listed"


def windows_ml_text(machine: HostMachine) -> str:
    """Return the packages for the catalogue of Windows as another source of QNN; empty if there are none."""
    reader = newest(READER, machine.platform, machine.python)
    runtime = newest(RUNTIME, machine.platform, machine.python)
    if reader is None:
        return ""
    text = f"Windows ML, as another source of QNN: {READER} {reader.version} reads the catalogue of Windows"
    if runtime is not None:
        text += f"; {RUNTIME} {runtime.version} contains onnxruntime {runtime.onnxruntime} for its providers"
        pin = reader.onnxruntime
        text += f" ({READER}[with-ort] installs {pin})" if pin else ""
    plain = f"Plain onnxruntime {OLDEST_ORT_FOR_PLUGINS} or newer also supports these providers"
    return f"{text}. {plain}: qnnbridge setup --engine windowsml."


def origin_text() -> str:
    return (
        f"The table was read from the wheels on the package index on {generated_on()}, and onnxruntime was tried "
        f"up to {NEWEST_ORT_TRIED}. Newer releases are unknown here: an update of qnnbridge may list them."
    )


def paragraph(text: str, indent: str = "") -> str:
    """Wrap the text to the width of the terminal; without a terminal, to `PIPED_COLUMNS`."""
    columns = shutil.get_terminal_size((PIPED_COLUMNS, 24)).columns
    return textwrap.fill(
        text,
        min(max(columns, NARROWEST_COLUMNS), WIDEST_COLUMNS),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def verdict_lines(machine: HostMachine, best: Judgement | None) -> Iterator[str]:
    if best is None:
        yield paragraph(f"No release of onnxruntime-qnn works here. {advice(machine)}".rstrip())
        return
    release = best.release
    notes = [reason.text for reason in best.reasons]
    text = f"Best here: {release.name}, QNN {short_sdk(release.qnn_sdk or '?')}."
    yield paragraph(text + (f" It {'; it '.join(notes)}." if notes else ""))
    yield f"Install it: qnnbridge setup --version {release.version}"


def _explanations(machine: HostMachine, rows: Sequence[Judgement]) -> Iterator[str]:
    """Return each reason in the table once, with its fix if it is the same for all releases."""
    reasons: dict[str, list[Reason]] = {}
    for one in rows:
        for reason in _deciding(one):
            reasons.setdefault(reason.code, []).append(reason)
    for code, same in reasons.items():
        texts = {reason.text for reason in same}
        text = same[0].text if len(texts) == 1 else _general(code, machine) or same[0].text
        # Omit a fix that differs between releases: the version numbers of one release are wrong for the others.
        fixes = {reason.fix for reason in same}
        fix = f" {fixes.pop()}" if len(fixes) == 1 and None not in fixes else ""
        yield paragraph(f"{label_of(code)}: {text}.{fix}")
    if reasons:
        yield ""


def _general(code: str, machine: HostMachine) -> str | None:
    """Return the general text of a reason whose own text contains numbers of one release."""
    python = "{}.{}".format(*machine.python) if machine.python else ""
    return {
        "no-wheel-for-python": f"has no wheel for Python {python}",
        "chip-not-supported": f"has no library for a V{machine.hexagon} NPU",
        "sdk-newer-than-system": f"bundles a QNN that is newer than the {machine.system_sdk} of the NPU driver",
        "other-ort": f"needs or includes a different onnxruntime (ORT) than {machine.ort}",
        "old-glibc": "needs a newer glibc than this computer has",
    }.get(code)


def _deciding(one: Judgement) -> list[Reason]:
    """Return a list that contains only the worst reason, or an empty list if there are only notes.

    Notes, e.g. about the simulator, are left out, because they are shown for the best release only.
    """
    return [reason for reason in one.reasons if reason.severity != "note"][:1]


def label_of(code: str) -> str:
    return _LABELS.get(code, code.replace("-", " "))


def advice(machine: HostMachine) -> str:
    """Return the single change that would make a release fit; empty if there is none."""
    # Try the easiest change first: another Python before another driver, and a new computer last.
    without = {
        "python": dataclasses.replace(machine, python=None),
        "system_sdk": dataclasses.replace(machine, system_sdk=None),
        "ort": dataclasses.replace(machine, ort=None),
        "hexagon": dataclasses.replace(machine, hexagon=None),
    }
    # An unknown value is already ignored, so removing it changes nothing.
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
    # Show that a value is unknown, because no release is refused for an unknown value.
    unknown = "unknown, so it refuses no release"
    pairs = [
        ("host", machine.platform + (" (emulated on an Arm computer)" if machine.is_emulated else "")),
        ("Python", "{}.{}".format(*machine.python) if machine.python else unknown),
    ]
    if machine.has_npu:
        sdk = f"QNN {machine.system_sdk}" if machine.system_sdk else f"{unknown}; give it with --system-sdk"
        pairs.append(("NPU driver", sdk))
        pairs.append(("NPU", _chip_text(machine.hexagon) or f"{unknown}; give it with --chip"))
    else:
        only = "" if machine.platform == "win32" else ": compiling and the simulator only"
        pairs.append(("NPU", f"no Qualcomm NPU{only}"))
    if machine.ort:
        pairs.append(("onnxruntime", machine.ort))
    return pairs


def notes(machine: HostMachine) -> list[str]:
    """Return notes on given options that have no effect on this kind of computer."""
    if machine.has_npu:
        return []
    given = [name for name, value in (("--chip", machine.hexagon), ("--system-sdk", machine.system_sdk)) if value]
    what = f"{' and '.join(given)} {'have' if len(given) > 1 else 'has'} no effect here"
    return [f"{what}: this kind of computer has no Qualcomm NPU."] if given else []


def document(machine: HostMachine, judged: Sequence[Judgement], shown: Sequence[Judgement]) -> dict[str, Any]:
    best = best_of(judged)
    return {
        "schema": SCHEMA_VERSION,
        "generated": generated_on(),
        "newest_onnxruntime_tried": NEWEST_ORT_TRIED,
        "machine": {
            "platform": machine.platform,
            "computer": machine.computer,
            "python": "{}.{}".format(*machine.python) if machine.python else None,
            "system_sdk": machine.system_sdk,
            "hexagon": machine.hexagon,
            "onnxruntime": machine.ort,
        },
        "notes": notes(machine),
        "installed": [dataclasses.asdict(one) for one in installed_here(machine)],
        "best": best.release.version if best else None,
        "releases": [_release_document(one) for one in shown],
        "windows_ml": [
            dataclasses.asdict(one) for one in ml_releases() if one.has_wheel_for(machine.platform, machine.python)
        ],
        "genai_layouts": {row.layout: releases_of(row.layout).split(", ") for row in LAYOUTS},
    }


def ort_text(release: Release) -> str:
    """Return the onnxruntime that the release works with; a 1.x release includes it."""
    if release.layout == "1.x builtin":
        return release.ort_requirement.lstrip("=")
    return ort_bounds(release) or "any"


def _chip_text(hexagon: int | None) -> str | None:
    # Select chips of PCs, whose part names begin with SC. Those of phone chips begin with SM.
    names = [chip.product for chip in CHIPS if chip.arch == hexagon and chip.name.startswith("SC")]
    return f"V{hexagon}" + (f", as in {', '.join(names)}" if names else "") if hexagon else None


def _row(one: Judgement, *, is_best: bool) -> list[str]:
    release = one.release
    return [
        "best" if is_best else _MARKS[one.verdict],
        release.version,
        short_sdk(release.qnn_sdk) if release.qnn_sdk else "none",
        " ".join(str(version) for version in release.stubs) or "none",
        pythons_text(release.python_tags).replace(" to ", "-").replace(", ", " "),
        _ort_cell(release),
        ", ".join(label_of(reason.code) for reason in _deciding(one)),
    ]


def _ort_cell(release: Release) -> str:
    if release.layout == "1.x builtin":
        return "itself"
    text = ort_text(release)
    # ">=1.24.2,<1.28" becomes "1.24.2-1.27".
    both = re.fullmatch(r">=([\d.]+),<1\.(\d+)", text)
    return f"{both[1]}-1.{int(both[2]) - 1}" if both else text.removeprefix("==")


def _release_document(one: Judgement) -> dict[str, Any]:
    release = one.release
    return {
        "version": release.version,
        "platform": release.platform,
        "verdict": one.verdict,
        "reasons": [dataclasses.asdict(reason) for reason in one.reasons],
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
