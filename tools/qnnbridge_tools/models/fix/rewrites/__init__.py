"""The rewrites of `qnnbridge fix`, in the order in which they are done. Each is a module with `apply(editor)`.

`apply` changes the model in place and gives a line for each kind of change, nothing if it found nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from qnnbridge_protocol.errors import OptionError

if TYPE_CHECKING:
    from qnnbridge_tools.models.fix.editor import Editor

FIXED_SHAPES: Final = "fixed-shapes"


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """module: below this package."""

    name: str
    summary: str
    module: str

    def apply(self, editor: Editor) -> list[str]:
        changes: list[str] = importlib.import_module(f"{__name__}.{self.module}").apply(editor)
        return changes


REWRITES: Final = (
    Rewrite(
        FIXED_SHAPES,
        "sizes of --shape and --dim for inputs, and what follows from them for the rest",
        "fixed_shapes",
    ),
    Rewrite("weights-as-inputs", "weights that are listed as inputs, too, become plain constants", "weight_inputs"),
    Rewrite("constants", "weights in Constant nodes become initializers", "constants"),
    Rewrite(
        "shape-computations", "what follows from fixed shapes alone is computed once, here", "shape_computations"
    ),
    Rewrite(
        "untaken-branches", "an If whose condition is known is replaced by the branch that it takes", "branches"
    ),
    Rewrite("zero-size", "tensors without elements, which crash QNN, are taken out", "zero_size"),
    Rewrite("pow-square", "Pow(x, 2) becomes Mul(x, x)", "pow_square"),
    Rewrite("integer-exponent", "the exponent of Pow gets the type of its base", "integer_exponent"),
    Rewrite(
        "negative-indices", "constant indices that count from the end count from the start", "negative_indices"
    ),
    Rewrite("gemm-scale", "alpha and beta of Gemm move into its constants", "gemm_scale"),
    Rewrite("clip-limits", "Clip with limits that are computed becomes Min and Max", "clip_limits"),
    Rewrite("unused-outputs", "optional results that nobody reads are no longer asked for", "unused_outputs"),
    Rewrite("trilu", "Trilu becomes a constant mask", "trilu"),
    Rewrite("skip-norm", "SkipLayerNormalization becomes Add and LayerNormalization", "skip_norm"),
    Rewrite(
        "missing-operators",
        "ReduceL1, ReduceSumSquare, ReduceLogSum, Softsign, Celu, Sinh, Cosh become operators that QNN has",
        "missing_operators",
    ),
    Rewrite("erf", "Erf outside of a Gelu becomes a formula that is exact to 2e-7", "erf"),
    Rewrite("rank", "more than five dimensions (MatMul: four) are folded into fewer", "rank"),
    Rewrite(
        "masks", "attention masks of -3.4e38 become -1e4, which half floats and quantised values have", "masks"
    ),
)


def chosen(only: Iterable[str], skip: Iterable[str]) -> list[Rewrite]:
    """Raises `OptionError` for names that do not exist."""
    only, skip = list(only), list(skip)
    names = [rewrite.name for rewrite in REWRITES]
    for name in (*only, *skip):
        if name not in names:
            import difflib

            close = difflib.get_close_matches(name, names, n=1)
            raise OptionError(
                f'There is no rewrite "{name}".',
                fix=(f'Did you mean "{close[0]}"? ' if close else "") + "qnnbridge fix --list shows them.",
            )
    return [rewrite for rewrite in REWRITES if (not only or rewrite.name in only) and rewrite.name not in skip]
