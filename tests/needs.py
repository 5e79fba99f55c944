"""Markers for the requirements of a test: ``@needs.posix``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

Variant = TypeVar("Variant")

posix = pytest.mark.skipif(os.name != "posix", reason="needs signals, rights, links and shells of POSIX")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, or names what only Linux has")
a_host_python = pytest.mark.skipif(sys.version_info < (3, 11), reason="the host needs Python 3.11")


def length(short: int, long: int) -> int:
    """Of a walk or a sweep: the long form with QNNBRIDGE_TEST_LONG=1, as in CI."""
    return long if os.environ.get("QNNBRIDGE_TEST_LONG") == "1" else short


def some(variants: Iterable[Variant]) -> list[Variant]:
    """Of a slow test's variants: all in the long form, else the first and each third one after it."""
    return list(variants)[:: length(3, 1)]


# Of tests whose subject costs far more than it can break without another test seeing it.
long_form = pytest.mark.skipif(length(1, 0) == 1, reason="only in the long form: QNNBRIDGE_TEST_LONG=1, as in CI")


class _Later:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks each name of a file whether it is a class, a mock or a fixture
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def package(name: str) -> Any:
    """As `pytest.importorskip`, but imported by the first test that uses it.

    Each worker of `pytest -n` collects all files, and `openai` takes a second of it.
    """
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"needs {name}", allow_module_level=True)
    return _Later(name)


_LABS = {
    "windows_arm64": r"labs/test_windows_arm64",
    "windows": r"labs/test_(windows|doctor_labs|labs_quick_calls)",
    "arm64": r"labs/test_arm64",
}


def lab_of(file: str) -> str | None:
    """The lab of a test file. All tests of one lab run in one process, since the first process that ends Windows ends
    everything that runs there."""
    return next((lab for lab, files in _LABS.items() if re.search(files, file)), None)
