"""The daemon's log: one file that rotates, in the state folder. Output of the NPU host goes there, too.

Set up once, by the main thread, before others exist.
"""

from __future__ import annotations

import faulthandler
import hashlib
import logging
import logging.handlers
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qnnbridge._daemon.discovery import runtime_folder
from qnnbridge._diagnosis import state_dir
from qnnbridge_os.files import make_folders
from qnnbridge_os.private import default_runtime_folder

if TYPE_CHECKING:
    from types import TracebackType

_NAME: Final = "daemon"
_FOLDER_DIGITS: Final = 8

LOG_BYTES: Final = 1 << 20
OLD_LOGS: Final = 4

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_log = logging.getLogger("qnnbridge.daemon")


def log_file() -> Path:
    """Where it is, or would be: a daemon with a runtime folder of its own has a log of its own, too."""
    name, folder = _NAME, runtime_folder()
    if folder != default_runtime_folder():
        name += "-" + hashlib.sha256(os.fsencode(folder)).hexdigest()[:_FOLDER_DIGITS]
    return state_dir() / "logs" / f"{name}.log"


def stderr_file(log: Path) -> Path:
    """Output of libraries and Python itself outside the log; only of the last daemon."""
    return log.with_suffix(".stderr.log")


def open_log(*, foreground: bool) -> Path:
    """Everything that is logged from here on goes to the file. Raises `OSError`."""
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
    """The starting process needs no more: its pipe is given up for a file beside the log."""
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
