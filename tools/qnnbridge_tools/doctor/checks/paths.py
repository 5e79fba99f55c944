"""Are the folders such that QNN can work in them?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor import advice
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.commands import set_variable
from qnnbridge_tools.doctor.facts import Facts, Place
from qnnbridge_tools.doctor.findings import Finding, Remedy

LONGEST_PROGRAM: Final = 200
"""Characters. The driver's limit for the name of a process lies above it; Windows' own is 260 for a file."""
LEAST_FREE_BYTES: Final = 500 << 20
_VARIABLES: Final = {"cache": "QNNBRIDGE_CACHE_DIR", "state": "QNNBRIDGE_STATE_DIR"}


def find(facts: Facts) -> Iterator[Finding]:
    for place in facts.places:
        if place.what == "host packages":
            yield from _host(facts, place)
        else:
            yield from _ours(facts, place)


def _host(facts: Facts, place: Place) -> Iterator[Finding]:
    move = Remedy(
        "Make a host in a short path of plain letters on this computer's own disk.",
        advice.setup_lines(facts, plain_folder=True),
    )
    program = facts.host.answer.executable if facts.host.answer else facts.host.path
    if facts.is_windows and not place.path.isascii():
        yield finding(
            "path.not-ascii",
            "the host's packages are in a folder whose name is not plain ASCII",
            place.path,
            fix=move,
        )
    longest = max((place.path, program), key=len)
    if facts.is_windows and len(longest) > LONGEST_PROGRAM:
        yield finding(
            "path.too-long", "the host's path is too long", f"{len(longest)} characters: {longest}", fix=move
        )
    if place.network:
        yield finding("path.network", "the host's packages are on a network drive", place.path, fix=move)


def _ours(facts: Facts, place: Place) -> Iterator[Finding]:
    variable = _VARIABLES[place.what]
    folder = rf"C:\qnnbridge\{place.what}" if facts.is_windows else f"/var/tmp/qnnbridge-{place.what}"  # noqa: S108 - advice
    other = "Use another folder; then open a new window." if facts.is_windows else "Use another folder."
    elsewhere = Remedy(other, set_variable(facts, variable, folder))
    if not place.writable:
        yield finding(
            f"path.{place.what}-read-only",
            f"the {place.what} folder cannot be written to",
            place.path,
            fix=elsewhere,
        )
        return
    if place.what != "cache":
        return
    if facts.is_windows and not place.path.isascii():
        yield finding(
            "path.cache-not-ascii", "the cache folder's name is not plain ASCII", place.path, fix=elsewhere
        )
    if place.network:
        yield finding("path.network", "the cache is on a network drive", place.path, fix=elsewhere)
    if place.free_bytes is not None and place.free_bytes < LEAST_FREE_BYTES:
        yield finding(
            "path.disk-full",
            "the disk of the cache is nearly full",
            f"{place.free_bytes >> 20} MB free in {place.path}",
            fix=Remedy(
                f"Free some space (or name a folder on another disk in {variable}).", ("qnnbridge cache prune",)
            ),
        )


def healthy(facts: Facts) -> str | None:
    cache = next((place for place in facts.places if place.what == "cache"), None)
    if cache is None:
        return None
    free = f", {cache.free_bytes / (1 << 30):.1f} GB free" if cache.free_bytes is not None else ""
    return f"cache {cache.path}{free}"


CHECK = Check("paths", find, healthy)
