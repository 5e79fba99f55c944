"""Runs the model inside of this program with the host that is shipped beside the program.

To build it:

    pyinstaller --onefile --add-data model.onnx:. shipped_app.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import qnnbridge

# PyInstaller unpacks what --add-data adds beside this file. The program itself stays where the user put it.
MODEL = Path(__file__).resolve().parent / "model.onnx"
PROGRAM = Path(sys.executable if getattr(sys, "frozen", False) else __file__).resolve()
HOST_PYTHON = PROGRAM.parent / "host" / ("python.exe" if sys.platform == "win32" else "bin/python3")


def main() -> None:
    with (
        qnnbridge.Host(python=HOST_PYTHON) as host,
        qnnbridge.InferenceSession(MODEL, host=host) as session,
    ):
        node = session.get_inputs()[0]
        print(session.run(None, {node.name: np.ones(node.shape, np.float32)}))
        print(session)


if __name__ == "__main__":
    try:
        main()
    except qnnbridge.BridgeError as error:
        sys.exit(f"{type(error).__name__}: {error}")
