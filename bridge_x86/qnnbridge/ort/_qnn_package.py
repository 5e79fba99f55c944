"""``onnxruntime_qnn``, the package from which applications for onnxruntime-qnn 2.x get the library paths of QNN.

The paths refer to the host's package. They are valid as provider options (``backend_path``), since the host opens
them.
"""

from __future__ import annotations

import os
import sys

from qnnbridge._options.providers import QNN

EP_NAME = QNN


# The host returns the values when a program reads them, so that importing the package does not start a host.
def __getattr__(name: str) -> str:
    if name == "__version__":
        from qnnbridge._host import default_host

        return str(default_host().info.versions.get("onnxruntime_qnn", ""))
    if name == "LIB_DIR_FULL_PATH":
        return _folder()
    raise AttributeError(f"module 'onnxruntime_qnn' has no attribute {name!r}")


def get_ep_name() -> str:
    return EP_NAME


def get_ep_names() -> list[str]:
    return [EP_NAME]


def get_library_path() -> str:
    return _library("onnxruntime_providers_qnn")


def get_qnn_cpu_path() -> str:
    return _library("QnnCpu")


def get_qnn_gpu_path() -> str:
    return _library("QnnGpu")


def get_qnn_htp_path() -> str:
    return _library("QnnHtp")


def _library(name: str) -> str:
    # The host runs on the same machine, so this process's `sys.platform` determines the file name.
    return os.path.join(_folder(), f"{name}.dll" if sys.platform == "win32" else f"lib{name}.so")


def _folder() -> str:
    from qnnbridge._host import default_host

    return default_host().info.library_folder or ""
