"""Use the catalogue of Windows ML with the real wheel and print a JSON object; run by a Windows Python.

usage: ``windows_catalogue.py FOLDER``; FOLDER: the folder that contains ``windowsml``.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.argv[1])

from qnnbridge_host.windows_ml import main

sys.exit(0 if main(["list"]) in (0, 1) else 3)
