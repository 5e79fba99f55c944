"""The catalogue of the rewrites of `qnnbridge fix`, in the order in which they are applied.

Each rewrite is a function in another module of this package. It changes the model in place through an `Editor` and
returns a list with a description of each type of change. The list is empty if nothing was changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from qnnbridge_host.model import double_edges
from qnnbridge_host.rewrite import (
    constants,
    doubles,
    exported,
    five_dimensions,
    gathers,
    integers,
    operators,
    poolings,
    quantised_weights,
    rank,
    removals,
    transposed,
    transposes,
    wrong_values,
)
from qnnbridge_host.rewrite.rewriting import Rewriting
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.shown import closest

GATES: Final = "gates"
FIXED_SHAPES: Final = "fixed-shapes"
MASKS: Final = "masks"


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """One rewrite.

    Attributes:
        name: the rewrite's name on the command line.
        summary: description in `qnnbridge fix --list`.
        apply: the function that changes the model.
        tolerance: allowed relative difference of the results; above 0 if it removes roundings of a quantised model.
        by_name_only: whether the rewrite is applied only on request, because it makes most models slower.
    """

    name: str
    summary: str
    apply: Rewriting
    tolerance: float = 0.0
    by_name_only: bool = False


# The order matters. Sizes come first, because constants and branches follow from them and most other rewrites need
# shapes. `rank` comes after the rewrites that create new nodes. A Pow of 2 becomes a Mul before the rewrites of
# exponents, and branches are inlined after the sizes that determine the branch are fixed.
REWRITES: Final = (
    Rewrite(
        FIXED_SHAPES,
        "inputs get the sizes of --shape and --dim, and all other shapes are inferred from them",
        constants.propagate_shapes,
    ),
    Rewrite(
        "weights-as-inputs",
        "weights that are also listed as inputs become plain constants",
        constants.weights_from_inputs,
    ),
    Rewrite("constants", "weights in Constant nodes become initializers", constants.initializers_from_constants),
    Rewrite(
        "definitions",
        "Mish, and GroupNormalization of opset 18 or of five dimensions, become their ONNX definitions",
        exported.write_out_definitions,
    ),
    Rewrite(
        "body-weights",
        "weights that the bodies of Loop, Scan and If read are passed through a sequence, so that the model can be "
        "compiled (only with --only body-weights)",
        exported.weights_by_sequence,
        by_name_only=True,
    ),
    Rewrite(
        "shape-computations",
        "tensors that depend only on fixed shapes become constants",
        constants.compute_shapes,
    ),
    Rewrite(
        "untaken-branches",
        "an If whose condition is known is replaced by the branch that it takes",
        removals.inline_known_branches,
    ),
    Rewrite("zero-size", "tensors without elements, which crash QNN, are removed", removals.remove_empty_tensors),
    Rewrite("pow-square", "Pow(x, 2) becomes Mul(x, x)", operators.square_by_mul),
    Rewrite(
        "edge-padding",
        "Pad with mode edge, whose border QNN computes wrong, becomes Slice and Concat",
        wrong_values.edge_by_concat,
    ),
    Rewrite("integer-exponent", "the exponent of Pow gets the type of its base", operators.exponent_of_base_type),
    Rewrite(
        "negative-indices",
        "negative indices, constant or computed, which count from the end, are converted to indices from the start",
        gathers.count_indices_from_start,
    ),
    Rewrite("gemm-scale", "alpha and beta of Gemm move into its constants", operators.fold_gemm_scale),
    Rewrite("clip-limits", "Clip with computed limits becomes Max and Min", operators.clip_by_min_max),
    Rewrite(
        "unused-outputs",
        "unused optional results are removed",
        removals.drop_unused_outputs,
    ),
    Rewrite("trilu", "Trilu becomes a constant mask", operators.trilu_by_where),
    Rewrite("skip-norm", "SkipLayerNormalization becomes Add and LayerNormalization", operators.split_skip_norm),
    Rewrite(
        "default-activations",
        "explicit default activations of GRU and LSTM are removed",
        exported.drop_default_activations,
    ),
    Rewrite(
        "gather-places",
        "GatherND with constant indices becomes Reshape, with a Gather if the indices are not in order",
        exported.gather_nd_by_gather,
    ),
    Rewrite(
        "integer-table",
        "Gather from a table of 8-bit integers is moved after DequantizeLinear",
        exported.dequantize_before_gather,
    ),
    Rewrite(
        "attention-mask",
        "the boolean mask of Attention becomes a float mask that is added to the scores",
        exported.add_attention_mask,
    ),
    Rewrite("sequence-parts", "SequenceAt of a split tensor becomes a Slice", exported.slice_of_a_sequence),
    Rewrite(
        "scatter-rows",
        "ScatterElements with add or mul that updates whole rows becomes ScatterND",
        exported.scatter_rows,
    ),
    Rewrite(
        "scatter-extremes",
        "ScatterElements with max or min that updates whole rows becomes Where and ReduceMax or ReduceMin",
        exported.scatter_extremes,
    ),
    Rewrite("col2im", "Col2Im (PyTorch's fold) becomes a ConvTranspose", exported.columns_by_transposed_conv),
    Rewrite("equal-bool", "Equal of booleans becomes Xor and Not", integers.equal_by_xor),
    Rewrite("negative-integer", "Neg of integers becomes a Sub from 0", integers.negative_by_sub),
    Rewrite("integer-padding", "Pad of integers or booleans becomes Concat", integers.pad_by_concat),
    Rewrite("dft", "DFT of a known length becomes a product with its matrix", exported.dft_by_matmul),
    Rewrite("einsum", "Einsum becomes transposes, reshapes and products", exported.einsum_by_matmul),
    Rewrite(
        "missing-operators",
        "ReduceL1, ReduceSumSquare, ReduceLogSum, Softsign, Celu, Sinh, Cosh become operators that QNN supports",
        operators.define_missing_operators,
    ),
    Rewrite(
        "half-infinity",
        "IsInf of half floats becomes a comparison of the absolute value with 65504",
        operators.infinite_half_by_size,
    ),
    Rewrite(
        "conv-padding",
        "Conv in one dimension with equal padding on both sides, which QNN computes wrong, is padded with one more "
        "zero at the start, and its first result is dropped",
        wrong_values.pad_convolutions,
    ),
    Rewrite(
        "split-padding",
        "padding at the end of the last dimension becomes Concat if other sides are padded too, or after some "
        "operators",
        wrong_values.split_padding,
    ),
    Rewrite(
        "power-products",
        "Pow with exponents of 2 to 16 that QNN computes wrong for zeros becomes products; Max is inserted before "
        "a zeroth power, and Where before a power with several exponents",
        wrong_values.rewrite_powers,
    ),
    Rewrite(
        "pool-ceil",
        "MaxPool and AveragePool with ceil_mode whose last window is only padding get pads instead",
        poolings.pool_whole_windows,
    ),
    Rewrite(
        "average-pool",
        "AveragePool whose border QNN computes wrong becomes Concat, AveragePool and a Mul by constants",
        poolings.average_by_sums,
    ),
    Rewrite(
        "max-pool",
        "padding of a MaxPool at the left of an image of even width becomes copies of the edge values; the stride "
        "of a MaxPool with a kernel of width 1 becomes a Slice",
        poolings.rewrite_max_pools,
    ),
    Rewrite(
        "lp-pool",
        "auto_pad of an LpPool whose windows do not reach the end of the image becomes pads",
        poolings.pads_of_lp_pools,
    ),
    Rewrite("gather-list", "indices of Gather with several dimensions are flattened", gathers.gather_by_list),
    Rewrite(
        "gather-input",
        "Max (Add and Sub below opset 12) is inserted before indices of Gather that are an input of the model",
        gathers.limit_gathered,
    ),
    Rewrite(
        "arg-min", "ArgMin of two values becomes ArgMax of the negated values", wrong_values.largest_of_negatives
    ),
    Rewrite("gather-slices", "the dimensions of slices that GatherND reads are merged", gathers.gather_flat_slices),
    Rewrite(
        "conv-step",
        "the stride of a depthwise Conv with a kernel of one value becomes a Slice before the Conv",
        wrong_values.step_before_conv,
    ),
    Rewrite(
        "operand-order",
        "operands of a product or sum that QNN computes right in only one order are swapped",
        wrong_values.swap_operands,
    ),
    Rewrite(
        "reshaped-matmul",
        "MatMul by a constant matrix between Reshapes, which QNN would drop, becomes Gemm; Max is inserted before "
        "a MatMul or Gemm of half floats that only Reshapes connect to an input and an output of the model",
        wrong_values.separate_reshapes,
    ),
    Rewrite(
        "negative-scale",
        "negative scales of quantised values, which QNN treats as positive, become positive",
        operators.sign_beside_scale,
    ),
    Rewrite(
        "infinite-limits",
        "Min or Max with infinity is inserted before Equal with infinity",
        wrong_values.limit_to_infinity,
    ),
    Rewrite(
        "cast-truth",
        "Cast of negative integers to booleans becomes Equal and Not",
        wrong_values.truth_by_equal,
    ),
    Rewrite(
        "cast-back",
        "Max (Add and Sub below opset 12) is inserted between casts to integers and back to float: QNN would drop "
        "both casts and not round",
        wrong_values.limit_whole_numbers,
    ),
    Rewrite("cast-bytes", "Cast of uint8 to float is preceded by a Cast to int32", wrong_values.cast_bytes_twice),
    Rewrite("resize-nearest", "Resize to nearest values becomes Gather", wrong_values.resize_by_gather),
    Rewrite(
        "transposed-padding",
        "output_padding of ConvTranspose becomes less padding, and Concat for positions that no window reaches",
        transposed.replace_output_padding,
    ),
    Rewrite(
        "transposed-volume",
        "ConvTranspose in three dimensions gets a Slice instead of padding, and its dimensions are reordered so "
        "that equal strides come last",
        transposed.crop_and_turn,
    ),
    Rewrite("transposed-groups", "ConvTranspose of four groups becomes four of one group", transposed.split_groups),
    Rewrite(
        "random-on-cpu",
        "random operators whose numbers QNN draws only once become operators that stay on the CPU",
        wrong_values.random_on_cpu,
    ),
    Rewrite(
        "softmax-factor",
        "the scalar by which the argument of a Softmax is multiplied becomes a tensor with one dimension",
        wrong_values.factor_with_a_dimension,
    ),
    Rewrite(
        "l2-offset",
        "x / (n + e), with n = ReduceL2(x), becomes x / n * (n / (n + e)), because QNN drops e",
        wrong_values.add_behind_normalisation,
    ),
    Rewrite(
        "reduced-batch",
        "in a reduction along the first of five dimensions, neighbouring dimensions are merged",
        five_dimensions.reduce_merged_dimensions,
    ),
    Rewrite(
        "slice-step",
        "Slice of integers of five dimensions with a step becomes Gather",
        five_dimensions.gather_instead_of_step,
    ),
    Rewrite(
        "cum-sum",
        "CumSum of 8 bits that is not along the last axis gets a Transpose before and after it",
        wrong_values.sum_along_last,
    ),
    Rewrite(
        "negative-classes",
        "negative indices of OneHot, which count from the end, become indices from the start",
        wrong_values.classes_from_start,
    ),
    Rewrite(
        "repeated-rows",
        "Max is inserted between a sum or product that broadcasts rows and a normalization or Sigmoid",
        wrong_values.limit_repeated_rows,
    ),
    Rewrite(
        "vector-reshape",
        "Flatten is inserted before a Reshape to one dimension that would crash ONNX Runtime",
        transposes.flatten_before_vector,
    ),
    Rewrite(
        "int64-output",
        "Flatten and Reshape are inserted after a transposed int64 result that is an output of the model",
        transposes.flatten_before_output,
    ),
    Rewrite("softmax-of-one", "LogSoftmax along one element becomes zero", wrong_values.zero_instead_of_softmax),
    Rewrite(
        "rms-rank", "RMSNormalization of three or four dimensions is folded to two", wrong_values.normalise_rows
    ),
    Rewrite(
        "gelu", "the operators of a Gelu in a quantised model become one Gelu", operators.fuse_quantised_gelu, 0.1
    ),
    Rewrite(
        "norm-scale",
        "an int8 scale of a quantised normalisation of unsigned activations becomes uint8",
        quantised_weights.unsigned_scales,
    ),
    Rewrite(
        "weight-type",
        "quantised weights become int8 or int4 if QNN refuses their type with the type of the activations",
        quantised_weights.supported_weights,
    ),
    Rewrite(
        "bias-scale",
        "the scale of a quantised bias becomes the product of the scales of activations and weights, because QNN "
        "ignores the scale of the bias",
        quantised_weights.biases_of_products,
    ),
    Rewrite("erf", "Erf outside of a Gelu becomes a formula that is exact to 2e-7", operators.approximate_erf),
    Rewrite(
        "exponent-limits",
        "arguments of exponentials are limited to -87 or more; for smaller arguments QNN computes 131008",
        wrong_values.limit_arguments,
    ),
    Rewrite(
        "rank",
        "more dimensions than QNN supports (five, for many operators four) are folded into fewer",
        rank.fold_dimensions,
    ),
    Rewrite(
        "wide-integers",
        "int64 of five dimensions, which crashes QNN, is computed in int32 and converted on the CPU",
        integers.narrow_wide_integers,
    ),
    Rewrite(
        double_edges.REWRITE,
        "64-bit float inputs and outputs are converted on the CPU, and computed in 32 bits",
        doubles.float_inside,
    ),
    Rewrite(
        "inner-doubles",
        "64-bit floats inside of the model, some of which make QNN fail, are computed in 32 bits",
        doubles.float_between,
    ),
    Rewrite(
        MASKS,
        "attention masks of -3.4e38 become -1e4, which half floats and quantised values can represent",
        constants.shrink_masks,
    ),
    Rewrite(
        GATES,
        "Max is inserted between a Conv or MatMul and a Sigmoid or Tanh whose result is a factor of a Mul (only "
        "with --only gates)",
        operators.part_gates,
        by_name_only=True,
    ),
)


def chosen(only: Iterable[str], skip: Iterable[str]) -> list[Rewrite]:
    """Return the rewrites to apply, in the order of `REWRITES`.

    Args:
        only: the rewrites to apply; empty for all rewrites except those that are applied on request only.
        skip: rewrites to leave out.

    Raises:
        OptionError: a rewrite of this name does not exist.
    """
    only, skip = list(only), list(skip)
    names = [rewrite.name for rewrite in REWRITES]
    for name in (*only, *skip):
        if name not in names:
            close = closest(name, names)
            raise OptionError(
                f'The rewrite "{name}" does not exist.',
                fix=(f'Did you mean "{close}"? ' if close else "") + "qnnbridge fix --list shows all rewrites.",
            )
    return [
        rewrite
        for rewrite in REWRITES
        if (rewrite.name in only if only else not rewrite.by_name_only) and rewrite.name not in skip
    ]
