"""Compares version numbers: of Python packages, and of QNN SDK builds. Pure functions.

A package's version is PEP 440's, as far as onnxruntime and onnxruntime-qnn use it or may use it: numbers, ``rc``,
``post`` and ``dev``. The base install has no library for that.
"""

from __future__ import annotations

import re

Key = tuple[tuple[int, ...], int, int]

_VERSION = re.compile(
    r"v?(\d+(?:\.\d+)*)(?:(a|b|rc)(\d+))?(?:[.-]?post(\d+))?(?:[.-]?dev(\d+))?(?:\+.*)?", re.IGNORECASE
)
_SDK = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.\d+)?(?:[_-].*)?", re.IGNORECASE)
_PRE = {"a": 1, "b": 2, "rc": 3}
_FINAL, _POST = 4, 5


def version_key(text: str) -> Key:
    """Sorts as the releases follow each other. Raises `ValueError` for what is not a version."""
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a version number")
    numbers = [int(part) for part in found[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()  # 2.0 and 2.0.0 are one version
    if found[2]:
        return tuple(numbers), _PRE[found[2].lower()], int(found[3])
    if found[4]:
        return tuple(numbers), _POST, int(found[4])
    return tuple(numbers), 0 if found[5] else _FINAL, int(found[5] or 0)


def is_final(text: str) -> bool:
    """Neither a development build nor a candidate."""
    return version_key(text)[1] >= _FINAL


def sdk_numbers(text: str) -> tuple[int, ...]:
    """``v2.51.0.260929181845`` is (2, 51, 0): a fourth number says when, not which. ``2.40`` is (2, 40).

    Raises `ValueError` for what is not an SDK version.
    """
    found = _SDK.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a QNN SDK version")
    return tuple(int(part) for part in found.groups() if part is not None)


def sdk_is_newer(sdk: str, than: str) -> bool:
    """Whether `sdk` is newer, judged by as many numbers as both have: 2.40.1 is not newer than "2.40"."""
    left, right = sdk_numbers(sdk), sdk_numbers(than)
    shared = min(len(left), len(right))
    return left[:shared] > right[:shared]


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version meets ``>=1.24.2,<2``. Knows ``>= <= > < == !=`` without wildcards.

    Raises `ValueError` for a specifier that it cannot judge.
    """
    key = version_key(version)
    return all(_meets(key, clause) for clause in specifier.split(",") if clause.strip())


def _meets(key: Key, clause: str) -> bool:
    found = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*", clause)
    if found is None:
        raise ValueError(f"{clause!r} is not a version specifier")
    other = version_key(found[2])
    return {
        ">=": key >= other,
        "<=": key <= other,
        ">": key > other,
        "<": key < other,
        "==": key == other,
        "!=": key != other,
    }[found[1]]
