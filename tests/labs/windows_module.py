"""Run a module of the project or of its tests in a Windows lab, as ``python -m NAME ARGUMENTS`` does."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    sys.path[:0] = [
        str(CHECKOUT),
        *(str(CHECKOUT / name) for name in ("protocol", "bridge_x86", "host_arm64", "daemon", "tools")),
    ]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
