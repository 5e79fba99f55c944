"""Run a daemon: acquire the lock, open log and listener, publish the address, wait, and shut down.

Invariants: the process with the lock is the only daemon of its folder, however many were started; only the holder
of the lock writes to the folder; a daemon ends when clients can no longer find it. The main thread only waits.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import hashlib
import logging
import logging.handlers
import os
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from qnnbridge._daemon.discovery import (
    LOCK_NAME,
    READY,
    RUNNING,
    TAKE_OVER,
    WAITING,
    Discovery,
    look_at_discovery,
    make_runtime_folder,
    read_discovery,
    remove_discovery,
    runtime_folder,
    write_discovery,
)
from qnnbridge._supervision.restart_policy import RecycleAfter
from qnnbridge_daemon.accounts import BrokerSettings, ClientLimits
from qnnbridge_daemon.numbers_errand import NumbersErrand, may_have_npu, numbers_command
from qnnbridge_os.daemon_endpoint import allow_descriptors, let_go_of_terminal, make_endpoint, on_leave
from qnnbridge_os.files import make_folders
from qnnbridge_os.private import default_runtime_folder
from qnnbridge_protocol import __version__
from qnnbridge_protocol.auth import INSTANCE_BYTES, TOKEN_BYTES
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from types import TracebackType

    from qnnbridge_daemon.broker import Broker
    from qnnbridge_daemon.listener import Listener


EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
# Exit code if a daemon is already running. It is a separate code, so that a service manager does not treat it as a
# crash.
EXIT_RUNNING: Final = 4
# Exit code if a second signal ended the daemon while it was finishing calls.
EXIT_AT_ONCE: Final = 5

_LOOK_INTERVAL_S: Final = 1.0
# Pause between two attempts to lock. It is short, because applications that lose a daemon start other daemons,
# which compete for the lock.
_TURN_INTERVAL_S: Final = 0.005
_WAITING_INTERVAL_S: Final = 0.5
# Seconds to retry the lock before reporting "already running". If there is no daemon, a command that checks for one
# holds the lock for some microseconds. Without retries, a daemon that starts at this moment would give up, so that
# no daemon would run.
_LOOK_PATIENCE_S: Final = 0.5
_SIGNALS_FOR_AT_ONCE: Final = 2

_log = log_of("qnnbridge.daemon")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the daemon until it is asked to end, and then end the process."""
    options = parse_options(argv)
    if options.detached:
        let_go_of_terminal()
    os.environ.pop("QNNBRIDGE_HOST", None)  # remove the variable; otherwise the daemon would use itself as its host
    # Exit code if `run` ends with an unexpected exception.
    code = EXIT_FAILED
    try:
        code = run(options)
    except BridgeError as error:
        _report(f"{error}")
    except OSError as error:
        _report(f"The daemon cannot run: {error}")
    except Exception:  # noqa: BLE001 - reported to the starting process
        _report(traceback.format_exc())
    finally:
        logging.shutdown()
        _flush()
        # Do not wait for threads that serve clients, because they may be blocked. `os._exit` also skips atexit
        # handlers.
        os._exit(code)


def run(options: Options) -> int:
    """Run the daemon; return the exit code. Raise `BridgeError` or `OSError`."""
    folder = make_runtime_folder()
    # Lock first, because only the holder of the lock may write to the folder, including the log.
    lock = FolderLock(folder)
    if not lock.take() and not _wait_for_turn(lock, options):
        return _report_running(folder, options)
    allow_descriptors()
    log = open_log(foreground=options.foreground)
    daemon = Daemon(folder, lock, options, log)
    daemon.open()
    if options.detached:
        _answer_starter(READY)
        leave_stderr(log)
    daemon.wait()
    daemon.leave()
    return EXIT_OK


