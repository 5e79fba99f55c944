"""QNN SDK versions, compared and in words. Pure functions."""

from __future__ import annotations

import re
from typing import Final

_NUMBERS: Final = re.compile(r"v?(\d{1,4})\.(\d{1,6})(?:\.(\d{1,6})(?!\d))?")


def sdk_numbers(text: str | None) -> tuple[int, ...] | None:
    """``v2.51.0.260929181845`` -> (2, 51, 0), the stamp of the build left out; ``None`` for what is no version.

    Lenient, unlike the version table's: this text comes from a stranger's model.
    """
    found = _NUMBERS.match(text.strip()) if text else None
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def short_sdk(text: str | None) -> str:
    """``2.51``, as people say it."""
    numbers = sdk_numbers(text)
    return ".".join(map(str, numbers[:2])) if numbers else str(text or "unknown")


def release_with_sdk(sdk: str | None) -> str | None:
    """``onnxruntime-qnn 2.7.0``: the oldest release whose QNN SDK is as new; ``None`` if none is known."""
    wanted = sdk_numbers(sdk)
    if wanted is None:
        return None
    try:
        from qnnbridge_host.model.release_table import load_releases

        releases = load_releases()
    except (ImportError, OSError, ValueError, KeyError):
        return None
    fitting = [
        (numbers, release.version)
        for release in releases
        if (numbers := sdk_numbers(release.qnn_sdk)) is not None and numbers[:2] >= wanted[:2]
    ]
    return f"onnxruntime-qnn {min(fitting)[1]}" if fitting else None
