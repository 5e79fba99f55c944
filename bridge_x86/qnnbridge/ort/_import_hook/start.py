"""``python -m qnnbridge.ort._import_hook.start [-m] PROGRAM ARGS``: for an interpreter that ignores ``PYTHONPATH``.

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
    is_module = arguments[0] == "-m"
    sys.argv = arguments[1:] if is_module else arguments
    folder = os.getcwd() if is_module else os.path.dirname(os.path.abspath(arguments[0]))
    # An isolated interpreter has put no folder of this module first.
    sys.path[: 0 if getattr(sys.flags, "safe_path", sys.flags.isolated) else 1] = [folder]
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
