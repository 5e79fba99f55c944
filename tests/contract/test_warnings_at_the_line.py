"""Every warning is issued once, at the application's line, with a command that can be pasted."""

from __future__ import annotations

import asyncio
import inspect
import logging
import shlex
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge import _callers, aio, futures
from qnnbridge._session.numbers_check import NumbersCheck
from qnnbridge_protocol.model_records import NumbersReport, OutputNumbers
from tests.contract.small_models import CPU, MODELS
from tests.fakes.later import until

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

MODEL = MODELS / "mul_1.onnx"
FEED = {"X": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)}
DIFFERS = NumbersReport("differs", (OutputNumbers("differs", 6, 3.5, output="Y"),), "the inputs of a call")


def line() -> int:
    """Return the number of the calling line."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


@pytest.fixture
def wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every comparison report a difference."""
    monkeypatch.setattr(NumbersCheck, "_ask", lambda *_: DIFFERS)


def by_run(session: qnnbridge.InferenceSession) -> int:
    session.run(None, FEED)
    return line() - 1


def by_run_async(session: qnnbridge.InferenceSession) -> int:
    session.run_async(None, FEED, lambda *_: None, None)
    return line() - 1


def by_binding(session: qnnbridge.InferenceSession) -> int:
    binding = session.io_binding()
    binding.bind_cpu_input("X", FEED["X"])
    binding.bind_output("Y")
    session.run_with_iobinding(binding)
    return line() - 1


def by_future(session: qnnbridge.InferenceSession) -> int:
    started = futures.submit(session, None, FEED)
    begun = line() - 1
    started.result(30)
    return begun


def by_asyncio(session: qnnbridge.InferenceSession) -> int:
    opened = aio.InferenceSession("")
    opened._session = session

    async def run() -> int:
        await opened.run(None, FEED)
        return line() - 1

    return asyncio.run(run())


def by_callback(session: qnnbridge.InferenceSession) -> int:
    """Run from a callback, in the bridge's thread: the warning names the callback's line."""
    lines: list[int] = []
    done = threading.Event()

    def callback(*_: Any) -> None:
        session.run(None, FEED)
        lines.append(line() - 1)
        done.set()

    with qnnbridge.InferenceSession(MODEL, providers=CPU, host=session.host) as other:
        other.run_async(None, FEED, callback, None)
        assert done.wait(30)
    return lines[0]


@pytest.mark.parametrize(
    "entry", [by_run, by_run_async, by_binding, by_future, by_asyncio, by_callback], ids=lambda one: one.__name__
)
def test_wrong_numbers_are_reported_at_the_line_of_the_call(
    entry: Callable[[qnnbridge.InferenceSession], int], wrong_numbers: None, host: qnnbridge.Host
) -> None:
    with (
        qnnbridge.InferenceSession(MODEL, host=host, cache=False, verify="warn") as session,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        expected = entry(session)
        until(lambda: bool(told))
    assert [(one.filename, one.lineno) for one in told] == [(__file__, expected)]


@pytest.fixture
def handlers() -> Iterator[list[logging.Handler]]:
    """Return the handlers of the root logger without those of pytest."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    yield root.handlers
    root.handlers = before


def test_without_logging_the_message_is_shown_once(handlers: list[logging.Handler], capsys: Any) -> None:
    log = logging.getLogger("qnnbridge.numbers")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _callers.warn_application("a text", UserWarning, log)
        assert [str(one.message) for one in told] == ["a text"]
        assert "a text" not in capsys.readouterr().err
        kept: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: kept.append(record.getMessage())  # type: ignore[method-assign]
        handlers.append(handler)
        _callers.warn_application("a text", UserWarning, log)
    assert kept == ["a text"], "a program that handles log records gets them"


def test_one_line_of_the_application_warns_once() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            _callers.warn_application("again", UserWarning)
        _callers.warn_application("again", UserWarning)
    assert [one.lineno for one in told] == [line() - 2, line() - 1]


def test_a_program_without_a_file_is_warned_too() -> None:
    code = "from qnnbridge._callers import warn_application\nwarn_application('a text', UserWarning)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.startswith("<string>:2: UserWarning: a text"), done.stderr


def test_the_warning_about_a_fallback_names_a_command_that_works(host: qnnbridge.Host, tmp_path: Path) -> None:
    folder = tmp_path / "with blanks"
    folder.mkdir()
    copy = folder / "model_v8.onnx"
    copy.write_bytes((MODELS / "model_v8.onnx").read_bytes())
    with pytest.warns(qnnbridge.CpuFallbackWarning) as told:
        qnnbridge.InferenceSession(copy, fallback="cpu", host=host).close()
    command = str(told[0].message).split("`")[1]
    words = shlex.split(command)
    assert words[:2] == ["qnnbridge", "analyze"]
    done = subprocess.run(
        [sys.executable, "-m", "qnnbridge_tools", *words[1:], "--offline"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "model_v8.onnx" in done.stdout
