"""Generate tables of pages in docs/: findings in doctor.md, releases in versions.md, options in qnn-options.md.

``python -m scripts.makers.page_tables docs/versions.md`` rewrites the tables between the two marks of a page; the
rest of the page is written by hand and stays unchanged. Tests compare the pages with the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_host.engine.qnn_options import DYNAMIC_OPTIONS, PROVIDER_OPTIONS, RUN_OPTIONS, Option
from qnnbridge_host.model.option_names import SYSTEMS, first_releases, newest_release
from qnnbridge_host.model.releases import Release, generated_on, load_releases
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import reporting
from qnnbridge_tools.doctor.findings import CATALOGUE, Effect, Severity
from qnnbridge_tools.versions.fitness import (
    KNOWN_FAULTS,
    NEWEST_ORT_TRIED,
    PLATFORM_MACHINES,
    platform_of_release,
    pythons_text,
    short_sdk,
)
from qnnbridge_tools.versions.packages import MlRelease, ml_releases
from qnnbridge_tools.versions.view import ort_text

# The lines of a page that enclose its tables.
FINDINGS_MARKS = "<!-- the table of findings: begin -->", "<!-- the table of findings: end -->"
RELEASES_MARKS = "<!-- made from the data: begin -->", "<!-- made from the data: end -->"
OPTIONS_MARKS = "<!-- the table of options: begin -->", "<!-- the table of options: end -->"
_ML_COLUMNS = ("package", "version", "platforms", "Python", "onnxruntime")
_COLUMNS = ("version", "QNN SDK", "HTP API", "drives NPUs", "other libraries", "built for", "Python", "onnxruntime")


def with_tables(page: str) -> str:
    """Return the page with its tables replaced by current ones. Raises `OptionError` for a page without marks."""
    for marks, tables in _TABLES:
        before, begin, rest = page.partition(marks[0])
        _, end, after = rest.partition(marks[1])
        if begin and end:
            return f"{before}{begin}\n{tables()}\n{end}{after}"
    places = " or ".join(f"{begin} and {end}" for (begin, end), _ in _TABLES)
    raise OptionError("The page has no marks for the table.", fix=f"Add the lines {places}.")


def findings_table() -> str:
    """Return the table of the doctor's findings with their severity and effect."""
    rows = ["| code | how bad | why it matters |", "|---|---|---|"]
    for code, entry in CATALOGUE.items():
        bad = entry.severity.name.lower()
        if entry.severity is Severity.BLOCKED and entry.effect is not Effect.UNUSABLE:
            bad += f": {entry.effect.value[:1].lower()}{entry.effect.value[1:]}"
        rows.append(f"| `{code}` | {bad} | {entry.why.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def options_table() -> str:
    """Return the table of QNN's options: their values, and the first release on each system that reads them."""
    rows = []
    for what, table in (("provider", PROVIDER_OPTIONS), ("run", RUN_OPTIONS), ("dynamic", DYNAMIC_OPTIONS)):
        for name, option in table.items():
            since = first_releases(name)
            systems = [_since_text(since.get(system)) for system in SYSTEMS]
            rows.append((f"`{name}`", what, _values_text(option), *systems))
    lines = [f"{len(rows)} options, read from the libraries of onnxruntime-qnn 1.20 to {newest_release()}.", ""]
    columns = ("option", "kind", "values", *(f"{system.title()} from" for system in SYSTEMS))
    return "\n".join([*lines, *_lines(columns, rows)])


def _since_text(release: tuple[int, int] | None) -> str:
    return "no" if release is None else ".".join(map(str, release)) if any(release) else "all"


def _values_text(option: Option) -> str:
    if option.choices:
        return ", ".join(option.choices) + (", and newer ones" if option.grows else "")
    if option.kind == "number":
        return (
            f"{option.low} to {option.high}" if option.high < 2**31 - 1 else f"a whole number from {option.low} up"
        )
    return {
        "switch": "0, 1",
        "library": "the name of an installed library, or a path",
        "file": "a file that exists",
        "soc": "numbers or names of chips",
        "packages": "Operator:library:symbol[:target], ...",
    }.get(option.kind, "any text")


def releases_tables() -> str:
    """Return the tables of the releases of each platform, of Windows ML, and of known faults."""
    releases = load_releases()
    wheels = sum(len(release.wheels) for release in releases)
    lines = [
        "",
        f"{len(releases)} releases with {wheels} wheels, read on {generated_on()}; onnxruntime was tried up to "
        f"{NEWEST_ORT_TRIED}.",
        "",
    ]
    for platform in PLATFORM_MACHINES:
        of_it = [release for release in releases if platform_of_release(release) == platform]
        if of_it:
            lines += [f"### {platform}", "", *_lines(_COLUMNS, [_row(release) for release in of_it]), ""]
    lines += ["### Windows ML", "", *_lines(_ML_COLUMNS, [_ml_row(release) for release in ml_releases()]), ""]
    faults = [(fault.versions, fault.reason.text, fault.reason.fix or "") for fault in KNOWN_FAULTS]
    lines += ["### Known faults", "", *_lines(("versions", "what happens", "what to do"), faults)]
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


def _ml_row(release: MlRelease) -> tuple[str, ...]:
    python = release.requires_python if "py3" in release.python else pythons_text(release.python)
    return release.package, release.version, ", ".join(release.platforms), python, release.onnxruntime or ""


def _lines(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    for cells in (headers, ("---",) * len(headers), *rows):
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")


def write(page: Annotated[Path, typer.Argument(help="docs/versions.md or docs/doctor.md")]) -> None:
    """Rewrite the tables of a page."""
    with reporting.work():
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8", newline="\n")


_TABLES = (
    (FINDINGS_MARKS, findings_table),
    (RELEASES_MARKS, releases_tables),
    (OPTIONS_MARKS, options_table),
)


if __name__ == "__main__":
    typer.run(write)
