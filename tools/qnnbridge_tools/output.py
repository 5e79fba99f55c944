"""What commands print on stdout: tables, pairs of label and text, JSON.

On a terminal tables are drawn by rich; piped output is plain aligned text, because it is read by `grep` and `awk`.
Names that come from model files are shown with control characters escaped: a terminal would obey them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

COLUMN_GAP = "  "


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def can_print(characters: str) -> bool:
    """Whether stdout's encoding has these characters."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def visible(text: object) -> str:
    """The text on one line, with everything escaped that is not a printable character."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [[visible(cell) for cell in row] for row in rows]
    if is_terminal():
        _print_rich_table(headers, cells)
        return
    print(plain_table([list(headers), *cells]))


def plain_table(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Columns aligned with spaces; no line ends in a space."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        COLUMN_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return "\n".join(indent + line for line in lines)


def _print_rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(Text(header), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(markup=False, highlight=False, emoji=False).print(table)


def print_pairs(title: str, pairs: Sequence[tuple[str, str]]) -> None:
    """A heading and `label  text` lines under it. An empty label continues the line above."""
    print(title)
    print(plain_table([(visible(label), visible(text)) for label, text in pairs], indent="  "))


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document. ASCII only, so that it survives every code page; no NaN, which JSON does not have."""
    print(json.dumps(jsonable(document), indent=2, ensure_ascii=True, allow_nan=False))


def jsonable(value: Any) -> Any:
    """The value in JSON's types; NaN, infinities and everything that JSON does not have become text."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def seconds(duration_s: float) -> str:
    """A duration for a person: three digits and the unit that fits."""
    if duration_s < 0.001:
        return f"{duration_s * 1e6:.0f} us"
    if duration_s < 1:
        return f"{duration_s * 1e3:.3g} ms"
    if duration_s < 100:
        return f"{duration_s:.3g} s"
    return f"{duration_s:.0f} s"


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    number = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        number /= 1024
        if number < 1024 or unit == "GiB":
            break
    return f"{number:.1f} {unit}"


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    if shape is None:
        return "any shape"
    return "x".join("?" if dim is None else str(dim) for dim in shape) if shape else "scalar"


def percent(fraction: float) -> str:
    return f"{fraction * 100:.1f} %"
