"""Whether the kernel had to kill processes because the memory was used up: what tells that from a kill -9.

Linux counts them (since 4.13), those of a container's own limit included. Elsewhere nothing is known. Any thread.
"""

from __future__ import annotations

_COUNTERS = "/proc/vmstat"


def out_of_memory_kills() -> int | None:
    """How many there have been since the machine was started; ``None`` where nobody counts."""
    try:
        with open(_COUNTERS, encoding="ascii") as file:
            for line in file:
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    except (OSError, ValueError):
        pass
    return None
