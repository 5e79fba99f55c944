"""What `--dim` means for a session: its options, a name that no model has, and how to fix what is still free.

Pure functions; any thread. The commands that change a model have their own way (`model_work.shapes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge_protocol.errors import OptionError, PlacementRefused
from qnnbridge_tools.arguments import Dimensions

if TYPE_CHECKING:
    from qnnbridge import SessionOptions
    from qnnbridge_host.model.scan import ModelScan


class Input(Protocol):
    """An input of a model, from its file or from a session."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> Sequence[Any] | None: ...


_OVERRIDE = re.compile(r"add_free_dimension_override_by_name\((['\"])(.*?)\1, SIZE\)(,(?= add_free))?")
_PLAIN_NAME = re.compile(r"[\w.:-]+")
_ON_CPU = "create the session with fallback='cpu'"


def session_options(dimensions: Dimensions) -> SessionOptions | None:
    """Options that fix the named dimensions; ``None`` if there are none."""
    if not dimensions.by_name:
        return None
    from qnnbridge import SessionOptions

    options = SessionOptions()
    for name, size in dimensions.by_name.items():
        options.add_free_dimension_override_by_name(name, size)
    return options


def refuse_unknown(scans: Sequence[ModelScan], dimensions: Dimensions) -> None:
    """Raises `OptionError` for a `--dim` that no input of these models has: ONNX Runtime says nothing of it."""
    if any(scan.format == "ort" for scan in scans):  # nobody can look into those
        return
    refuse_unknown_of([node for scan in scans for node in scan.inputs], dimensions)


def refuse_unknown_of(inputs: Iterable[Input], dimensions: Dimensions) -> None:
    """`refuse_unknown`, for inputs that are known already."""
    free = {
        (node.name, axis): size if isinstance(size, str) else None
        for node in inputs
        for axis, size in enumerate(node.shape or ())
        if not isinstance(size, int) or size < 0
    }
    names = {f"{name}:{axis}" for name, axis in free} | {size for size in free.values() if size}
    there = dict.fromkeys(size or f"{name}:{axis}" for (name, axis), size in free.items())
    for name in dimensions.by_name:
        if name not in names:
            raise OptionError(
                f'The model has no free dimension "{name}".',
                cause=f"Its free dimensions: {', '.join(there) or 'none'}.",
                fix="Name one of these." if free else "Leave --dim away.",
            )


def in_options(refused: PlacementRefused) -> None:
    """Turn the calls of Python that the fix names into options of the command line."""
    fix = _OVERRIDE.sub(lambda call: _option(call[2]), refused.fix or "")
    fix = fix.replace(_ON_CPU, "add --fallback cpu").replace(" in the session options: --dim", ": --dim")
    refused.fix = fix or None


def _option(name: str) -> str:
    return f"--dim {name}=SIZE" if _PLAIN_NAME.fullmatch(name) else f'--dim "{name}=SIZE"'
