"""A model with the sizes and constants of the command line: `--shape` and `--constant` for commands that run it.

Sessions take sizes by name (`--dim`) themselves. Everything else needs a copy of the model, with the package onnx.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from qnnbridge_host.cache.work_folder import work_folder
from qnnbridge_host.graph.dimensions import Dimensions

_FIXED_SHAPES = "fixed-shapes"


@contextlib.contextmanager
def sized_model(
    model: Path,
    shapes: Mapping[str, Sequence[int | None]],
    dims: Dimensions,
    constants: Mapping[str, float],
) -> Iterator[tuple[Path, Dimensions]]:
    """The model to use, and the sizes that are left to give to a session. The copy is gone afterwards.

    Raises:
        OptionError: a size or a constant does not fit the model.
        CompiledModelRefused: the model is compiled.
        BridgeError: the package onnx is missing.
    """
    if not shapes and not constants:
        yield model, dims
        return
    from qnnbridge_host.rewrite.fixer import fix_model

    with work_folder("sized") as folder:
        copy = Path(folder) / model.name
        fix_model(model, copy, shapes=shapes, dims=dims, constants=constants, only=(_FIXED_SHAPES,), check=False)
        # All sizes are in the copy: nothing is left for the session.
        yield copy, Dimensions()
