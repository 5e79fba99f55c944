"""The output of commands on stdout: tables, pairs of label and text, JSON; and the handling of a lost stdout.

On a terminal rich draws tables; piped output is plain aligned text, because `grep` and `awk` read it. Names
that come from model files are shown with control characters escaped: a terminal would obey them. A full disk is
reported in a sentence, a closed reader (`head`) not at all; both end with exit code 1 and no stack trace. Needs the
standard library alone, because the doctor uses it, too.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_os.files import TEMPORARY
from qnnbridge_os.outputs import is_stdout
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.visible import visible as visible

if TYPE_CHECKING:
    from qnnbridge_protocol.errors import BridgeError

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


def make_streams_safe() -> None:
    """Printing must not fail on a terminal that cannot show a character (cp1252, LANG=C)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_error(error: BridgeError, as_json: bool) -> None:
    """To be called while the original exception is being handled."""
    if os.environ.get("QNNBRIDGE_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exc()
    print(f"Error: {error.shown()}", file=sys.stderr)
    if as_json:
        with contextlib.suppress(OSError):  # stdout is what failed; the words are on stderr
            print_json({"error": error.to_wire()})


Around = Callable[..., contextlib.AbstractContextManager[None]]
# What takes tables and pairs while they are printed, for a page (`qnnbridge_tools.page`).
_recorders: list[tuple[Around, Around]] = []


@contextlib.contextmanager
def recorded_by(tables: Around, pairs: Around) -> Iterator[None]:
    """In the block each table is printed within `tables(headers, rows)`, and pairs within `pairs(title, pairs)`."""
    _recorders.append((tables, pairs))
    try:
        yield
    finally:
        _recorders.pop()


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [[visible(cell) for cell in row] for row in rows]
    with _recorders[-1][0](headers, cells) if _recorders else contextlib.nullcontext():
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
    # Without markup and emoji: [red] and :key: may be parts of a model's names.
    Console(markup=False, highlight=False, emoji=False).print(table)


def print_pairs(title: str, pairs: Sequence[tuple[str, str]]) -> None:
    """A heading and `label  text` lines under it. An empty label continues the line above."""
    with _recorders[-1][1](title, pairs) if _recorders else contextlib.nullcontext():
        print(visible(title))
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


EXIT_LOST = 1
# Windows has no quota error.
_FULL = (errno.ENOSPC, errno.EFBIG, *((errno.EDQUOT,) if hasattr(errno, "EDQUOT") else ()))


def loss_text(error: OSError) -> str:
    """One sentence without a full stop."""
    reason = error.strerror or str(error)
    folder, name = os.path.split(os.fsdecode(error.filename or ""))
    if name.startswith(TEMPORARY):
        # The user did not choose this name.
        return f"No file can be written in {folder or os.curdir}: {reason}"
    if error.filename:
        return f"{error.filename}: {reason}"
    return f"The output cannot be written: {reason}" if error.errno in _FULL else reason


def loss_error(error: OSError) -> BridgeError:
    """Return the error as a message, with a fix if it is about a file."""
    from qnnbridge_protocol.errors import BridgeError

    fix = None
    if error.filename and error.errno in _FULL:
        fix = "Free some space, or choose a folder on another disk."
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "Choose a file or a folder that this user may use, or change its rights."
    return BridgeError(loss_text(error), fix=fix)


def reader_is_gone(error: OSError) -> bool:
    """Whether the other end of our output was closed; no reason for words."""
    # Windows reports a closed pipe as EINVAL. With a name that is about a file: Windows allows no "a?.onnx".
    closed = (errno.EPIPE, errno.EINVAL) if sys.platform == "win32" else (errno.EPIPE,)
    return error.errno in closed and error.filename is None


def refuse_without_reader() -> None:
    """For a command that waits for something to print. Raises `BrokenPipeError` if the reader is gone: that shows
    by itself only with the next line, which may never come."""
    # There `select` is for sockets alone.
    if sys.platform == "win32":
        return
    import select

    try:
        poll = select.poll()
        # Nothing is asked for: errors and hang-ups are reported in any case.
        poll.register(sys.stdout.fileno(), 0)
        events = poll.poll(0)
    except (OSError, ValueError, AttributeError):
        return  # no stream of the system's
    if events and events[0][1] & (select.POLLERR | select.POLLHUP):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def guarded(command: Callable[[], int]) -> int:
    """Runs a command and writes out what it printed. Its exit code, or 1 if the output is lost."""
    try:
        code = command()
    except OSError as error:
        # An error about a file of the command's; a lost stdout has no name.
        if error.filename is not None:
            raise
        return _lost(error, 0)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return _lost(error, code)
    except ValueError:
        # It is closed already, and nothing was left to write.
        pass
    return code


def report_incomplete(error: ImportError) -> int:
    """Report on stderr that a part of qnnbridge or of its dependencies is missing. Return the exit code."""
    install = install_command(python=sys.executable, options="--force-reinstall")
    print(
        f"Error: this installation of qnnbridge is incomplete: {visible(error)}.\n"
        f"Fix: {install}, or see what else is wrong: python -m qnnbridge_tools doctor",
        file=sys.stderr,
    )
    return 1


def _lost(error: OSError, code: int) -> int:
    # What is left in the buffer must not fail again when the interpreter ends.
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    if not code and not reader_is_gone(error):  # with another code something was said already
        print(f"Error: {visible(loss_text(error))}.", file=sys.stderr)
    return code or EXIT_LOST


@contextlib.contextmanager
def reporting_beside(path: Path | None) -> Iterator[None]:
    """Print to stderr if stdout takes the result itself (`-o -`)."""
    aside = path is not None and is_stdout(path)
    with contextlib.redirect_stdout(sys.stderr) if aside else contextlib.nullcontext():
        yield


def written_pairs(source: Path, files: Sequence[Path]) -> list[tuple[str, str]]:
    """The model that was given and the files that were written, for a report."""
    pairs = [("model", str(source)), ("written", str(files[0]))]
    return pairs + [("", str(path)) for path in files[1:]]
