"""The work of a worker: read a context binary by QNN's system library, and make the models around it.

Native code reads a file that anybody may have made, so this runs in a process of its own: the worker of a host, or
`python -m qnnbridge_host.wrap` of a command.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from qnnbridge_host.model.binary_description import BinaryDescription
from qnnbridge_host.wrap.build import Binary, WrappedModel, wrap
from qnnbridge_host.wrap.system_library import has_library, read_binary


@dataclasses.dataclass(frozen=True, slots=True)
class WrapRequest:
    """path: of the binary. name: its path in the models; ``None``: it is only described. Others as for `wrap`."""

    path: str
    name: str | None = None
    graphs: tuple[str, ...] = ()
    together: bool = False
    float_io: bool = False

    def to_plain(self) -> dict[str, Any]:
        """In JSON's types."""
        return {**dataclasses.asdict(self), "graphs": list(self.graphs)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> WrapRequest:
        """Raises `LookupError`, `TypeError` or `ValueError` for what `to_plain` did not make."""
        name = plain["name"]
        return cls(
            str(plain["path"]),
            None if name is None else str(name),
            tuple(str(one) for one in plain["graphs"]),
            bool(plain["together"]),
            bool(plain["float_io"]),
        )


def work(request: WrapRequest, folder: str | None = None) -> tuple[BinaryDescription, tuple[WrappedModel, ...]]:
    """folder: of the QNN that the session will use. Raises what `read_binary` and `wrap` raise."""
    described = read_binary(request.path, folder if folder and has_library(folder) else None)
    if request.name is None:
        return described, ()
    binary = Binary(described, request.name, os.path.basename(request.path))
    return described, wrap(binary, request.graphs, together=request.together, float_io=request.float_io)
