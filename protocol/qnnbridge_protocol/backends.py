"""QNN backends that take every node and compute none: the placement says so, and the application is warned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BACKENDS_WITHOUT_RESULTS: Final[Mapping[str, str]] = {
    "saver": "The saver backend only records what it is asked to do: its outputs are not results.",
    "ir": "The IR backend only writes the graph to a file: it cannot compute.",
}
