"""Exclude IPython, which only notebooks need, from frozen applications."""

from __future__ import annotations

excludedimports = ["IPython"]
