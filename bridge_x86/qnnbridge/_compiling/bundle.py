"""Several models that share their weights: one folder, one context binary, and a manifest of each.

They are compiled in one process, one after the other; QNN writes the binary with the last. It is named after the
first and belongs to all, so it must not be deleted with one of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from qnnbridge._compiling.compile import compile_to
from qnnbridge._compiling.matrix import plan
from qnnbridge._compiling.result import CompileResult
from qnnbridge._compiling.work import Stage
from qnnbridge_protocol.errors import OptionError


def compile_bundle(
    models: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    *,
    validate: bool = True,
    timeout: float | None = None,
    overwrite: bool = False,
    on_progress: Stage | None = None,
    **options: Any,
) -> tuple[CompileResult, ...]:
    """Compile `models` with shared weights into the folder `output`.

    options: as for `qnnbridge.compile`, with one ``soc_model``. The models need inputs and outputs, or graph names,
    that tell them apart: QNN keeps all of them under one roof. Raises what `qnnbridge.compile` raises; then nothing
    is left behind.
    """
    if len(models) < 2:
        raise OptionError("A bundle with shared weights needs at least two models.", fix="Name another model.")
    if options.get("embed"):
        raise OptionError(
            "Shared weights cannot be embedded.",
            cause="The context binary belongs to several .onnx files.",
            fix="Leave --embed (embed=True) out.",
        )
    chip = options.pop("soc_model", None)
    cells = plan(models, [chip] if chip is not None else (), output, **options)
    folders = {cell.place.folder for cell in cells}
    if len(folders) > 1:
        raise OptionError(
            "The models lie in different folders, and their compiled ones share a file.",
            fix="Give the folder for the result: -o DIR (output=).",
        )
    jobs, places = [cell.job for cell in cells], [cell.place for cell in cells]
    return compile_to(jobs, places, validate, timeout, overwrite, on_progress)
