"""Wrong uses raise what ONNX Runtime raises: the same class with the same text."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import needs

ort = pytest.importorskip("onnxruntime")

import qnnbridge.ort as ours  # noqa: E402
from tests.dropin.wrong_uses import WRONG_USES  # noqa: E402

# Uses whose fault ONNX Runtime finds only during the run, in the code of a node, and the bridge before the run.
# Also uses whose message contains the signatures of inner functions.
OTHER_WORDS = {"binding_without_input", "empty_path", "optimizers_that_are_numbers"}

_SOURCE_POSITION = re.compile(r"^/\S+\.(?:cc|h):\d+ .* was false\. ")


@pytest.mark.parametrize("name", needs.some(WRONG_USES))
def test_a_wrong_use_raises_what_onnxruntime_raises(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    expected = raised_by(WRONG_USES[name], ort)
    got = raised_by(WRONG_USES[name], ours)
    classes = [cls.__name__ for cls in type(got).__mro__]
    assert type(expected).__name__ in classes
    if name not in OTHER_WORDS:
        assert str(got) == _SOURCE_POSITION.sub("", str(expected)).strip()


def test_at_least_thirty_wrong_uses_have_the_same_message() -> None:
    assert len(WRONG_USES) - len(OTHER_WORDS) >= 30


def test_details_that_the_message_omits_are_in_the_notes() -> None:
    error = raised_by(WRONG_USES["input_of_wrong_shape"], ours)
    assert any("(3, 2)" in note for note in error.__notes__)


def raised_by(function: Callable[[Any], Any], module: Any) -> BaseException:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            function(module)
        except Exception as error:
            return error
    raise AssertionError(f"{module.__name__} takes it")
