"""Where the cache of compiled models is, how large it may grow, and whether it is on, as the environment says.

The application reads its own environment for each session and sends it to the host; the tools read theirs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from qnnbridge_protocol.model_records import CacheSettings

SWITCH_VARIABLE: Final = "QNNBRIDGE_CACHE"
FOLDER_VARIABLE: Final = "QNNBRIDGE_CACHE_DIR"
MAX_BYTES_VARIABLE: Final = "QNNBRIDGE_CACHE_MAX_BYTES"
MIN_MODEL_BYTES_VARIABLE: Final = "QNNBRIDGE_CACHE_MIN_MODEL_BYTES"

MAX_BYTES: Final = 10 * 1024**3
# Compiling a smaller one takes less than the process that would do it for the cache, as a rule.
MIN_MODEL_BYTES: Final = 16 * 1024

_OFF: Final = frozenset(("0", "off", "no", "false"))
_SIZE: Final = re.compile(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def cache_settings(environ: Mapping[str, str] | None = None, wanted: bool | None = None) -> CacheSettings:
    """As the environment is now. Variables without a usable value are named in `problems`."""
    env = os.environ if environ is None else environ
    problems: list[str] = []
    return CacheSettings(
        folder=os.fspath(cache_dir(env)),
        wanted=wanted,
        enabled=env.get(SWITCH_VARIABLE, "").strip().lower() not in _OFF,
        max_bytes=_size(env, MAX_BYTES_VARIABLE, MAX_BYTES, problems),
        min_model_bytes=_size(env, MIN_MODEL_BYTES_VARIABLE, MIN_MODEL_BYTES, problems),
        problems=tuple(problems),
    )


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The folder; it may not exist yet. ``QNNBRIDGE_CACHE_DIR`` overrides the system's place for it."""
    override = (os.environ if environ is None else environ).get(FOLDER_VARIABLE)
    if override:
        return Path(os.path.abspath(os.path.expanduser(override)))
    import platformdirs

    return Path(platformdirs.user_cache_dir("qnnbridge", appauthor=False))


def parse_size(text: str) -> int | None:
    """Bytes of ``500M``, ``10 GiB`` or ``123``; ``None`` for anything else. Units are powers of 1024."""
    found = _SIZE.fullmatch(text)
    return None if found is None else int(found[1]) * _FACTORS[found[2].lower()]


def _size(env: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    size = parse_size(text)
    if size is None:
        problems.append(f"{name}={text!r} is no size (write bytes, or 500M, 10G); {default} is used.")
        return default
    return size
