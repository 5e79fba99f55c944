"""The rewrites of `qnnbridge fix`, in the order in which they are done; `fixer` applies them.

Each is a function of another module here. It changes the model in place through an `Editor` and gives a line
for each kind of change, nothing if it found nothing. The modules import the editor and `rewriting`, not each other.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable
from typing import Final

from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.rewrite import constants, operators, rank, removals, wrong_values, wrong_windows
from qnnbridge_protocol.errors import OptionError

FIXED_SHAPES: Final = "fixed-shapes"


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """One rewrite: its name on the command line, what it does, and the function.

    tolerance: relative difference that it may make, where it leaves out roundings of a quantised model.
    """

    name: str
    summary: str
    apply: Callable[[Editor], list[str]]
    tolerance: float = 0.0


# The order matters. Sizes come first: constants and branches follow from them, and most other rewrites need shapes.
# Rank comes behind the rewrites that make new nodes.
# A Pow of 2 is a Mul before the exponents are looked at, and branches are decided after the sizes that decide them.
REWRITES: Final = (
    Rewrite(
        FIXED_SHAPES,
        "sizes of --shape and --dim for inputs, and what follows from them for the rest",
        constants.propagate_shapes,
    ),
    Rewrite(
        "weights-as-inputs",
        "weights that are listed as inputs, too, become plain constants",
        constants.weights_from_inputs,
    ),
    Rewrite("constants", "weights in Constant nodes become initializers", constants.initializers_from_constants),
    Rewrite(
        "shape-computations",
        "what follows from fixed shapes alone is computed once, here",
        constants.compute_shapes,
    ),
    Rewrite(
        "untaken-branches",
        "an If whose condition is known is replaced by the branch that it takes",
        removals.inline_known_branches,
    ),
    Rewrite("zero-size", "tensors without elements, which crash QNN, are taken out", removals.remove_empty_tensors),
    Rewrite("pow-square", "Pow(x, 2) becomes Mul(x, x)", operators.square_by_mul),
    Rewrite(
        "edge-padding",
        "Pad with mode edge, whose border QNN computes wrong, becomes Slice and Concat",
        wrong_windows.edge_by_concat,
    ),
    Rewrite("integer-exponent", "the exponent of Pow gets the type of its base", operators.exponent_of_base_type),
    Rewrite(
        "negative-indices",
        "constant indices that count from the end count from the start",
        constants.count_indices_from_start,
    ),
    Rewrite("gemm-scale", "alpha and beta of Gemm move into its constants", operators.fold_gemm_scale),
    Rewrite("clip-limits", "Clip with limits that are computed becomes Min and Max", operators.clip_by_min_max),
    Rewrite(
        "unused-outputs",
        "optional results that nothing reads are no longer asked for",
        removals.drop_unused_outputs,
    ),
    Rewrite("trilu", "Trilu becomes a constant mask", operators.trilu_by_where),
    Rewrite("skip-norm", "SkipLayerNormalization becomes Add and LayerNormalization", operators.split_skip_norm),
    Rewrite(
        "missing-operators",
        "ReduceL1, ReduceSumSquare, ReduceLogSum, Softsign, Celu, Sinh, Cosh become operators that QNN has",
        operators.define_missing_operators,
    ),
    Rewrite(
        "conv-padding",
        "Conv in one dimension whose equal padding QNN computes wrong is padded once more in front",
        wrong_windows.pad_convolutions,
    ),
    Rewrite(
        "split-padding",
        "Pad of several dimensions, one at its end only, becomes Pad and Concat",
        wrong_windows.split_padding,
    ),
    Rewrite(
        "power-products",
        "Pow of 2 to 16 that QNN computes wrong for zeros becomes products",
        wrong_values.powers_by_products,
    ),
    Rewrite(
        "pool-ceil",
        "MaxPool and AveragePool with ceil_mode whose last window is only padding get pads instead",
        wrong_windows.pool_whole_windows,
    ),
    Rewrite(
        "average-pool",
        "AveragePool whose border QNN computes wrong becomes Concat, AveragePool and a factor",
        wrong_windows.average_by_sums,
    ),
    Rewrite("gather-list", "Gather with a table of indices becomes one with a list", wrong_values.gather_by_list),
    Rewrite("gather-slices", "GatherND of slices takes them as one dimension", wrong_values.gather_flat_slices),
    Rewrite(
        "conv-step",
        "a depthwise Conv of one value with a stride becomes Slice and Conv",
        wrong_windows.step_before_conv,
    ),
    Rewrite(
        "operand-order",
        "operands of a product or sum that QNN takes well in one order alone change places",
        wrong_values.swap_operands,
    ),
    Rewrite("cast-bytes", "Cast of uint8 to float goes by int32", wrong_values.cast_bytes_twice),
    Rewrite("resize-nearest", "Resize to nearest values becomes Gather", wrong_values.resize_by_gather),
    Rewrite(
        "transposed-padding",
        "ConvTranspose with output_padding becomes one with less windows, and Concat for what no window reaches",
        wrong_windows.append_output_padding,
    ),
    Rewrite("transposed-groups", "ConvTranspose of four groups becomes four", wrong_windows.split_groups),
    Rewrite("softmax-of-one", "LogSoftmax along one element becomes zero", wrong_values.zero_instead_of_softmax),
    Rewrite(
        "rms-rank", "RMSNormalization of four dimensions becomes one of three", wrong_values.normalise_in_three
    ),
    Rewrite(
        "gelu", "the operators of a Gelu in a quantised model become one Gelu", operators.fuse_quantised_gelu, 0.1
    ),
    Rewrite(
        "norm-scale",
        "an int8 scale of a quantised normalisation beside unsigned activations becomes uint8",
        operators.unsigned_scales,
    ),
    Rewrite("erf", "Erf outside of a Gelu becomes a formula that is exact to 2e-7", operators.approximate_erf),
    Rewrite(
        "exponent-limits",
        "what computes an exponential gets arguments of -87 at least; of smaller ones QNN computes 131008",
        wrong_values.limit_arguments,
    ),
    Rewrite("rank", "more than five dimensions (MatMul: four) are folded into fewer", rank.fold_dimensions),
    Rewrite(
        "masks",
        "attention masks of -3.4e38 become -1e4, which half floats and quantised values have",
        constants.shrink_masks,
    ),
)


def chosen(only: Iterable[str], skip: Iterable[str]) -> list[Rewrite]:
    """Raises `OptionError` for names that do not exist."""
    only, skip = list(only), list(skip)
    names = [rewrite.name for rewrite in REWRITES]
    for name in (*only, *skip):
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            raise OptionError(
                f'There is no rewrite "{name}".',
                fix=(f'Did you mean "{close[0]}"? ' if close else "") + "qnnbridge fix --list shows them.",
            )
    return [rewrite for rewrite in REWRITES if (not only or rewrite.name in only) and rewrite.name not in skip]
