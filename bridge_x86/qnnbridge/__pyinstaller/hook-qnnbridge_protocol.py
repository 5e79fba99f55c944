"""A notebook, which has IPython, is no frozen application."""

from __future__ import annotations

excludedimports = ["IPython"]
