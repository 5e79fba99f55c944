"""The version table as the page docs/versions.md has it.

``python -m qnnbridge_tools.versions.page docs/versions.md`` writes it anew between the page's two marks; everything
else in the page is written by hand and stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_host.model.releases import Release, generated_on, load_releases
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import reporting
from qnnbridge_tools.versions.fitness import (
    KNOWN_FAULTS,
    NEWEST_ORT_TRIED,
    platform_of_release,
    pythons_text,
    short_sdk,
)
from qnnbridge_tools.versions.machines import PLATFORM_MACHINES
from qnnbridge_tools.versions.view import ort_text

BEGIN, END = "<!-- made from the data: begin -->", "<!-- made from the data: end -->"
_COLUMNS = ("version", "QNN SDK", "HTP API", "drives NPUs", "other libraries", "built for", "Python", "onnxruntime")


def with_table(page: str) -> str:
    """The page with today's table in it. Raises `OptionError` for a page without the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise OptionError("The page has no place for the table.", fix=f"It needs the lines {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n\n{table_text()}\n{END}{after}"


def table_text() -> str:
    releases = load_releases()
    wheels = sum(len(release.wheels) for release in releases)
    lines = [
        f"{len(releases)} releases with {wheels} wheels, read on {generated_on()}; onnxruntime was tried up to "
        f"{NEWEST_ORT_TRIED}.",
        "",
    ]
    for platform in PLATFORM_MACHINES:
        of_it = [release for release in releases if platform_of_release(release) == platform]
        if of_it:
            lines += [f"### {platform}", "", *_table(_COLUMNS, [_row(release) for release in of_it]), ""]
    faults = [(fault.versions, fault.reason.text, fault.reason.fix or "") for fault in KNOWN_FAULTS]
    lines += ["### Known faults", "", *_table(("versions", "what happens", "what to do"), faults)]
    return "\n".join(lines) + "\n"


def _row(release: Release) -> tuple[str, ...]:
    sets = release.library_sets
    return (
        release.version,
        short_sdk(release.qnn_sdk) if release.qnn_sdk else "none inside",
        release.backend_api or "",
        ", ".join(f"V{version}" for version in release.stubs) or "none",
        ", ".join(sorted({name for one in sets for name in one.backends} - {"htp"})),
        " and ".join(one.machine for one in sets) or next(iter(release.machines.values())),
        pythons_text(release.python_tags),
        "itself" if release.layout == "1.x builtin" else ort_text(release),
    )


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    for cells in (headers, ("---",) * len(headers), *rows):
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")


def write(page: Annotated[Path, typer.Argument(help="docs/versions.md")]) -> None:
    """Write the version table into its page."""
    with reporting.work():
        page.write_text(with_table(page.read_text("utf-8")), "utf-8", newline="\n")


if __name__ == "__main__":
    typer.run(write)
