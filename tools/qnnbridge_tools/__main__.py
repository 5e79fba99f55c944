"""`python -m qnnbridge_tools` is the `qnnbridge` command."""

from __future__ import annotations

import sys

from qnnbridge_tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
