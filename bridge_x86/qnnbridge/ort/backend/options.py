"""Which options the backend interface lets through: those that cannot write files or stop a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def set_allowed(options: Any, given: Mapping[str, Any], allowed: frozenset[str], owner: str) -> None:
    """Set the allowed ones. Raises `RuntimeError` for others that exist; unknown names are ignored."""
    for name, value in given.items():
        if name in allowed:
            setattr(options, name, value)
        elif hasattr(options, name):
            raise RuntimeError(
                f"{owner} attribute '{name}' is not permitted via the backend API. "
                f"Allowed attributes: {', '.join(sorted(allowed))}"
            )
