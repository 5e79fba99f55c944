"""Errors and exit codes of commands, and reports about a session and its host.

Every command does its work inside `with work(...)`, which prints a `BridgeError` as message, cause, evidence and
fix without a stack trace; `QNNBRIDGE_DEBUG=1` adds the trace. With `as_json`, the error is also printed as a JSON
document on stdout, so that programs always get a document.
"""

from __future__ import annotations

import contextlib
import platform
import sys
import sysconfig
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from qnnbridge_protocol import __version__, errors
from qnnbridge_tools import output

if TYPE_CHECKING:
    from qnnbridge import HostInfo
    from qnnbridge_protocol.specs import Placement


R = TypeVar("R")

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_NO_DAEMON = 3
EXIT_DAEMON_UNREACHABLE = 6
EXIT_DAEMON_OTHER_VERSION = 7
EXIT_INTERRUPTED = 130

# Errors that the user can correct by changing the command or its files.
_BAD_INPUT: tuple[type[errors.BridgeError], ...] = (
    errors.OptionError,
    errors.TooLarge,
    errors.CompiledModelRefused,
    errors.NoSuchFile,
    errors.GenerationFolderInvalid,
    errors.NativeCodeRefused,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.RemoteTypeError,
    errors.RemoteValueError,
)

# Exit codes by ``details["daemon_state"]`` of an error, so that scripts can distinguish the daemon's states.
_DAEMON_STATES = {
    "none": EXIT_NO_DAEMON,
    "unreachable": EXIT_DAEMON_UNREACHABLE,
    "other version": EXIT_DAEMON_OTHER_VERSION,
}


def exit_code_of(error: errors.BridgeError) -> int:
    if (state := error.details.get("daemon_state")) in _DAEMON_STATES:
        return _DAEMON_STATES[state]
    # A missing host is a user error only if the host was given on the command line.
    mistyped = isinstance(error, errors.HostNotFound) and error.details.get("source") == "argument"
    return EXIT_BAD_INPUT if mistyped or isinstance(error, _BAD_INPUT) else EXIT_FAILED


@contextlib.contextmanager
def work(*, as_json: bool = False, options: Container[str] = ()) -> Iterator[None]:
    """Convert every exception of the body into a message and an exit code.

    options: the options of the command, which the fix of an error may then suggest.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise  # typer handles these exceptions itself
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except errors.BridgeError as error:
        if error.fix is not None:
            from qnnbridge_tools.arguments import use_options_in_fix

            use_options_in_fix(error, options)
        raise _ended(error, as_json) from None
    except OSError as error:
        # typer itself ends a command on a closed pipe, without a message.
        if output.reader_is_gone(error):
            raise
        raise _ended(output.loss_error(error), as_json) from None
    except Exception as error:  # noqa: BLE001 - the outermost frame: the message is for a person
        unexpected = errors.BridgeError(
            f"Unexpected {type(error).__name__}: {error}",
            cause="This is an error in qnnbridge.",
            fix="Set QNNBRIDGE_DEBUG=1 and run the same command again. Report the traceback, with the file that "
            "`qnnbridge report` writes.",
        )
        raise _ended(unexpected, as_json) from None


def _ended(error: errors.BridgeError, as_json: bool) -> typer.Exit:
    """Print the error. Call it while the original exception is being handled."""
    output.print_error(error, as_json)
    return typer.Exit(exit_code_of(error))


def show(result: R, document: Callable[[R], dict[str, Any]], text: Callable[[R], None], *, as_json: bool) -> None:
    """Print a result: as one JSON document, or as text for people."""
    if as_json:
        output.print_json(document(result))
    else:
        text(result)


# --- versions, placement and start of a session ---------------------------------------------------------


def show_and_exit(wanted: bool) -> None:
    """Print all versions and exit. This is the callback of the eager option `--version`."""
    if not wanted:
        return
    with work():
        print(f"qnnbridge {__version__}")
        output.print_pairs("Application", application_pairs())
        output.print_pairs("Host", host_pairs())
    raise typer.Exit(0)


def application_document() -> dict[str, str]:
    return {
        "qnnbridge": __version__,
        "python": platform.python_version(),
        # Do not use platform.machine(), which under emulation describes the computer instead of the interpreter.
        "platform": sysconfig.get_platform(),
        "executable": sys.executable,
    }


def application_pairs() -> list[tuple[str, str]]:
    document = application_document()
    return [("Python", f"{document['python']}, {document['platform']}"), ("interpreter", document["executable"])]


def host_document(info: HostInfo) -> dict[str, object]:
    return {
        "qnnbridge": info.qnnbridge,
        "python": info.python,
        "machine": info.machine,
        "executable": info.executable,
        "pid": info.pid,
        "versions": dict(info.versions),
        "simulator": info.simulator,
        "startup_seconds": info.startup_seconds,
    }


def interpreter_pairs(info: HostInfo) -> list[tuple[str, str]]:
    return [("Python", f"{info.python}, {info.machine}"), ("interpreter", info.executable)]


def host_pairs() -> list[tuple[str, str]]:
    """Return a description of the default host, or why there is none. The host is started and ended."""
    try:
        from qnnbridge import Host

        with Host() as host:
            info = host.info
    except errors.BridgeError as error:
        why = error.message if error.cause is None else f"{error.message} ({error.cause})"
        return [("none", why), *([("fix", error.fix)] if error.fix else [])]
    pairs = [*interpreter_pairs(info), ("installed", info.installed_text() or "no onnxruntime")]
    if info.qnnbridge != __version__:
        pairs.append(("qnnbridge", info.qnnbridge))
    return pairs


def placement_text(placement: Placement) -> str:
    if not placement.known:
        return "unknown: this onnxruntime does not report it (1.24 and later do)"
    return placement.nodes_text()


def device_text(placement: Placement) -> str:
    """Return the device that computed the QNN nodes."""
    if placement.known and not placement.qnn_nodes:
        return "CPU of the host"
    name = "HTP simulator on the CPU, not an NPU" if placement.simulator else "NPU"
    if placement.soc_model is not None:
        name += f"; SoC model {placement.soc_model}"
    if placement.backend:
        name += f"; backend {placement.backend}"
    return name


def placement_pairs(placement: Placement) -> list[tuple[str, str]]:
    pairs = [("nodes", placement_text(placement)), ("device", device_text(placement))]
    if placement.qnn_nodes and placement.cpu_nodes:
        pairs.append(("on the CPU", placement.cpu_names_text()))
    if placement.cause:
        pairs.append(("because", placement.cause))
    if placement.variant:
        pairs.append(("made from", placement.variant))
    return pairs


def sides_pairs(host: HostInfo) -> list[tuple[str, str]]:
    application = application_document()
    return [
        ("host", f"Python {host.python}, {host.machine}, {host.executable}"),
        ("", host.installed_text()),
        ("application", f"Python {application['python']}, {application['platform']}"),
    ]


def startup_text(host: HostInfo, ready_s: float) -> str:
    hello = output.seconds(host.startup_seconds)
    return f"{output.seconds(ready_s)} (connects after {hello}, then loads ONNX Runtime)"