class Daemon:
    """State of a running daemon. Only the main thread uses it, except `handle_signal`, which signal handlers
    call."""

    def __init__(self, folder: Path, lock: FolderLock, options: Options, log: Path) -> None:
        from qnnbridge._host import Host
        from qnnbridge_daemon.broker import Broker

        self._folder = folder
        self._lock = lock
        self._options = options
        self._asked = 0
        # Use a new token for each daemon, so that a client with an old daemon.json cannot connect.
        self._discovery = Discovery(
            endpoint=make_endpoint(folder),
            instance=secrets.token_bytes(INSTANCE_BYTES),
            token=secrets.token_bytes(TOKEN_BYTES),
            pid=os.getpid(),
            started=time.time(),
            qnnbridge=__version__,
            log_file=str(log),
        )
        self._host = Host(options.python, recycle=options.recycle)
        self._broker: Broker = Broker(self._host, options.settings_of(self._discovery))
        self._listener: Listener | None = None

    def open(self) -> None:
        """Open the listener for clients. Raise `OSError`."""
        from qnnbridge_daemon.listener import Listener

        on_leave(self.handle_signal)
        found = self._discovery
        self._listener = Listener(
            self._folder,
            found.endpoint,
            found.token,
            found.instance,
            self._broker.serve,
        )
        # Write the file after the listener is open, so that a client that reads it can connect.
        write_discovery(self._folder, found)
        _log.info("qnnbridge %s daemon, process %d, at %s", __version__, os.getpid(), found.endpoint)

    def wait(self) -> None:
        """Return when the daemon must end: on request, after the idle time, or if its files were lost."""
        idle_exit_s = self._options.idle_exit_s
        errand = NumbersErrand(numbers_command(self._options.python), lambda: self._broker.idle_for_s)
        errand.done = not may_have_npu()
        try:
            self._wait(errand, idle_exit_s)
        finally:
            errand.stop()

    def _wait(self, errand: NumbersErrand, idle_exit_s: float | None) -> None:
        # Use a timeout, so that Python also runs signal handlers during the wait on Windows.
        while not self._broker.stop_requested.wait(_LOOK_INTERVAL_S):
            errand.poll()
            if idle_exit_s is not None and self._broker.idle_for_s >= idle_exit_s:
                _log.info("unused for %g s: the daemon ends", idle_exit_s)
                return
            if not self._can_be_found():
                _log.warning("%s does not belong to this daemon any more: the daemon ends", self._folder)
                return

    def leave(self) -> None:
        """Finish the running calls, disconnect the clients, end the NPU host."""
        _log.info("the daemon is ending")
        # Remove daemon.json first, so that new clients start another daemon instead of connecting to this one.
        remove_discovery(self._folder, self._discovery.instance)
        if self._listener is not None:
            self._listener.close()
        # The NPU host is closed last: calls that are being finished need it.
        self._broker.stop()
        self._host.close()
        _log.info("the daemon has ended")

    def handle_signal(self) -> None:
        """Handle a signal. A second signal ends the process without waiting for calls."""
        self._asked += 1
        if self._asked >= _SIGNALS_FOR_AT_ONCE:
            os._exit(EXIT_AT_ONCE)
        # Use a thread, because the interrupted thread may hold the lock that `request_stop` needs.
        threading.Thread(
            target=self._broker.request_stop, args=(None,), name="qnnbridge leave", daemon=True
        ).start()

    def _can_be_found(self) -> bool:
        try:
            found = look_at_discovery(self._folder)
        except BridgeError:
            # Keep running: other users can access daemon.json, so clients would refuse a new daemon, too.
            return True
        except OSError:
            return True  # keep running: the error may be temporary, for example no free descriptor
        # If the lock file was deleted or replaced, a second daemon can acquire the lock, so this daemon has to end.
        if not self._lock.is_ours or found is None or found.instance != self._discovery.instance:
            return False
        # Without its socket no client can connect or request the end, and the daemon would keep the lock, so that
        # no other daemon could replace it.
        if self._listener is not None and not self._listener.is_there:
            return False
        if found != self._discovery:  # with a changed file, no client could connect to this daemon
            _log.warning("daemon.json in %s was changed: writing it again", self._folder)
            with contextlib.suppress(OSError):  # the next check writes the file again
                write_discovery(self._folder, self._discovery)
        return True


