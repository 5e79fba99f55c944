"""Notebooks show tracebacks without the bridge's frames, and objects as HTML. Runs a real IPython."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import qnnbridge
import qnnbridge_protocol
from tests.contract.small_models import MODELS

pytest.importorskip("IPython")

OURS = [Path(module.__file__).parent for module in (qnnbridge, qnnbridge_protocol)]
SHELL = """
    import sys
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance(colors="NoColor", xmode={mode!r})
    for cell in sys.stdin.read().split("%%"):
        shell.run_cell(cell, store_history=True)
"""


def shown(*cells: str, mode: str = "Context") -> str:
    """Run the cells in an IPython shell and return the printed text."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(SHELL).format(mode=mode)],
        input="%%".join(map(textwrap.dedent, cells)),
        capture_output=True,
        text=True,
        timeout=100,
    )
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


BEGIN = f"""
    import numpy as np
    import qnnbridge

    session = qnnbridge.InferenceSession({str(MODELS / "mul_1.onnx")!r}, providers=["CPUExecutionProvider"])
"""


@pytest.mark.parametrize("mode", ["Context", "Verbose", "Plain"])
def test_a_traceback_ends_at_the_line_of_the_notebook(mode: str) -> None:
    text = shown(BEGIN, 'session.run(None, {"X": np.ones(5, np.float32)})', mode=mode)
    trace = text[text.index("Traceback") :]
    assert "session.run(None" in trace
    assert "InvalidArgument" in trace
    assert not any(str(folder) in trace for folder in OURS), "no file of ours"
    assert re.search(r"\[\.\.\. \d+ frames of qnnbridge; %debug shows them\]", trace)
    assert "Traceback (most recent call last)" in trace


def test_the_cause_and_the_fix_of_the_error_are_shown() -> None:
    text = shown("import qnnbridge", 'qnnbridge.InferenceSession("there-is-none.onnx")')
    assert "NoSuchFile" in text
    assert "there-is-none.onnx" in text
    assert len(text.splitlines()) < 15, text


def test_frames_between_those_of_the_application_are_hidden_and_counted() -> None:
    text = shown(
        """
        import qnnbridge

        def mine():
            return qnnbridge.InferenceSession("there-is-none.onnx")

        def called_by_the_bridge():
            from qnnbridge_protocol import shell
            return shell.shell_word(Path())

        class Path:
            def __fspath__(self):
                return mine()
        """,
        "called_by_the_bridge()",
    )
    assert "skipping hidden" in text
    assert "return mine()" in text
    assert "shell.py" not in text


def test_other_errors_and_the_debugger_show_all_frames() -> None:
    text = shown(
        BEGIN,
        "session.run(None, {'X': 1, 'Y': 2}, 3)",
        "import sys; print('FRAMES', sys.last_traceback is not None)",
    )
    assert "FRAMES True" in text


def test_a_session_is_displayed_as_html() -> None:
    text = shown(
        BEGIN,
        """
        from IPython.core.formatters import DisplayFormatter
        data, _ = get_ipython().display_formatter.format(session)
        print(sorted(data), data["text/html"].startswith('<div class="qnnbridge">'))
        session
        """,
    )
    assert "['text/html', 'text/plain'] True" in text
    assert "Out[" in text
    assert "<InferenceSession mul_1.onnx: 0 of 1 node on QNN, 1 on the CPU" in text
