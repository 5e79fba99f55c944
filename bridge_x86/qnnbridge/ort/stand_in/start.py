"""``python -m qnnbridge.ort.stand_in.start [-m] PROGRAM ARGS``: for an interpreter that ignores ``PYTHONPATH``.

Such is Windows' embeddable Python (its ``._pth`` file), and any under ``-I`` or ``-E``. The drop-in is then put in
its place from within; processes that the program starts have it only if they import `qnnbridge.dropin` themselves.
"""

from __future__ import annotations

import os
import runpy
import sys


def main() -> None:
    import qnnbridge.dropin  # noqa: F401 - that is what it is for

    arguments = sys.argv[1:]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