def _wait_for_turn(lock: FolderLock, options: Options) -> bool:
    """Wait for the lock; return False after the timeout, or if the starting process has ended."""
    now = report_at = time.monotonic()
    end = now + max(options.take_over_s, _LOOK_PATIENCE_S)
    while now < end:
        if options.detached and options.take_over_s and now >= report_at:
            # Without the process that started it, this daemon is no longer needed.
            if not _answer_starter(WAITING):
                return False
            report_at = now + _WAITING_INTERVAL_S
        time.sleep(_TURN_INTERVAL_S)
        if lock.take():
            return True
        now = time.monotonic()
    return False


def _report_running(folder: Path, options: Options) -> int:
    if options.detached:
        _answer_starter(RUNNING)
        return EXIT_RUNNING
    found = read_discovery(folder)
    who = f" (process {found.pid}, qnnbridge {found.qnnbridge})" if found is not None else ""
    _report(f"A qnnbridge daemon is already running{who}; its folder is {folder}.")
    _report("  Fix: use that daemon, or end it first: qnnbridge host stop")
    return EXIT_RUNNING


def _answer_starter(line: str) -> bool:
    """Write a line to the starting process with a single call, because that process may stop reading afterwards.
    Return False if it no longer reads."""
    try:
        os.write(2, f"{line}\n".encode())
    except OSError:
        return False
    return True


def _report(text: str) -> None:
    """Report to the log if it is open, and to the starting process."""
    handlers = logging.getLogger().handlers
    if handlers:
        _log.error("%s", text)
    if any(type(handler) is logging.StreamHandler for handler in handlers):
        return  # in the foreground the log has already printed the text on stderr
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        pass  # the pipe has no reader


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # the pipe has no reader


