"""Features that cannot cross a process boundary raise an error with cause and fix, as documented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

from qnnbridge.errors import OptionError
from qnnbridge.ort.capi import onnxruntime_pybind11_state as bindings
from tests.dropin.ort_table import REFUSED

ATTEMPTS: dict[str, Callable[[], Any]] = {
    "SessionObjectInitializer": lambda: bindings.SessionObjectInitializer(),
    "get_session_initializer": lambda: bindings.get_session_initializer(),
}


def test_everything_that_the_page_lists_as_impossible_is_tried() -> None:
    assert ATTEMPTS.keys() == REFUSED.keys()


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_impossible_request_is_refused_with_an_explanation(name: str) -> None:
    with pytest.raises(OptionError, match="through qnnbridge") as caught:
        ATTEMPTS[name]()
    error: Any = caught.value
    assert error.fix
    assert error.cause
