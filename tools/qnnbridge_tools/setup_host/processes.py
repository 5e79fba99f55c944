"""Runs a program to its end and shows its lines as they come; ends it with all that it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

if sys.platform == "win32":

    def _end_tree(process: subprocess.Popen[str]) -> None:
        import psutil

        try:
            started = psutil.Process(process.pid).children(recursive=True)
        except psutil.Error:
            started = []
        process.kill()
        for child in started:
            try:
                child.kill()
            except psutil.Error:  # it has ended by itself
                continue

else:
    import os

    def _end_tree(process: subprocess.Popen[str]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
        except ProcessLookupError:
            pass


KEPT_LINES = 200


class _HeldInterrupt:
    """Ctrl+C waits until `let_through`. While `Popen` is under way it would leave a program that nobody knows."""

    def __init__(self) -> None:
        self._came = False
        self._holds = threading.current_thread() is threading.main_thread()  # no other thread gets it
        if self._holds:
            self._handler = signal.signal(signal.SIGINT, self._note)

    def _note(self, *_: Any) -> None:
        self._came = True

    def let_through(self) -> None:
        if self._holds:
            self._holds = False
            signal.signal(signal.SIGINT, self._handler)
        if self._came:
            self._came = False
            raise KeyboardInterrupt


def run_program(
    command: Sequence[str], environ: Mapping[str, str], detail: Callable[[str], None], timeout_s: float
) -> tuple[int, list[str]]:
    """Exit code, and the last lines of what it printed. Interrupted or over its time, it ends whole.

    venv and pip start programs of their own, which would go on writing into a folder that is being removed.
    """
    interrupt = _HeldInterrupt()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except BaseException:
        interrupt.let_through()
        raise
    assert process.stdout is not None
    lines: list[str] = []
    timer = threading.Timer(timeout_s, _end_tree, (process,))
    timer.daemon = True
    is_done = False
    try:
        interrupt.let_through()
        timer.start()
        for line in process.stdout:
            detail(line.rstrip())
            lines.append(line.rstrip())
            del lines[:-KEPT_LINES]
        code = process.wait()
        is_done = True
    finally:
        timer.cancel()
        if not is_done:
            _end_tree(process)
            process.stdout.read()  # at its end nobody holds the pipe any more
            process.wait()
        process.stdout.close()
    return code, lines