class FolderLock:
    """Lock of the folder, used by the main thread. The operating system releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        from filelock import FileLock

        self._path = folder / LOCK_NAME
        # filelock uses flock on POSIX and msvcrt.locking on Windows: the system releases both at the end of the
        # process.
        self._lock = FileLock(os.fspath(self._path), thread_local=False, mode=0o600)
        self._identity: tuple[int, int] | None = None

    def take(self) -> bool:
        """Try to lock; return False if another process holds the lock."""
        from filelock import Timeout

        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        self._identity = self._now_there()
        return True

    @property
    def is_ours(self) -> bool:
        """Whether the path still refers to the locked file. A clean-up may have replaced the file."""
        return self._identity is not None and self._now_there() == self._identity

    def _now_there(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        # These numbers identify the file on Windows, too, where Python computes them from the file's index.
        return status.st_dev, status.st_ino


# --- the command line: the token is never an option, since other users can read the command line ---------


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """Options of the daemon.

    Attributes:
        python: interpreter of the NPU host.
        idle_exit_s: seconds without a client after which the daemon ends; ``None``: never.
        detached, foreground: whether the daemon runs in the background, or stays in the terminal.
        take_over_s: seconds to wait for the end of a running daemon.
    """

    python: str | None
    idle_exit_s: float | None
    recycle: RecycleAfter
    settings: BrokerSettings
    detached: bool = False
    foreground: bool = False
    take_over_s: float = 0.0

    def settings_of(self, discovery: Discovery) -> BrokerSettings:
        """Return the broker's settings, including the daemon's data that `status` reports."""
        return dataclasses.replace(
            self.settings,
            endpoint=discovery.endpoint,
            log_file=discovery.log_file,
            instance=discovery.instance.hex(),
            idle_exit_s=self.idle_exit_s,
        )


def parse_options(argv: Sequence[str] | None) -> Options:
    """Parse the command line. Ends the program with a message for invalid options."""
    defaults, limits = BrokerSettings(), ClientLimits()
    parser = argparse.ArgumentParser(
        prog="qnnbridge_daemon", description="One NPU host that several applications share."
    )
    parser.add_argument("--python", help="the interpreter of the NPU host; default: the one that applications use")
    parser.add_argument(
        "--idle-exit", type=_seconds, metavar="SECONDS", help="end after this time without a client; default: never"
    )
    parser.add_argument("--idle-unload", type=_seconds, metavar="SECONDS", default=defaults.idle_unload_s,
                        help="unload models after this time without a call; 0: never")  # fmt: skip
    parser.add_argument("--slots", type=_count, default=defaults.slots, help="concurrent calls in the NPU host")
    parser.add_argument("--max-sessions", type=_count, default=limits.sessions, help="maximum sessions per client")
    parser.add_argument("--max-queued", type=_count, default=limits.queued, help="maximum waiting calls per client")
    parser.add_argument(
        "--max-bytes", type=_count, default=limits.bytes, help="maximum bytes of a client's calls and shared memory"
    )
    parser.add_argument(
        "--max-kv-bytes", type=_count, default=limits.kv_bytes, help="maximum bytes of a client's KV caches"
    )
    parser.add_argument("--recycle-bytes", type=_count, help="replace the NPU host when it uses this much memory")
    parser.add_argument("--recycle-sessions", type=_count, help="replace an NPU host after this many new sessions")
    parser.add_argument("--foreground", action="store_true", help="stay in the terminal; the log goes there, too")
    parser.add_argument("--detached", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(TAKE_OVER, type=_seconds, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    return Options(
        given.python,
        given.idle_exit,
        RecycleAfter(given.recycle_bytes, given.recycle_sessions),
        dataclasses.replace(
            defaults,
            slots=given.slots,
            idle_unload_s=given.idle_unload,
            limits=ClientLimits(given.max_sessions, given.max_queued, given.max_bytes, given.max_kv_bytes),
        ),
        detached=given.detached,
        foreground=given.foreground,
        take_over_s=given.take_over,
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


# --- the log ---------------------------------------------------------------------------------------------
# The log is one rotating file in the state folder. It also contains the output of the NPU host. The main thread
# opens it once, before other threads start.

_NAME: Final = "daemon"
_FOLDER_DIGITS: Final = 8

LOG_BYTES: Final = 1 << 20
OLD_LOGS: Final = 4

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_file() -> Path:
    """Return the path of the log, which need not exist. A daemon with a separate runtime folder has a separate
    log."""
    # Import `state_dir` here, because a process that finds a running daemon does not need a log.
    from qnnbridge_protocol.settings import state_dir

    name, folder = _NAME, runtime_folder()
    if folder != default_runtime_folder():
        name += "-" + hashlib.sha256(os.fsencode(folder)).hexdigest()[:_FOLDER_DIGITS]
    return state_dir() / "logs" / f"{name}.log"


def stderr_file(log: Path) -> Path:
    """Return the file for output of libraries and Python that bypasses the log. Each daemon overwrites it."""
    return log.with_suffix(".stderr.log")


def open_log(*, foreground: bool) -> Path:
    """Write all further log records to the file; return its path. Raise `OSError`."""
    path = log_file()
    make_folders(path.parent)
    handlers: list[logging.Handler] = [
        logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=OLD_LOGS, encoding="utf-8")
    ]
    if foreground:
        handlers.append(logging.StreamHandler(sys.stderr))
    logging.basicConfig(level=logging.INFO, format=_FORMAT, handlers=handlers)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)
    return path


def leave_stderr(log: Path) -> None:
    """Redirect stdout and stderr to a file next to the log. stderr was a pipe to the starting process, which does
    not read any more."""
    fd = os.open(stderr_file(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    sys.stderr.flush()
    os.dup2(fd, 2)
    os.dup2(fd, 1)
    os.close(fd)
    if sys.platform == "win32":
        from qnnbridge_os.windows_stdio import set_standard_handles

        set_standard_handles()
    faulthandler.enable()


def _log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    _log.error("uncaught", exc_info=(kind, error if error is not None else kind(), trace))
