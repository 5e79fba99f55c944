"""The report of a command as a single web page without external files, with the terminal's tables and lines.

`write` builds the page from what a command prints through `output.print_table`, `output.print_pairs` and `print`,
so that a report has one implementation. All texts are escaped.
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from qnnbridge_os.outputs import OutputFile, is_stdout
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import output

# Style sheet of all pages that commands write.
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2128; --paper: #fff; --faint: #8a929c; --line: #d8dde3;
  --qnn: #3b6fd4; --cpu: #d4783b; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe4ea; --paper: #16191d; --line: #363c44; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 13px; } td, th { text-align: left; padding: .2rem 1rem .2rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; vertical-align: top; }
"""
_OWN_STYLE: Final = """
th { font-weight: 600; } .pairs td:first-child { color: var(--faint); white-space: nowrap; }
p { overflow-wrap: anywhere; } .wide, pre { overflow-x: auto; } pre { font-size: 12px; }
"""


def text(value: object) -> str:
    """Return a text that is safe within HTML and SVG, on one line."""
    return html.escape(output.visible(value), quote=True)


def page_of(title: str, body: str, style: str = "") -> str:
    """Return the page. body: safe HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        # The page can load and run nothing, even if a name was not escaped.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width">'
        f"<title>{text(title)}</title><style>{STYLE}{style}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], kind: str = "") -> str:
    """Return an HTML table. kind: CSS class of the table."""
    head = "".join(f"<th>{text(one)}</th>" for one in headers)
    lines = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}">{f"<tr>{head}</tr>" if head else ""}{lines}</table></div>'


class _Report(io.StringIO):
    """Replacement for stdout that collects a report for the page. `isatty` returns False."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    @contextlib.contextmanager
    def part(self, made: str) -> Iterator[None]:
        """While the block prints a part of the report as text, add it to the page as HTML (`made`) instead."""
        self.end_lines()
        self.parts.append(made)
        yield
        self._clear()

    def end_lines(self) -> None:
        for block in filter(str.strip, re.split(r"\n\s*\n", self.getvalue().strip("\n"))):
            lines = block.splitlines()
            # Keep the layout of several lines, which are columns aligned with spaces.
            several = len(lines) > 1
            self.parts.append(
                "<pre>" + "\n".join(map(text, lines)) + "</pre>" if several else f"<p>{text(block)}</p>"
            )
        self._clear()

    def _clear(self) -> None:
        self.seek(0)
        self.truncate()


def place_of(
    path: Path | None, *, overwrite: bool, inputs: Sequence[Path] = (), result: Path | None = None
) -> OutputFile | None:
    """Return the file of `--html`. Call this before the work, so that an unusable path raises `OptionError` early.

    result: path of the command's other result file.
    """
    if path is None:
        return None
    if result is not None and _same_place(path, result):
        raise OptionError(
            f"--html {path} and -o {result} are the same file.",
            cause="The page would replace the result.",
            fix="Give --html another name.",
        )
    return OutputFile(path, overwrite=overwrite, inputs=inputs)


def _same_place(one: Path, other: Path) -> bool:
    streams = is_stdout(one), is_stdout(other)
    return all(streams) or (not any(streams) and os.path.realpath(one) == os.path.realpath(other))


def write(place: OutputFile | None, title: str, print_report: Callable[[], None]) -> None:
    """Write the page from the output of `print_report`. place: None for no page."""
    if place is None:
        return
    report = _Report()
    with (
        contextlib.redirect_stdout(report),
        output.recorded_by(
            lambda headers, rows: report.part(table(headers, rows)),
            lambda heading, pairs: report.part(f"<h2>{text(heading)}</h2>{table((), pairs, 'pairs')}"),
        ),
    ):
        print_report()
    report.end_lines()
    body = "\n".join([f"<h1>{text(title)}</h1>", *report.parts])
    place.write_text(page_of(title, body, _OWN_STYLE))
