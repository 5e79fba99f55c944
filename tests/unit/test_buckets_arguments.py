"""Invalid arguments for buckets are refused before anything is created, with a fix."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest

from qnnbridge._buckets import MAX_DENOMINATOR, Relation, fit, make_arguments, parse
from qnnbridge._buckets.batches import wanted_variants
from qnnbridge._buckets.plan import (
    BucketPlan,
    check_overrides,
    dimensions_left,
    free_dimensions,
    make_plan,
    refuse_dimensions_left,
)
from qnnbridge._session_arguments import bucket_arguments
from qnnbridge.errors import BridgeError, CompiledModelRefused, OptionError
from qnnbridge_protocol.model_records import ModelDescription, ModelIdentity
from qnnbridge_protocol.specs import NodeInfo

IDS = NodeInfo("input_ids", "tensor(int64)", ("batch", "seq"))
MASK = NodeInfo("attention_mask", "tensor(float)", ("batch", "seq"))
LOGITS = NodeInfo("logits", "tensor(float)", ("batch", "seq", 8))


def scan_of(*inputs: NodeInfo, outputs: tuple[NodeInfo, ...] = (LOGITS,), **fields: Any) -> ModelDescription:
    model = ModelIdentity("0" * 64, "m.onnx", compiled=bool(fields.pop("compiled", False)))
    return ModelDescription(model, inputs=inputs, outputs=outputs, **fields)


def plan_of(buckets: Any, *inputs: NodeInfo, scan: ModelDescription | None = None, **keywords: Any) -> BucketPlan:
    keywords.setdefault("pad", 0)
    return make_plan(make_arguments(buckets, **keywords), scan or scan_of(*(inputs or (IDS, MASK))), "m.onnx")


# --- without a model ---


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"buckets": {}}, "contains no dimension"),
        ({"buckets": [16, 32]}, "contains no dimension"),
        ({"buckets": {3: [16]}}, "3 is not the name"),
        ({"buckets": {"": [16]}}, "'' is not the name"),
        ({"buckets": {"seq": []}}, "no size is given for 'seq'"),
        ({"buckets": {"seq": [16, 32.0]}}, "32.0 is not a size for the dimension 'seq'"),
        ({"buckets": {"seq": "16"}}, "'16' is not a size"),
        ({"buckets": {"seq": ["16"]}}, "'16' is not a size"),
        ({"buckets": {"seq": [True]}}, "True is not a size"),
        ({"buckets": {"seq": [0]}}, "0 is not a size"),
        ({"buckets": {"seq": [-1]}}, "-1 is not a size"),
        ({"buckets": {"seq": None}}, "None is not a size"),
        ({"buckets": {"seq": 2**40}}, "is not a size"),
        ({"buckets": {"a": range(1, 99), "b": range(1, 99)}}, "9604 variants"),
        ({"buckets": {"seq": [16]}, "overflow": "clip"}, "overflow='clip' is not a valid value"),
        ({"buckets": {"seq": [16]}, "split": "batch"}, "split: 'batch' has no buckets"),
        ({"buckets": {"seq": [16]}, "split": 3}, "split: 3 has no buckets"),
        ({"buckets": {"seq": [16]}, "pad": ["input_ids"]}, "neither a padding value nor a map"),
        ({"buckets": {"seq": [16]}, "cut": ["logits"]}, "contains no output"),
        ({"buckets": {"seq": [16]}, "cut": {"logits": "seq"}}, "not a list of the dimensions"),
        ({"buckets": {"seq": [16]}, "cut": {"logits": [None, "a*b"]}}, "is not a valid formula"),
        ({"buckets": {"seq": [16]}, "cut": {"logits": [None, 1.5]}}, "1.5 is not a dimension"),
    ],
)
def test_contradictory_bucket_arguments_are_refused_with_an_alternative(
    keywords: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError) as caught:
        make_arguments(**keywords)
    assert words in caught.value.message
    assert caught.value.fix
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("keywords", [{"pad": 0}, {"cut": {}}, {"split": "batch"}, {"overflow": "cpu"}])
def test_arguments_for_buckets_are_refused_without_buckets(keywords: dict[str, Any]) -> None:
    given = {"pad": None, "cut": None, "split": None, "overflow": "error", **keywords}
    (name,) = keywords
    with pytest.raises(OptionError, match=f"{name}= requires buckets="):
        bucket_arguments(None, **given)


def test_sizes_are_sorted_and_unique() -> None:
    made = make_arguments({"seq": (32, np.int64(16), 32), "other": {8}})
    assert made.sizes == {"seq": (16, 32), "other": (8,)}
    assert not made.split


def test_only_a_dimension_called_batch_is_split_by_default() -> None:
    assert make_arguments({"batch": 4, "seq": 16}).split == {"batch"}
    assert make_arguments({"Batch_Size": [1, 4], "seq": [16]}).split == {"Batch_Size"}
    assert make_arguments({"batch": 4, "seq": [16]}, split=()).split == set()
    assert make_arguments({"N": 4, "seq": [16]}).split == set()
    assert make_arguments({"N": 4, "seq": [16]}, split="N").split == {"N"}
    assert make_arguments({"N": 4, "seq": [16]}, split=["seq", "N"]).split == {"N", "seq"}


def test_relations_of_outputs_are_parsed() -> None:
    made = make_arguments({"seq": [16]}, cut={"logits": ["seq // 2", None, 8]})
    assert made.cut == {"logits": (Relation("seq", 1, 0, 2), None, None)}


# --- with a model ---


def test_the_error_for_an_unknown_dimension_lists_the_known_ones_and_a_guess() -> None:
    with pytest.raises(OptionError, match=r"no input of m\.onnx has a dimension 'sec'") as caught:
        plan_of({"sec": [16]})
    assert "'batch', 'seq'" in str(caught.value.fix)
    assert "Did you mean 'seq'?" in str(caught.value.fix)
    with pytest.raises(OptionError) as longer:
        plan_of({"sequence_length": [16]})
    assert "Did you mean 'seq'?" in str(longer.value.fix)


def test_dimensions_without_names_and_models_with_fixed_sizes_have_different_errors() -> None:
    with pytest.raises(OptionError, match="no input") as nameless:
        plan_of({"seq": [16]}, NodeInfo("x", "tensor(float)", (1, None)))
    assert "Dimensions without a name: x:1" in str(nameless.value.cause)
    assert "'x:1'" in str(nameless.value.fix)
    with pytest.raises(OptionError) as fixed:
        plan_of({"seq": [16]}, NodeInfo("x", "tensor(float)", (1, 8)))
    assert "buckets are not needed" in str(fixed.value.fix)
    with pytest.raises(OptionError, match=r"'x' of m\.onnx has no shape"):
        plan_of({"seq": [16]}, NodeInfo("x", "tensor(float)", None))


@pytest.mark.parametrize(
    ("pad", "words", "fix"),
    [
        (None, "no value is given for padding input 'input_ids'", "verify_padding"),
        ({"input_ids": 0}, "'attention_mask' along 'seq'", "pad={'attention_mask': 0, ...}"),
        ({"input_id": 0, "attention_mask": 0}, "no input 'input_id'", "Did you mean 'input_ids'?"),
        ({"input_ids": 0.5, "attention_mask": 0}, "0.5 is not a value for input 'input_ids'", "represent exactly"),
        ({"input_ids": float("nan"), "attention_mask": 0}, "nan is not a value", "represent exactly"),
        ({"input_ids": 2**70, "attention_mask": 0}, "is not a value", "represent exactly"),
        ({"input_ids": "0", "attention_mask": 0}, "'0' is not a value", "represent exactly"),
        ({"input_ids": [0], "attention_mask": 0}, "[0] is not a value", "represent exactly"),
        ({"input_ids": 0, "attention_mask": 1e40}, "1e+40 is not a value", "represent exactly"),
        ({"input_ids": 0, "attention_mask": True}, "True is not a value", "represent exactly"),
    ],
)
def test_the_padding_value_of_an_input_must_be_given_and_must_fit(pad: Any, words: str, fix: str) -> None:
    with pytest.raises(OptionError) as caught:
        plan_of({"seq": [16, 32]}, pad=pad)
    assert words in caught.value.message
    assert fix in str(caught.value.fix)


def test_a_single_size_is_fixed_unless_a_padding_value_is_given() -> None:
    assert plan_of({"seq": [16]}, pad=None).fixed == {0}
    assert plan_of({"seq": [16]}, pad={"attention_mask": 0, "input_ids": 0}).fixed == frozenset()
    assert plan_of({"seq": [16]}, pad=0).fixed == frozenset()
    assert plan_of({"seq": [16, 32]}, pad=0).fixed == frozenset()


def test_only_a_dimension_that_is_the_first_axis_everywhere_is_suggested_as_a_batch() -> None:
    rows, length = NodeInfo("x", "tensor(float)", ("rows", 4)), NodeInfo("x", "tensor(float)", (1, "rows"))
    for node, may in ((rows, True), (length, False)):
        with pytest.raises(OptionError) as caught:
            plan_of({"rows": [16, 32]}, node, pad=None)
        assert ("is a batch" in str(caught.value.fix)) is may


def test_an_input_that_is_never_padded_refuses_a_padding_value() -> None:
    with pytest.raises(OptionError, match="input 'scale' is never padded"):
        plan_of({"seq": [16]}, IDS, NodeInfo("scale", "tensor(float)", (1,)), pad={"input_ids": 0, "scale": 1})
    assert set(plan_of({"seq": [16]}, IDS, NodeInfo("scale", "tensor(float)", (1,))).inputs) == {"input_ids"}


@pytest.mark.parametrize(
    ("element", "pad", "stored"),
    [
        ("float", -math.inf, np.float32(-np.inf)),
        ("float", 0.1, np.float32(0.1)),
        ("float16", -1e4, np.float16(-1e4)),
        ("int64", 2**53, np.int64(2**53)),
        ("int8", -128, np.int8(-128)),
        ("int32", 5.0, np.int32(5)),
        ("bool", False, np.False_),
        ("bool", 1, np.True_),
        ("string", "[PAD]", "[PAD]"),
        ("double", np.float32(2), np.float64(2)),
    ],
)
def test_padding_values_of_every_kind_are_converted_to_the_type_of_their_input(
    element: str, pad: Any, stored: Any
) -> None:
    plan = plan_of({"n": [4]}, NodeInfo("x", f"tensor({element})", ("n",)), pad={"x": pad})
    value = plan.inputs["x"].value
    assert value is not None
    assert value[()] == stored


@pytest.mark.parametrize("type_text", ["tensor(bfloat16)", "tensor(int4)", "seq(tensor(float))"])
def test_types_that_cannot_be_padded_are_refused(type_text: str) -> None:
    with pytest.raises(OptionError, match="cannot be padded"):
        plan_of({"n": [4]}, NodeInfo("x", type_text, ("n",)))


def test_a_dimension_that_is_split_needs_no_padding_value() -> None:
    plan = plan_of({"batch": 4}, NodeInfo("x", "tensor(float)", ("batch", 3)), pad=None)
    assert plan.inputs["x"].value is None


def test_compiled_models_and_other_files_are_refused() -> None:
    with pytest.raises(CompiledModelRefused, match="cannot have buckets"):
        plan_of({"seq": [16]}, scan=scan_of(IDS, compiled=True))
    with pytest.raises(OptionError, match="cannot be read"):
        plan_of({"seq": [16]}, scan=scan_of(readable=False))


def test_the_error_for_dimensions_that_stay_free_names_them_and_the_fix() -> None:
    scan = scan_of(IDS, MASK, NodeInfo("x", "tensor(float)", (None,)))
    plan = plan_of({"seq": [16]}, scan=scan)
    left = dimensions_left(plan, scan, {})
    assert [dim.symbol for dim in left] == ["batch", "batch", None]
    text = str(refuse_dimensions_left(left, "m.onnx"))
    assert "'batch' (input 'input_ids', axis 0), without a name (input 'x', axis 0)" in text
    assert "buckets={'batch': 1, ...}" in text
    assert "buckets={'x:0': 1, ...}" in text
    assert [dim.symbol for dim in dimensions_left(plan, scan, {"batch": 1})] == [None]


def test_a_dimension_with_buckets_cannot_be_fixed_too() -> None:
    with pytest.raises(OptionError, match="the session options fix it to 8"):
        check_overrides(plan_of({"seq": [16]}), {"seq": 8})


# --- variants ---


def test_the_variants_are_all_combinations_in_ascending_order() -> None:
    plan = plan_of({"batch": [1, 4], "seq": [16, 32]})
    assert list(plan.variants()) == [(1, 16), (1, 32), (4, 16), (4, 32)]
    assert plan.text((1, 16)) == "batch=1, seq=16"


def test_variants_to_warm_are_selected_by_their_sizes() -> None:
    plan = plan_of({"batch": 1, "seq": [16, 32]})
    assert wanted_variants(plan, None) == [(1, 16), (1, 32)]
    assert wanted_variants(plan, {"seq": 32}) == [(1, 32)]
    assert wanted_variants(plan, [{"seq": 32}, {"seq": 16, "batch": 1}, {"seq": 32}]) == [(1, 32), (1, 16)]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([32], "32 is not a map of sizes"),
        ([{"sec": 16}], "'sec' has no buckets"),
        ([{"seq": 17}], "17 is not a bucket of 'seq'"),
        ([{}], "'seq' is missing"),
    ],
)
def test_unknown_variants_to_warm_are_refused(sizes: Any, words: str) -> None:
    with pytest.raises(BridgeError) as caught:
        wanted_variants(plan_of({"batch": 1, "seq": [16, 32]}), sizes)
    assert words in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("seq", 7, 7),
        ("2 * seq", 7, 14),
        ("seq*2", 7, 14),
        ("seq + 1", 7, 8),
        ("1+seq", 7, 8),
        ("seq - 2", 7, 5),
        ("(seq + 3) // 4", 9, 3),
        ("seq // 2", 9, 4),
        ("2 * (seq - 1)", 4, 6),
        ("seq - 9", 4, 0),
    ],
)
def test_an_expression_is_computed_as_by_python(text: str, size: int, expected: int) -> None:
    assert parse(text).size(size) == expected
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "seq *",
        "a * b",
        "seq / 2",
        "seq // 0",
        "seq ** 2",
        "f(seq)",
        "3",
        "3 - seq",
        "-2 * seq",
        "seq.x",
        "(" * 500,
    ],
)
def test_an_invalid_expression_is_refused_with_examples(text: str) -> None:
    with pytest.raises(OptionError, match="is not a valid formula for the size") as caught:
        parse(text)
    assert "'seq'" in str(caught.value.fix)


def test_an_unchanged_length_is_recognised_from_two_sizes() -> None:
    assert fit("seq", {16: 16, 15: 15}) == Relation("seq")


def test_a_length_that_is_constant_or_shrinks_is_not_a_relation() -> None:
    assert fit("seq", {16: 3, 15: 3}) is None
    assert fit("seq", {16: 3, 15: 4}) is None
    assert fit("seq", {16: 16}) is None


def test_a_length_that_grows_quadratically_is_not_a_relation() -> None:
    assert fit("seq", {size: size * size for size in range(4, 24)}) is None


def test_any_rounded_length_is_recognised_from_a_series_of_sizes() -> None:
    random = Random(33)
    for _ in range(300):
        true = Relation("n", random.randint(1, 6), random.randint(0, 30), random.randint(1, MAX_DENOMINATOR))
        base = random.randint(8, 64)
        seen = [*range(base, base + MAX_DENOMINATOR + 1), base - 1, base // 2, 4 * base]
        observed = {size: true.size(size) for size in seen}
        found = fit("n", observed)
        assert found is not None, true
        assert {size: found.size(size) for size in seen} == observed


@pytest.mark.parametrize("divisor", [2, 3, 4, 8, 16, 32])
@pytest.mark.parametrize("up", [False, True])
def test_strides_are_recognised_exactly(divisor: int, up: bool) -> None:
    true = Relation("n", 1, divisor - 1 if up else 0, divisor)
    found = fit("n", {size: true.size(size) for size in (*range(64, 64 + MAX_DENOMINATOR + 1), 63, 32)})
    assert found == true


def test_axes_with_the_same_placeholder_name_are_addressed_by_input_and_axis() -> None:
    node = NodeInfo("x", "tensor(float)", (None, 3, "?", "?", "width"))
    assert [axis.option for axis in free_dimensions([node])] == ["x:0", "x:2", "x:3", "width"]


def test_the_first_padded_call_that_is_small_enough_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from qnnbridge._buckets import padding

    monkeypatch.setattr(padding, "MAX_BYTES", 100)
    check = padding.PaddingCheck("model", "raise")
    compared = []
    for size in (50, 5, 6):
        check.padded_call(
            (8,), {"x": np.zeros(size, np.float32)}, lambda feeds: compared.append(len(feeds["x"])) or ""
        )
    assert compared == [5]
