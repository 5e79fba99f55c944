"""Which files of the host decide about a session on a cache miss, and how often each is entered.

    python -m lab.creation_trace [MODEL]

An entry is a call in the thread that serves `session.create` whose nearest caller inside of the rooms `ROOMS` lies in
another file, or that has none. A return does not count. Threads that only show progress do not count. The model is compiled by the worker, on
the simulator if there is no NPU; the worker's own files do not count.
"""

from __future__ import annotations

from typing import Final

ROOMS: Final = ("create", "cache", "model", "compile")
