"""Programs that use onnxruntime as its documentation does print the same with the bridge in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

pytest.importorskip("onnxruntime")

from tests.dropin.running import TIMEOUT_S, exec_program

EXAMPLES = {path.stem: path for path in sorted((Path(__file__).parent / "examples").glob("*.py"))}


@pytest.mark.parametrize("name", needs.some(EXAMPLES))
def test_an_example_prints_the_same_output(name: str, tmp_path: Path) -> None:
    if "import onnxruntime_qnn" in EXAMPLES[name].read_text(encoding="utf-8"):
        pytest.importorskip("onnxruntime_qnn")
    program = str(EXAMPLES[name])
    alone = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert alone.returncode == 0, alone.stderr
    bridged = exec_program(program, cwd=tmp_path)
    assert bridged.returncode == 0, bridged.stderr
    assert bridged.stdout == without_noise(alone.stdout)


def without_noise(text: str) -> str:
    """Remove the line that QNN's simulator prints on stdout; with the bridge it goes to the host's output."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("# LIBNATIVE"))
