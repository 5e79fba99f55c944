"""The version table as a JSON document: joined from single wheels, written in a fixed order, compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from qnnbridge_host.model.release_table import SCHEMA_VERSION
from qnnbridge_host.model.release_versions import version_key

Entry = dict[str, Any]
"""One release: one version for one platform."""


def make(entries: Iterable[Entry], generated: str) -> dict[str, Any]:
    """The document of entries with one wheel each. Those that differ in nothing but that become one release."""
    joined: dict[str, Entry] = {}
    for entry in entries:
        key = json.dumps({**entry, "wheels": None}, sort_keys=True)
        if key in joined:
            joined[key]["wheels"] += entry["wheels"]
        else:
            joined[key] = {**entry, "wheels": list(entry["wheels"])}
    releases = sorted(joined.values(), key=_order)
    for release in releases:
        release["wheels"].sort(key=_python_order)
    fill_interfaces(releases)
    return {"schema": SCHEMA_VERSION, "generated": generated, "releases": releases}


def fill_interfaces(releases: list[Entry]) -> None:
    """Libraries of one build have one interface, and only those for Linux show it."""
    known = {
        libraries["qnn_sdk"]: (libraries["core_api"], libraries["backend_api"])
        for release in releases
        for libraries in release["library_sets"]
        if libraries["core_api"] is not None
    }
    for release in releases:
        for libraries in release["library_sets"]:
            libraries["core_api"], libraries["backend_api"] = known.get(libraries["qnn_sdk"], (None, None))


def to_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def by_file(releases: Iterable[Entry]) -> dict[str, Entry]:
    """Every wheel by its file name, with what the table says of it."""
    return {wheel["file"]: {**release, "wheels": [wheel]} for release in releases for wheel in release["wheels"]}


def differences(stated: Entry, found: Entry, where: str = "") -> Iterator[str]:
    """What the table states otherwise than it was found, one line each."""
    for key in sorted(stated.keys() | found.keys()):
        left, right = stated.get(key), found.get(key)
        if left == right:
            continue
        place = f"{where}{key}"
        if isinstance(left, dict) and isinstance(right, dict):
            yield from differences(left, right, f"{place}.")
        elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right) and _are_maps(left):
            for index, (one, other) in enumerate(zip(left, right, strict=True)):
                yield from differences(one, other, f"{place}[{index}].")
        else:
            yield f"{place}: the table says {json.dumps(left)}, the wheel {json.dumps(right)}"


def _are_maps(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, dict) for value in values)


def _order(release: Entry) -> tuple[Any, ...]:
    return version_key(release["version"]), release["platform"], release["wheels"][0]["python"]


def _python_order(wheel: dict[str, Any]) -> tuple[int, ...]:
    digits = str(wheel["python"])[2:]
    return int(digits[0]), int(digits[1:])
