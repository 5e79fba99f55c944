"""Generate the table of releases from the wheels on the package index, or compare it with them.

``python -m scripts.makers.releases`` reads every wheel of onnxruntime-qnn (about 20 GB in all, one at a time) and
writes `releases.json` into the package. ``--verify`` prints the differences and writes nothing.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from qnnbridge_host.model.releases import SCHEMA_VERSION, version_key
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import reporting
from scripts.makers import wheels
from scripts.makers.wheels import WheelReader

# Entry of the table: one version of onnxruntime-qnn for one platform.
TableEntry = dict[str, Any]


def make_document(entries: Iterable[TableEntry], generated: str) -> dict[str, Any]:
    """Return the document. Each entry has one wheel; merge entries that are equal except for the wheel."""
    joined: dict[str, TableEntry] = {}
    for entry in entries:
        key = json.dumps({**entry, "wheels": None}, sort_keys=True)
        if key in joined:
            joined[key]["wheels"] += entry["wheels"]
        else:
            joined[key] = {**entry, "wheels": list(entry["wheels"])}
    releases = sorted(joined.values(), key=_release_order)
    for release in releases:
        release["wheels"].sort(key=_python_order)
    fill_interfaces(releases)
    return {"schema": SCHEMA_VERSION, "generated": generated, "releases": releases}


def fill_interfaces(releases: list[TableEntry]) -> None:
    """Copy the API versions of Linux libraries to Windows libraries of the same build, because they cannot be read
    from Windows libraries."""
    known = {
        libraries["qnn_sdk"]: (libraries["core_api"], libraries["backend_api"])
        for release in releases
        for libraries in release["library_sets"]
        if libraries["core_api"] is not None
    }
    for release in releases:
        for libraries in release["library_sets"]:
            libraries["core_api"], libraries["backend_api"] = known.get(libraries["qnn_sdk"], (None, None))


def document_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def by_file(releases: Iterable[TableEntry]) -> dict[str, TableEntry]:
    """Return an entry with a single wheel for each wheel in the table, by file name."""
    return {wheel["file"]: {**release, "wheels": [wheel]} for release in releases for wheel in release["wheels"]}


def differences(stated: TableEntry, found: TableEntry, where: str = "") -> Iterator[str]:
    """Yield the differences between table and wheel, one line each."""
    for key in sorted(stated.keys() | found.keys()):
        left, right = stated.get(key), found.get(key)
        if left == right:
            continue
        place = f"{where}{key}"
        if isinstance(left, dict) and isinstance(right, dict):
            yield from differences(left, right, f"{place}.")
        elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right) and _are_maps(left):
            for wheels, (one, other) in enumerate(zip(left, right, strict=True)):
                yield from differences(one, other, f"{place}[{wheels}].")
        else:
            yield f"{place}: the table has {json.dumps(left)}, the wheel {json.dumps(right)}"


def _are_maps(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, dict) for value in values)


def _release_order(release: TableEntry) -> tuple[Any, ...]:
    return version_key(release["version"]), release["platform"], release["wheels"][0]["python"]


def _python_order(wheel: dict[str, Any]) -> tuple[int, ...]:
    digits = str(wheel["python"])[2:]
    return int(digits[0]), int(digits[1:])


Wanted = tuple[str, wheels.WheelTarget]


def default_table() -> Path:
    """Return the data file of the package."""
    import qnnbridge_host.model

    return Path(qnnbridge_host.model.__file__).with_name("releases.json")


def list_index(families: Iterable[str], pythons: Iterable[str]) -> list[Wanted]:
    """Return every version and target with a wheel, oldest version first."""
    pythons = list(pythons)
    found = [
        (version, target)
        for family in families
        for python in pythons
        for target in [wheels.WheelTarget(family, python)]
        for version in wheels.published(target)
    ]
    return sorted(found, key=lambda one: (version_key(one[0]), one[1].family, version_key(one[1].python)))


def read_wheels(wanted: Sequence[Wanted], reader: WheelReader) -> Iterator[TableEntry]:
    """Download, read and delete each wheel. Print the progress on stderr: all wheels may take an hour."""
    for number, (version, target) in enumerate(wanted, 1):
        print(f"[{number}/{len(wanted)}] {version} {target.family} {target.python}", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="qnnbridge-wheels-") as folder:
            yield reader.read(wheels.download(version, target, Path(folder)))


def verify(table: dict[str, Any], wanted: list[Wanted], *, is_all: bool) -> Iterator[str]:
    """Yield a line for each difference between table and wheels, and for each wheel that either of them lacks."""
    stated = by_file(table["releases"])
    unread = set(stated)
    for found in read_wheels(wanted, WheelReader()):
        file = found["wheels"][0]["file"]
        unread.discard(file)
        if file not in stated:
            yield f"{file}: is not in the table"
            continue
        take_over_interfaces(stated[file], found)
        for line in differences(stated[file], found):
            yield f"{file}: {line}"
    if is_all:
        yield from (f"{file}: is in the table, but not on the index" for file in sorted(unread))


def take_over_interfaces(stated: TableEntry, found: TableEntry) -> None:
    """Copy the API versions of Windows libraries from the table, because they can be read only from Linux
    libraries."""
    for left, right in zip(stated["library_sets"], found["library_sets"], strict=False):
        if right["core_api"] is None and left["qnn_sdk"] == right["qnn_sdk"]:
            right["core_api"], right["backend_api"] = left["core_api"], left["backend_api"]


def run(
    versions: Annotated[
        list[str] | None, typer.Argument(metavar="[VERSION]...", help="With --verify: only these versions.")
    ] = None,
    check: Annotated[bool, typer.Option("--verify", help="Print the differences and write nothing.")] = False,
    table: Annotated[Path | None, typer.Option(help="Data file; default: that of the package.")] = None,
    platform: Annotated[list[str] | None, typer.Option(help="With --verify: only this platform.")] = None,
    python: Annotated[
        list[str] | None, typer.Option(help="With --verify: only wheels for this Python, such as 3.13.")
    ] = None,
) -> None:
    """Generate the table of onnxruntime-qnn's releases from the wheels on the package index, or check it."""
    with reporting.work():
        path = table or default_table()
        is_all = not (versions or platform or python)
        if not check and not is_all:
            raise OptionError(
                "Only --verify accepts a selection of wheels.", fix="Add --verify, or leave the selection out."
            )
        wanted = _selected(versions or [], platform or [], python or [])
        if check:
            lines = list(verify(json.loads(path.read_text("utf-8")), wanted, is_all=is_all))
            print("\n".join([*lines, f"{len(wanted)} wheels read, {len(lines)} differences."]))
            raise typer.Exit(1 if lines else 0)
        entries = list(read_wheels(wanted, WheelReader()))
        made = make_document(entries, datetime.datetime.now(datetime.timezone.utc).date().isoformat())
        path.write_text(document_text(made), "utf-8", newline="\n")
        print(f"{path}: {len(entries)} wheels, {len(made['releases'])} releases.")


def _selected(versions: list[str], platforms: list[str], pythons: list[str]) -> list[Wanted]:
    unknown = sorted(set(platforms) - set(wheels.FAMILIES))
    if unknown:
        raise OptionError(f"There is no platform {unknown[0]!r}.", fix=f"Use one of: {', '.join(wheels.FAMILIES)}.")
    listed = list_index(platforms or wheels.FAMILIES, pythons or wheels.PYTHONS)
    keys = {version_key(version) for version in versions}
    wanted = [one for one in listed if not keys or version_key(one[0]) in keys]
    if not wanted:
        raise OptionError("The index has no wheel for this selection.")
    return wanted


if __name__ == "__main__":
    typer.run(run)
