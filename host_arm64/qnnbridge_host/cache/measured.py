"""Measured results of the known-wrong table on this computer: the file, and the look-up.

The table comes from the simulator. `qnnbridge doctor --numbers` runs the example of each row where sessions run,
and keeps the results here, in the state folder, with all that they depend on: chip, driver, versions of ONNX
Runtime and QNN. A row that is right here is neither rewritten nor warned of; one that is wrong here counts although
the table does not expect it of the chip; one that was not measured counts as the table says. A row that has changed
since was not measured.
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
# Of chips, drivers and versions; the oldest go.
_MOST_PLACES: Final = 32
_DIGITS: Final = 16

# wrong: other numbers, or the end of the process. unclear: QNN refuses the example or fails at it, or nothing could
# be compared.
RowState = Literal["right", "wrong", "unclear"]


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredPlace:
    """Where a result holds.

    chip: number of the ``soc_model``; 0 for a computer whose chip is not known. simulator: QNN computed on the CPU.
    versions: those of `VERSIONS_THAT_MATTER` that the host reports.
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
        """Text for a person."""
        found = chip_of(self.chip)
        chip = found.label if found else (f"SoC {self.chip}" if self.chip else "this computer's chip")
        return f"the simulator of {chip}" if self.simulator else chip


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One row. digest: of the row's condition and example, as they were. snr: decibels. why: text of an error."""

    state: RowState
    digest: str
    snr: float | None = None
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredRows:
    """The results of one place. when: seconds since the epoch."""

    place: MeasuredPlace
    rows: Mapping[str, MeasuredRow]
    when: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MeasuredRows:
        """Raises `LookupError`, `TypeError`, `ValueError` for a document of another kind."""
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
    """The table as it holds where a session runs.

    right: rows of the table that are right here. more: rows that are wrong here, though the table does not expect
    it. measured: all that were measured, right or wrong.
    """

    right: frozenset[str] = frozenset()
    more: frozenset[str] = frozenset()
    measured: frozenset[str] = frozenset()

    @property
    def identity(self) -> list[str]:
        """How the rows differ from the table: a part of each key that depends on them, empty where they do not."""
        return sorted([f"-{name}" for name in self.right] + [f"+{name}" for name in self.more])

    def rows(self, arch: int, release: str) -> tuple[WrongOperator, ...]:
        """The rows that count. release: of onnxruntime-qnn."""
        return tuple(
            row
            for row in table()
            if row.name not in self.right and (row.name in self.more or row.applies(arch, release))
        )

    def evidence(self, simulator: bool) -> Callable[[Sequence[str]], str]:
        """Return what says where rows were measured; nothing on the simulator, from which the table comes."""
        if simulator:
            return lambda rows: ""

        def text(rows: Sequence[str]) -> str:
            if all(row in self.measured for row in rows):
                return " Measured on this computer."
            return " Measured on the simulator, not on this chip: qnnbridge doctor --numbers measures it."

        return text


AS_IN_THE_TABLE: Final = RowsHere()


def digest_of(row: WrongOperator) -> str:
    """Return a digest of the fields of a row that its result depends on."""
    return _digests()[row.name]


@functools.cache
def _digests() -> Mapping[str, str]:
    texts = {row.name: json.dumps([row.operators, row.form, row.when, row.example]) for row in table()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for name, text in texts.items()}


def rows_of_session(
    spec: SessionSpec, versions: Mapping[str, str], *, simulator: bool, soc_model: str | None = None
) -> RowsHere:
    """The rows where a session runs.

    versions: of the host. soc_model: the chip, if another part has found out which.
    """
    options = [provider.options for provider in spec.providers if provider.name == QNN]
    given = {name: text for one in reversed(options) for name, text in one.items()}
    return rows_here(soc_model or given.get("soc_model"), given.get("htp_arch"), versions, simulator=simulator)


def rows_here(
    soc_model: str | None, htp_arch: str | None, versions: Mapping[str, str], *, simulator: bool
) -> RowsHere:
    """The rows for a chip on this computer; those of the table where nothing was measured."""
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
        # A row that the table does not expect of this chip needs no exception.
        frozenset(row.name for row, state in states if state == "right" and row.applies(arch, release)),
        frozenset(row.name for row, state in states if state == "wrong" and not row.applies(arch, release)),
        frozenset(row.name for row, state in states if state != "unclear"),
    )


def right_on_this_npu(now: Mapping[str, str]) -> frozenset[str]:
    """The rows that were measured to be right on this computer's NPU, by the newest result.

    Nothing on the simulator. For a command that asks no host.

    Args:
        now: versions of what is installed, as far as they are known; another one makes the result void.
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
    """The chip that a session computes on; None for one that is not in this computer: it is only compiled for."""
    if simulator:
        return simulated_chip(soc_model, htp_arch)
    own = chip_of_this_computer()
    number = own.number if own is not None else 0
    first = (soc_model or "").split(",")[0]
    if not first.strip(" 0"):  # to QNN 0 means that no chip was named
        return number
    named = chip_named(first)
    return number if own is not None and named is not None and named.number == number else None


def unmeasured(place: MeasuredPlace, path: Path | None = None) -> tuple[WrongOperator, ...]:
    """The rows that were not measured at a place, or have changed since."""
    found = next((one for one in read_measured(path) if one.place == place), None)
    return tuple(row for row in table() if found is None or not _is_of(found.rows.get(row.name), row))


# --- the file ----------------------------------------------------------------------------------------------


def measured_path() -> Path:
    """Path of the file; it may not exist."""
    return state_dir() / FILE


def read_measured(path: Path | None = None) -> Sequence[MeasuredRows]:
    """All results, the newest first; nothing for a file that is absent or damaged."""
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
    """Add results to the file: rows of the same place are replaced, others stay. Raises `OSError`."""
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
