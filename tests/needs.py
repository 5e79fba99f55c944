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
    """Return the length of a walk or a sweep: `long` with QNNBRIDGE_TEST_LONG=1, as in CI, otherwise `short`."""
    return long if os.environ.get("QNNBRIDGE_TEST_LONG") == "1" else short


def some(variants: Iterable[Variant]) -> list[Variant]:
    """Return all variants of a slow test in the long form, otherwise every third one, starting with the first."""
    return list(variants)[:: length(3, 1)]


# Marker of tests that are expensive and rarely find a defect that other tests miss.
long_form = pytest.mark.skipif(length(1, 0) == 1, reason="only in the long form: QNNBRIDGE_TEST_LONG=1, as in CI")


class _Later:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(
            "_"
        ):  # pytest checks for each name of a file whether it is a class, a mock or a fixture
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def package(name: str) -> Any:
    """Return a package that is imported on first use; skip the module if it is not installed.

    Unlike `pytest.importorskip`, collecting is quick: each worker of `pytest -n` collects all files, and importing
    `openai` takes a second.
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
    """Return the lab of a test file, if any.

    All tests of one lab run in one process, since a process that ends its Windows ends everything that runs there.
    """
    return next((lab for lab, files in _LABS.items() if re.search(files, file)), None)
