"""Modules that the bridge imports by name, when they are first needed.

Host and daemon are not among them: they run in the host's own Python.
"""

from __future__ import annotations

import sys

from PyInstaller.utils.hooks import collect_submodules

_OWN = "qnnbridge.__pyinstaller"

hiddenimports = [
    *collect_submodules("qnnbridge", filter=lambda name: not name.startswith(_OWN)),
    *collect_submodules("qnnbridge_protocol"),
    *collect_submodules("qnnbridge_os"),
    "psutil",
    "tomllib" if sys.version_info >= (3, 11) else "tomli",
]
# What only tools and host use, which may be installed beside.
excludedimports = ["qnnbridge_host", "qnnbridge_daemon", "qnnbridge_tools", "onnxruntime", _OWN]
