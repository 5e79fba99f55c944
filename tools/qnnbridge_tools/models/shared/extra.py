"""The extra `[models]`: onnx and onnxruntime in the application's own interpreter."""

from __future__ import annotations

import importlib
import sys

from qnnbridge_protocol.errors import BridgeError

PACKAGES = ("numpy", "onnx", "onnxruntime")


def require_models_extra(command: str) -> None:
    """Raises one clear error if a package is missing or broken. `command`: the words for the user."""
    missing: list[str] = []
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            missing.append(error.name or package)
        except (ImportError, OSError) as error:
            raise BridgeError(
                f"{command} needs {package}, which is installed but cannot be imported.",
                cause=str(error).splitlines()[0] if str(error) else type(error).__name__,
                fix=f'Install it again: {sys.executable} -m pip install --force-reinstall "{package}"',
            ) from None
    if missing:
        raise BridgeError(
            f"{command} needs {' and '.join(missing)}, which this Python does not have: {sys.executable}.",
            cause="Commands that change models work in the application's interpreter and need the extra [models].",
            fix=f'{sys.executable} -m pip install "qnnbridge[models]"',
        )
