"""List what PyInstaller cannot find by itself: modules that qnnbridge imports by name, and data files.

Host and daemon are not included, because they run in the host's own Python. `qnnbridge.speech` and
`qnnbridge.testing`, which need tokenizers, soxr or pytest, are only included if the application imports them.
"""

from __future__ import annotations

import sys

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

_OWN = "qnnbridge.__pyinstaller"
_IF_IMPORTED = ("qnnbridge.speech", "qnnbridge.testing", "qnnbridge._pytest_plugin")

hiddenimports = [
    *collect_submodules("qnnbridge", filter=lambda name: not name.startswith((_OWN, *_IF_IMPORTED))),
    *collect_submodules("qnnbridge_protocol"),
    *collect_submodules("qnnbridge_os"),
    "psutil",
    "tomllib" if sys.version_info >= (3, 11) else "tomli",
]
# JSON tables that the bridge needs to explain why a host ended.
datas = collect_data_files("qnnbridge", includes=["**/*.json"])
# Exclude packages that only the tools and the host use. The bridge uses onnx only in `onnxruntime.backend`. A
# program that imports this module also imports onnx, so PyInstaller finds onnx there.
excludedimports = ["qnnbridge_host", "qnnbridge_daemon", "qnnbridge_tools", "onnxruntime", "onnx", _OWN]
