"""Fixtures of the doctor's tests, whose computers are in modules of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
