"""Output of commands on stdout: tables, labelled values and JSON; and handling of a lost stdout.

On a terminal rich draws tables; piped output is plain aligned text for `grep` and `awk`. Names from model files are
printed with control characters escaped, because a terminal would execute them. A full disk is reported in a
sentence, a closed reader (`head`) is not reported; both end with exit code 1 and no stack trace. Needs only the
standard library, because the doctor uses it, too.
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
from qnnbridge_os.missing import CHANGE_FOLDER, CURRENT_FOLDER_GONE, has_current_folder, why_missing
from qnnbridge_os.outputs import is_stdout
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.visible import visible as visible

if TYPE_CHECKING:
    from qnnbridge_protocol.errors import BridgeError

COLUMN_GAP = "  "


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def can_print(characters: str) -> bool:
    """Return whether stdout's encoding has these characters."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def make_streams_safe() -> None:
    """Make sure that printing does not fail on a terminal that cannot show a character (cp1252, LANG=C)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_error(error: BridgeError, as_json: bool) -> None:
    """Print an error. Call it while the original exception is being handled."""
    if os.environ.get("QNNBRIDGE_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exc()
    print(f"Error: {error.shown()}", file=sys.stderr)
    if as_json:
        with contextlib.suppress(OSError):  # stdout may be the cause of the error; the error is also on stderr
            print_json({"error": error.to_wire()})


Around = Callable[..., contextlib.AbstractContextManager[None]]
# Context managers of `recorded_by`, through which `qnnbridge_tools.page` copies printed tables and pairs.
_recorders: list[tuple[Around, Around]] = []


@contextlib.contextmanager
def recorded_by(tables: Around, pairs: Around) -> Iterator[None]:
    """While the block runs, print each table in the context manager `tables(headers, rows)`, and each list of pairs
    in `pairs(title, pairs)`.
    """
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
    """Return columns aligned with spaces, without trailing spaces."""
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
    # Switch off markup and emoji, because names in a model may contain [red] and :key:.
    Console(markup=False, highlight=False, emoji=False).print(table)


def print_pairs(title: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Print a heading and `label  text` lines. A line with an empty label continues the previous line."""
    with _recorders[-1][1](title, pairs) if _recorders else contextlib.nullcontext():
        print(visible(title))
        print(plain_table([(visible(label), visible(text)) for label, text in pairs], indent="  "))


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document. ASCII only, for every code page; without NaN, which JSON does not have."""
    print(json.dumps(jsonable(document), indent=2, ensure_ascii=True, allow_nan=False))


def jsonable(value: Any) -> Any:
    """Return the value in JSON's types; NaN, infinities and all other types become text."""
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
    """Return a duration for a person: three digits and a suitable unit."""
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
# Windows does not have a quota error.
_FULL = (errno.ENOSPC, errno.EFBIG, *((errno.EDQUOT,) if hasattr(errno, "EDQUOT") else ()))


def loss_text(error: OSError) -> str:
    """Describe the error of writing output in one sentence, without a full stop."""
    reason = error.strerror or str(error)
    folder, name = os.path.split(os.fsdecode(error.filename or ""))
    if name.startswith(TEMPORARY):
        # Omit the temporary name, which the user does not know.
        return f"No file can be written in {folder or os.curdir}: {reason}"
    if error.filename:
        return f"{error.filename}: {reason}"
    return f"The output cannot be written: {reason}" if error.errno in _FULL else reason


def loss_error(error: OSError) -> BridgeError:
    """Return a `BridgeError` about lost output, with a fix if the error concerns a file."""
    from qnnbridge_protocol.errors import BridgeError

    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        if not has_current_folder():
            return BridgeError(CURRENT_FOLDER_GONE, fix=CHANGE_FOLDER)
        if error.filename:
            return BridgeError(loss_text(error), **why_missing(os.fsdecode(error.filename)))
    fix = None
    if error.filename and error.errno in _FULL:
        fix = "Free some space, or choose a folder on another disk."
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "Choose a file or a folder that this user may use, or change its permissions."
    return BridgeError(loss_text(error), fix=fix)


def reader_is_gone(error: OSError) -> bool:
    """Return whether the error means that the reader has closed the output. Callers do not report this error."""
    # Windows reports a closed pipe as EINVAL. An EINVAL with a file name concerns this file: Windows forbids
    # names such as "a?.onnx".
    closed = (errno.EPIPE, errno.EINVAL) if sys.platform == "win32" else (errno.EPIPE,)
    return error.errno in closed and error.filename is None


def refuse_without_reader() -> None:
    """Raise `BrokenPipeError` if the reader is gone; call this while waiting for something to print.

    Otherwise the command would only notice it when it prints the next line, which may never happen.
    """
    # On Windows `select` works only for sockets.
    if sys.platform == "win32":
        return
    import select

    try:
        poll = select.poll()
        # No events are requested: errors and hang-ups are reported in any case.
        poll.register(sys.stdout.fileno(), 0)
        events = poll.poll(0)
    except (OSError, ValueError, AttributeError):
        return  # the check needs a file descriptor of stdout and a system with `poll`
    if events and events[0][1] & (select.POLLERR | select.POLLHUP):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def guarded(command: Callable[[], int]) -> int:
    """Run a command and write out the text that it printed. Return its exit code, or 1 if the output is lost."""
    try:
        code = command()
    except OSError as error:
        # An error about one of the command's files contains a name; an error about a lost stdout does not.
        if error.filename is not None:
            raise
        return _lost(error, 0)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return _lost(error, code)
    except ValueError:
        # The stream is closed already, and all text was written.
        pass
    return code


def report_incomplete(error: ImportError) -> int:
    """Report on stderr that a module of qnnbridge or of its dependencies is missing. Return the exit code."""
    install = install_command(python=sys.executable, options="--force-reinstall")
    print(
        f"Error: this installation of qnnbridge is incomplete: {visible(error)}.\n"
        f"Fix: {install}, or check for other problems: python -m qnnbridge_tools doctor",
        file=sys.stderr,
    )
    return 1


def _lost(error: OSError, code: int) -> int:
    # Send the rest of the buffer to the null device: flushing it at exit would fail again.
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    if not code and not reader_is_gone(error):  # with another exit code, an error was already printed
        print(f"Error: {visible(loss_text(error))}.", file=sys.stderr)
    return code or EXIT_LOST


@contextlib.contextmanager
def reporting_beside(path: Path | None) -> Iterator[None]:
    """Send the report to stderr if the result itself is written to stdout (`-o -`)."""
    aside = path is not None and is_stdout(path)
    with contextlib.redirect_stdout(sys.stderr) if aside else contextlib.nullcontext():
        yield


def written_pairs(source: Path, files: Sequence[Path]) -> list[tuple[str, str]]:
    """Return the report's lines about the given model and the written files."""
    pairs = [("model", str(source)), ("written", str(files[0]))]
    return pairs + [("", str(path)) for path in files[1:]]
