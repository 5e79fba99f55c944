"""How a command ends: error texts on stderr and exit codes.

Every command does its work inside `with work(...)`. Within it a `BridgeError` becomes message, cause, evidence and
fix without a stack trace; `QNNBRIDGE_DEBUG=1` adds the trace. With `as_json` the error is also a JSON document on
stdout, so that a program gets a document from work that failed, too.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import typer

from qnnbridge_protocol import errors
from qnnbridge_tools import output

R = TypeVar("R")

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_NO_DAEMON = 3
EXIT_DAEMON_UNREACHABLE = 6
EXIT_DAEMON_OTHER_VERSION = 7
EXIT_INTERRUPTED = 130

# Errors that a change of the command or its files puts right.
_BAD_INPUT: tuple[type[errors.BridgeError], ...] = (
    errors.OptionError,
    errors.TooLarge,
    errors.CompiledModelRefused,
    errors.NoSuchFile,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.RemoteTypeError,
    errors.RemoteValueError,
)

# By ``details["daemon_state"]``, which the commands for the daemon set: a script can tell what there is to do.
_DAEMON_STATES = {
    "none": EXIT_NO_DAEMON,
    "unreachable": EXIT_DAEMON_UNREACHABLE,
    "other version": EXIT_DAEMON_OTHER_VERSION,
}


def make_streams_safe() -> None:
    """Printing must not fail on a terminal that cannot show a character (cp1252, LANG=C)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def exit_code_of(error: errors.BridgeError) -> int:
    if (state := error.details.get("daemon_state")) in _DAEMON_STATES:
        return _DAEMON_STATES[state]
    # A host that was not found is bad input only where the command line named it.
    mistyped = isinstance(error, errors.HostNotFound) and error.details.get("source") == "argument"
    return EXIT_BAD_INPUT if mistyped or isinstance(error, _BAD_INPUT) else EXIT_FAILED


@contextlib.contextmanager
def work(*, as_json: bool = False) -> Iterator[None]:
    """Turns whatever the body raises into a message and an exit code."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise  # the command line library's own ways to end
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except errors.BridgeError as error:
        raise _ended(error, as_json) from None
    except OSError as error:
        if output.reader_is_gone(error):
            raise
        raise _ended(errors.BridgeError(output.loss_text(error)), as_json) from None
    except Exception as error:  # noqa: BLE001 - the outermost frame: a person reads this, not a program
        unexpected = errors.BridgeError(
            f"Unexpected {type(error).__name__}: {error}",
            cause="A fault of qnnbridge itself.",
            fix="Set QNNBRIDGE_DEBUG=1, run the same command again and report the traceback.",
        )
        raise _ended(unexpected, as_json) from None


def _ended(error: errors.BridgeError, as_json: bool) -> typer.Exit:
    """Shows the error; to be called while the original exception is being handled."""
    if os.environ.get("QNNBRIDGE_DEBUG", "") not in ("", "0"):
        traceback.print_exc(file=sys.stderr)
    print(f"Error: {error}", file=sys.stderr)
    if as_json:
        from qnnbridge_tools import output

        with contextlib.suppress(OSError):  # stdout is what failed; the words are on stderr
            output.print_json({"error": error.to_wire()})
    return typer.Exit(exit_code_of(error))


def show(result: R, document: Callable[[R], dict[str, Any]], text: Callable[[R], None], *, as_json: bool) -> None:
    """Print a result: as one JSON document, or as text for people."""
    if as_json:
        from qnnbridge_tools import output

        output.print_json(document(result))
    else:
        text(result)
