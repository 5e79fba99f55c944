"""How the host is started: its command line and its environment. Pure functions."""

from __future__ import annotations

import os
from collections.abc import Mapping

HOST_MODULE = "qnnbridge_host"

# Isolated (no PYTHON* variables, no user packages, no current folder on the path), unbuffered, UTF-8 everywhere,
# and a Python stack on stderr when native code crashes.
INTERPRETER_FLAGS = ("-I", "-u", "-X", "utf8", "-X", "faulthandler")

DROPPED_PREFIXES = ("PYTHON", "CONDA_", "_CE_", "PIP_")
# What describes the application's interpreter and poisons another one. A preloaded library was chosen for the
# application, and built for its machine; LD_LIBRARY_PATH stays, because vendors' NPU libraries are found by it.
DROPPED = frozenset({"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "__PYVENV_LAUNCHER__", "LD_PRELOAD", "LD_AUDIT"})

HOST_DEFAULTS = {
    # Else numpy's library starts a thread per core, and start-up under load takes twice as long.
    "OPENBLAS_NUM_THREADS": "1",
    "ORT_DISABLE_TELEMETRY": "1",
}


def host_command(python: str, *arguments: str) -> list[str]:
    """The command line of a host that ends with this process."""
    return [python, *INTERPRETER_FLAGS, "-m", HOST_MODULE, "--parent", str(os.getpid()), *arguments]


def host_environment(
    extra: Mapping[str, str] | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment `base`, by default this process', without what harms the host; `extra` has the last word."""
    kept = {name: value for name, value in (os.environ if base is None else base).items() if not _dropped(name)}
    return {**kept, **HOST_DEFAULTS, **(extra or {})}


def _dropped(name: str) -> bool:
    upper = name.upper()  # Windows does not care
    return upper in DROPPED or upper.startswith(DROPPED_PREFIXES)
