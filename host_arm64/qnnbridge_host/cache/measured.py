"""Store and look up the results of measuring the rows of the known-wrong table on this computer.

The table comes from the simulator. `qnnbridge doctor --numbers` runs the example of each row on the hardware that
sessions use, and stores the results in the state folder together with the conditions: chip, driver, versions of
ONNX Runtime and QNN. If QNN computes a row's example correctly, the row causes neither rewrites nor warnings; if
QNN computes the example incorrectly, the row applies even if the table does not list this chip. For a row that was
not measured, or has changed since then, the table decides.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from qnnbridge_host.cache.files import Damaged, holding, is_time, read_json, write_json
from qnnbridge_host.cache.key import VERSIONS_THAT_MATTER
from qnnbridge_host.model.chips import chip_named, chip_of, chip_of_this_computer, simulated_chip
from qnnbridge_host.model.known_wrong import WrongOperator, arch_of, table
from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.settings import state_dir
from qnnbridge_protocol.specs import QNN, SessionSpec

FILE: Final = "known-wrong.json"
_SCHEMA: Final = 1
# Maximum number of combinations of chip, driver and versions in the file; the oldest are removed.
_MOST_PLACES: Final = 32
_DIGITS: Final = 16

# wrong: QNN computes the example incorrectly, or its process crashes. unclear: QNN refuses the example or fails on
# it, or the results could not be compared.
RowState = Literal["right", "wrong", "unclear"]


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredPlace:
    """Conditions under which a result is valid.

    chip: ``soc_model`` number; 0 if the computer's chip is not known. simulator: QNN computed on the CPU. versions:
        the host's versions of the components in `VERSIONS_THAT_MATTER`.
    """

    chip: int
    simulator: bool
    versions: Mapping[str, str]

    @classmethod
    def of(cls, chip: int, simulator: bool, versions: Mapping[str, str]) -> MeasuredPlace:
        kept = {name: str(versions[name]) for name in VERSIONS_THAT_MATTER if name in versions}
        return cls(chip, simulator, kept)

    @property
    def text(self) -> str:
        """Chip or simulator on which the results were measured, for messages."""
        found = chip_of(self.chip)
        chip = found.label if found else (f"SoC {self.chip}" if self.chip else "this computer's chip")
        return f"the simulator of {chip}" if self.simulator else chip


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredRow:
    """Result of measuring one row. digest: digest of the row's condition and example at the time of the
    measurement. snr: decibels. why: error message."""

    state: RowState
    digest: str
    snr: float | None = None
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredRows:
    """Results that were measured under the same conditions. when: seconds since 1970."""

    place: MeasuredPlace
    rows: Mapping[str, MeasuredRow]
    when: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MeasuredRows:
        """Read the result of `to_json`. Raise `LookupError`, `TypeError` or `ValueError` if the document is
        invalid."""
        place = document["place"]
        versions = {str(name): str(text) for name, text in place["versions"].items()}
        rows = {
            str(name): read_document(MeasuredRow, dict(row), "the row") for name, row in document["rows"].items()
        }
        when = float(document["when"])
        if not is_time(when):
            raise ValueError(f"its time is {when:g}")
        return cls(
            MeasuredPlace(int(place["chip"]), bool(place["simulator"]), versions),
            {name: row for name, row in rows.items() if row.state in ("right", "wrong", "unclear")},
            when,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class RowsHere:
    """Differences between the table and the results that were measured under the conditions of a session.

    right: rows that the table lists as wrong on this chip and that were measured as right. more: rows that were
        measured as wrong although the table does not list this chip. measured: all rows that were measured.
    """

    right: frozenset[str] = frozenset()
    more: frozenset[str] = frozenset()
    measured: frozenset[str] = frozenset()

    @property
    def identity(self) -> list[str]:
        """Differences from the table. Cache keys of results that depend on the table contain this list."""
        return sorted([f"-{name}" for name in self.right] + [f"+{name}" for name in self.more])

    def rows(self, arch: int, release: str) -> tuple[WrongOperator, ...]:
        """Return the rows that apply to a Hexagon version and a release of onnxruntime-qnn."""
        return tuple(
            row
            for row in table()
            if row.name not in self.right and (row.name in self.more or row.applies(arch, release))
        )

    def evidence(self, simulator: bool) -> Callable[[Sequence[str]], str]:
        """Return a function that describes where given rows were measured. On the simulator the function returns
        ""."""
        if simulator:
            return lambda rows: ""

        def text(rows: Sequence[str]) -> str:
            if all(row in self.measured for row in rows):
                return " Measured on this computer."
            return (
                " Measured on the simulator, not on this chip. To measure on this chip, run: qnnbridge doctor "
                "--numbers."
            )

        return text


AS_IN_THE_TABLE: Final = RowsHere()


def digest_of(row: WrongOperator) -> str:
    """Return a digest of the fields of a row that determine its result."""
    return _digests()[row.name]


@functools.cache
def _digests() -> Mapping[str, str]:
    texts = {row.name: json.dumps([row.operators, row.form, row.when, row.example]) for row in table()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for name, text in texts.items()}


def rows_of_session(
    spec: SessionSpec, versions: Mapping[str, str], *, simulator: bool, soc_model: str | None = None
) -> RowsHere:
    """Return the rows that apply to a session.

    versions: the host's versions. soc_model: the chip, if the caller knows it.
    """
    options = [provider.options for provider in spec.providers if provider.name == QNN]
    given = {name: text for one in reversed(options) for name, text in one.items()}
    return rows_here(soc_model or given.get("soc_model"), given.get("htp_arch"), versions, simulator=simulator)


def rows_here(
    soc_model: str | None, htp_arch: str | None, versions: Mapping[str, str], *, simulator: bool
) -> RowsHere:
    """Return the rows that apply to a chip on this computer. If nothing was measured, return the rows of the
    table."""
    kept = read_measured()
    if not kept:
        return AS_IN_THE_TABLE
    chip = chip_number(soc_model, htp_arch, simulator=simulator)
    if chip is None:
        return AS_IN_THE_TABLE
    place = MeasuredPlace.of(chip, simulator, versions)
    found = next((one for one in kept if one.place == place), None)
    if found is None:
        return AS_IN_THE_TABLE
    arch = arch_of(soc_model, htp_arch, simulator=simulator)
    release = versions.get("onnxruntime_qnn", "")
    states = [(row, found.rows[row.name].state) for row in table() if _is_of(found.rows.get(row.name), row)]
    return RowsHere(
        # A right result changes nothing unless the table lists the row as wrong on this chip.
        frozenset(row.name for row, state in states if state == "right" and row.applies(arch, release)),
        frozenset(row.name for row, state in states if state == "wrong" and not row.applies(arch, release)),
        frozenset(row.name for row, state in states if state != "unclear"),
    )


def right_on_this_npu(now: Mapping[str, str]) -> frozenset[str]:
    """Return the rows that QNN computed correctly in the newest measurement on this computer's NPU.

    The result is empty on the simulator. Commands that do not start a host use this function.

    Args:
        now: the known installed versions; a result that was measured with another version is invalid.
    """
    found = next((one for one in read_measured() if not one.place.simulator), None)
    if found is None:
        return frozenset()
    if any(found.place.versions.get(name, now[name]) != now[name] for name in VERSIONS_THAT_MATTER if name in now):
        return frozenset()
    right = (
        row.name
        for row in table()
        if _is_of(found.rows.get(row.name), row) and found.rows[row.name].state == "right"
    )
    return frozenset(right)


def _is_of(measured: MeasuredRow | None, row: WrongOperator) -> bool:
    return measured is not None and measured.digest == digest_of(row)


def chip_number(soc_model: str | None, htp_arch: str | None = None, *, simulator: bool) -> int | None:
    """Return the chip on which a session computes; None if it compiles for a chip that this computer lacks."""
    if simulator:
        return simulated_chip(soc_model, htp_arch)
    own = chip_of_this_computer()
    number = own.number if own is not None else 0
    first = (soc_model or "").split(",")[0]
    if not first.strip(" 0"):  # QNN reads 0 as "no chip is set"
        return number
    named = chip_named(first)
    return number if own is not None and named is not None and named.number == number else None


def unmeasured(place: MeasuredPlace, path: Path | None = None) -> tuple[WrongOperator, ...]:
    """Return the rows that were not measured under these conditions, or were changed after the measurement."""
    found = next((one for one in read_measured(path) if one.place == place), None)
    return tuple(row for row in table() if found is None or not _is_of(found.rows.get(row.name), row))


# --- the file --------------------------------------------------------------------------------------------


def measured_path() -> Path:
    """Return the path of the file with the measured results, which may not exist."""
    return state_dir() / FILE


def read_measured(path: Path | None = None) -> Sequence[MeasuredRows]:
    """Return all results, the newest first; empty if the file is absent or damaged."""
    path = path or measured_path()
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return _parsed(os.fspath(path), status.st_mtime_ns, status.st_size, status.st_ino)


@functools.lru_cache(maxsize=4)
def _parsed(path: str, _modified_ns: int, _size: int, _inode: int) -> Sequence[MeasuredRows]:
    try:
        document = read_json(Path(path)) or {}
        if document["schema"] != _SCHEMA:
            return ()
        found = [MeasuredRows.from_json(one) for one in document["measured"]]
    except (Damaged, OSError, LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return ()
    return tuple(sorted(found, key=lambda one: -one.when))


def keep_measured(results: MeasuredRows, path: Path | None = None) -> None:
    """Add results to the file, replacing results of the same rows under the same conditions.

    Raises:
        OSError: the file cannot be written.
    """
    path = path or measured_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with holding(Path(f"{path}.lock")):
        before = read_measured(path)
        own = next((one for one in before if one.place == results.place), None)
        rows = {**(own.rows if own is not None else {}), **results.rows}
        merged = dataclasses.replace(results, rows=rows)
        others: Iterable[MeasuredRows] = (one for one in before if one.place != results.place)
        kept = [merged, *others][:_MOST_PLACES]
        write_json(path, {"schema": _SCHEMA, "measured": [one.to_json() for one in kept]})
