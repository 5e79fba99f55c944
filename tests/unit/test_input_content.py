"""Generated inputs have plausible content, derived from the graph and from the input's type and name."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qnnbridge_host.numerics.sampling import (
    InputKnowledge,
    NotMade,
    codes,
    further_inputs,
    is_guess,
    knowledge_of,
    made_up,
    ordinary_inputs,
    varied,
)
from qnnbridge_protocol.specs import NodeInfo


def encoder() -> object:
    """Return a model that embeds ids after a Cast, and quantises an image."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["cast"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "cast"], ["words"]),
        helper.make_node("Gather", ["kinds", "token_type_ids"], ["types"]),
        helper.make_node("QuantizeLinear", ["image", "scale", "zero"], ["steps"]),
    ]
    constants = {
        "table": np.zeros((30000, 4), np.float32),
        "kinds": np.zeros((2, 4), np.float32),
        "scale": np.float32(0.5),
        "zero": np.uint8(128),
    }
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, 16]),
        helper.make_tensor_value_info("token_type_ids", TensorProto.INT64, [1, 16]),
        helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 16, 16]),
    ]
    graph = helper.make_graph(
        nodes, "g", inputs, [], [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    )
    return helper.make_model(graph)


INPUTS = [
    NodeInfo("input_ids", "tensor(int64)", (1, 16)),
    NodeInfo("token_type_ids", "tensor(int64)", (1, 16)),
    NodeInfo("attention_mask", "tensor(int64)", (1, 16)),
    NodeInfo("position_ids", "tensor(int64)", (1, 16)),
    NodeInfo("lengths", "tensor(int64)", (1,)),
    NodeInfo("sr", "tensor(int64)", ()),
    NodeInfo("flags", "tensor(int64)", (1, 16)),
    NodeInfo("image", "tensor(float)", (1, 3, 16, 16)),
    NodeInfo("bytes", "tensor(uint8)", (1, 64)),
]


def test_valid_ids_and_ranges_of_inputs_are_read_from_the_graph() -> None:
    known = knowledge_of(encoder())
    assert known.rows == {"input_ids": 30000, "token_type_ids": 2}
    assert known.ranges == {"image": (-64.0, 63.5)}


def test_ordinary_inputs_have_content_and_are_reproducible() -> None:
    known = InputKnowledge({"input_ids": 30000})
    sets, again = ordinary_inputs(INPUTS, known, seed=3), ordinary_inputs(INPUTS, known, seed=3)
    assert [one.name for one in sets] == ["values in 0..1", "values with both signs", "zeros"]
    for one, other in zip(sets, again, strict=True):
        for node in INPUTS:
            assert np.array_equal(one.feeds[node.name], other.feeds[node.name])
            assert one.feeds[node.name].shape == node.shape
        assert one.feeds["input_ids"].max() > 1000
        assert one.feeds["input_ids"].max() < 30000
        assert not one.feeds["token_type_ids"].any()
        assert (one.feeds["attention_mask"] == 1).all()
        assert one.feeds["position_ids"].tolist() == [list(range(16))]
        assert one.feeds["lengths"].tolist() == [64]
        assert int(one.feeds["sr"]) == 16000
        assert set(np.unique(one.feeds["flags"])) <= {0, 1}
    assert sets[1].feeds["image"].min() < -1
    assert not sets[2].feeds["image"].any()


def test_further_inputs_cover_the_quantised_range_and_contain_patterns() -> None:
    sets = {one.name: one.feeds for one in further_inputs(INPUTS, InputKnowledge({}, {"image": (-64.0, 63.5)}))}
    assert sets["the range that it is quantised to"]["image"].min() < -50
    assert sets["a pattern in 0..255"]["image"].max() > 200
    picture = sets["a pattern in 0..1"]["image"][0, 0]
    assert np.abs(np.diff(picture, axis=0)).mean() < 0.2, "smooth, with some edges"
    assert picture.std() > 0.1
    assert (sets["ones"]["flags"] == 1).all()
    assert "the range that it is quantised to" not in [one.name for one in further_inputs(INPUTS)]


def test_a_variation_changes_only_floats() -> None:
    feeds = ordinary_inputs(INPUTS)[0].feeds
    changed = varied(feeds, InputKnowledge(), np.random.default_rng(1))
    assert not np.array_equal(changed["image"], feeds["image"])
    assert changed["image"].dtype == np.float32
    assert all(np.array_equal(changed[name], feeds[name]) for name in feeds if name != "image")


def test_values_outside_of_the_ordinary_range_are_guesses_unless_the_model_is_quantised_for_them() -> None:
    assert not any(is_guess(one.feeds) for one in ordinary_inputs(INPUTS))
    sets = {one.name: one.feeds for one in further_inputs(INPUTS)}
    guesses = {name for name, feeds in sets.items() if is_guess(feeds)}
    assert guesses == {"a pattern in 0..255", "normal values, times 10", "values in 0..255"}
    known = InputKnowledge({}, {"image": (-64.0, 63.5)})
    assert not any(is_guess(one.feeds, known) for one in further_inputs(INPUTS, known))


def test_inputs_that_cannot_be_generated_are_refused() -> None:
    with pytest.raises(NotMade, match="sequence"):
        ordinary_inputs([NodeInfo("s", "seq(tensor(float))", None)])


def test_ids_masks_and_lengths_are_codes_and_other_integers_are_not() -> None:
    assert codes(INPUTS) == {"input_ids", "token_type_ids", "attention_mask", "position_ids", "lengths", "sr"}
    assert "flags" in codes(INPUTS, InputKnowledge({"flags": 7}, {}))


def test_generated_inputs_of_a_session_have_masks_of_ones_and_valid_lengths() -> None:
    feeds = made_up(INPUTS, 3)
    assert feeds["attention_mask"].min() == 1
    assert set(np.unique(feeds["input_ids"])) <= {0, 1}
    assert (int(feeds["lengths"][0]), int(feeds["sr"])) == (64, 16000)
    with pytest.raises(NotMade):
        made_up([NodeInfo("x", "tensor(float)", ("batch", 3))], 0)


def test_the_rows_of_a_quantised_table_are_counted() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["steps", "scale"], ["table"]),
        helper.make_node("Slice", ["x", "from", "to"], ["part"]),
        helper.make_node("Gather", ["table", "part"], ["words"]),
    ]
    constants = {
        "steps": np.zeros((77, 4), np.uint8),
        "scale": np.float32(1),
        "from": np.asarray([0]),
        "to": np.asarray([4]),
    }
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, [8])]
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    assert knowledge_of(helper.make_model(helper.make_graph(nodes, "g", inputs, [], tensors))).rows == {"x": 77}
