"""How the sizes of outputs depend on those of inputs, found on real models, and whether padding changes the
outputs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qnnbridge
from qnnbridge import errors
from qnnbridge.errors import InvalidArgument, ModelError, OptionError
from tests.conformance.real_models import QNN, SOC_MODEL
from tests.contract.small_models import CPU, MODELS, model, node, tensor
from tests.fakes.later import until

rng = np.random.default_rng(90)


def open_session(host: qnnbridge.Host, made: Any, **keywords: Any) -> qnnbridge.InferenceSession:
    given = made.SerializeToString() if isinstance(made, onnx.ModelProto) else made
    keywords = {"buckets": {"seq": [8, 16]}, "pad": 0, "providers": [CPU], **keywords}
    return qnnbridge.InferenceSession(given, host=host, **keywords)


def one_input(
    nodes: Sequence[onnx.NodeProto],
    outputs: Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    shape: Sequence[Any] = (1, 3, "seq"),
) -> onnx.ModelProto:
    """Return a model with the input x. outputs: name -> declared shape."""
    return model(nodes, [tensor("x", shape)], [tensor(name, dims) for name, dims in outputs.items()], constants)


def random(*shape: int) -> dict[str, Any]:
    return {"x": rng.standard_normal(shape).astype(np.float32)}


def both(host: qnnbridge.Host, made: onnx.ModelProto, feeds: dict[str, Any], **keywords: Any) -> tuple[Any, Any]:
    """Compare the results with buckets with those of a session with the exact sizes."""
    with open_session(host, made, **keywords) as session:
        padded = session.run(None, feeds)
    with qnnbridge.InferenceSession(made.SerializeToString(), host=host, providers=[CPU]) as plain:
        return padded, plain.run(None, feeds)


def strided(pads: Sequence[int] = (1, 1)) -> onnx.ModelProto:
    """Return a convolution with stride 2, whose output length is not declared."""
    weights = rng.standard_normal((4, 3, 3)).astype(np.float32)
    return one_input(
        [node("Conv", ["x", "w"], ["y"], strides=[2], pads=list(pads))], {"y": [1, 4, "y_length"]}, {"w": weights}
    )


@pytest.mark.parametrize("length", range(2, 17))
def test_a_strided_convolution_has_the_length_that_it_would_have_without_padding(
    host: qnnbridge.Host, length: int
) -> None:
    padded, plain = both(host, strided(), random(1, 3, length))
    assert padded[0].shape == plain[0].shape
    # the convolution's own padding is 0, too
    assert np.allclose(padded[0], plain[0], atol=1e-5)


def test_the_measured_output_sizes_are_shown_and_an_unusual_size_is_logged(
    host: qnnbridge.Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "qnnbridge.buckets")
    with open_session(host, strided()) as session:
        assert session.buckets is not None
        assert session.buckets.cut == {"y": (None, None, "(seq + 1) // 2")}
        assert session.get_outputs()[0].shape == [1, 4, "y_length"]
    assert "has the size (seq + 1) // 2" in caplog.text
    assert "verify_padding()" in caplog.text


def test_an_output_without_a_declared_shape_is_cut(host: qnnbridge.Host) -> None:
    made = one_input([node("Relu", ["x"], ["y"])], {"y": None})
    padded, plain = both(host, made, random(1, 3, 5))
    assert np.array_equal(padded[0], plain[0])
    with open_session(host, made) as session:
        assert session.get_outputs()[0].shape == [None, None, "seq"]


def test_a_wrongly_declared_shape_is_detected(host: qnnbridge.Host) -> None:
    """Check a model like those in use, whose declaration has one dimension less than the returned output."""
    made = one_input([node("Transpose", ["x"], ["y"], perm=[2, 0, 1])], {"y": [1, "seqlen"]})
    with open_session(host, made) as session:
        feeds = random(1, 3, 5)
        assert np.array_equal(session.run(None, feeds)[0], feeds["x"].transpose(2, 0, 1))
        assert session.get_outputs()[0].shape == ["seq", None, None]


def test_an_output_that_is_longer_than_its_input_is_cut_to_its_true_length(host: qnnbridge.Host) -> None:
    nodes = [
        node("Concat", ["token", "x"], ["longer"], axis=2),
        node("Resize", ["x", "", "scales"], ["twice"], mode="nearest"),
    ]
    constants = {"token": np.ones((1, 3, 1), np.float32), "scales": np.array([1, 1, 2], np.float32)}
    made = one_input(nodes, {"longer": [1, 3, "l"], "twice": [1, 3, "t"]}, constants)
    padded, plain = both(host, made, random(1, 3, 5))
    for one, other in zip(padded, plain, strict=True):
        assert np.array_equal(one, other)


def test_an_output_whose_size_does_not_depend_on_the_dimension_is_not_cut(host: qnnbridge.Host) -> None:
    made = one_input(
        [node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)], {"y": ["what"]}, {"axes": np.array([0, 2], np.int64)}
    )
    padded, plain = both(host, made, random(1, 3, 5))
    assert np.allclose(padded[0], plain[0], atol=1e-5)


def test_an_output_that_depends_on_two_sizes_is_refused_with_the_reason_and_others_work(
    host: qnnbridge.Host,
) -> None:
    nodes = [node("Reshape", ["x", "flat"], ["f"]), node("Relu", ["x"], ["y"])]
    made = one_input(
        nodes, {"f": ["all"], "y": ["batch", "seq"]}, {"flat": np.array([-1], np.int64)}, ["batch", "seq"]
    )
    with open_session(host, made, buckets={"seq": [8, 16], "batch": [2, 4]}) as session:
        feeds = random(1, 5)
        assert np.array_equal(session.run(["y"], feeds)[0], np.maximum(feeds["x"], 0))
        with pytest.raises(ModelError, match="'f' cannot be cut back") as caught:
            session.run(None, feeds)
        assert "more than one size" in str(caught.value.cause)
        whole = random(2, 8)  # there is nothing to cut
        assert session.run(["f"], whole)[0].shape == (16,)
        assert "output 'f' is not cut" in str(session.buckets)


def test_the_application_can_declare_how_an_output_is_cut(host: qnnbridge.Host) -> None:
    made = strided()
    with open_session(host, made, cut={"y": [None, None, "seq // 2"]}) as session:
        assert session.run(None, random(1, 3, 5))[0].shape == (1, 4, 2)
    with open_session(host, made, cut={"y": [None, None, None]}) as session:
        assert session.run(None, random(1, 3, 5))[0].shape == (1, 4, 4)
    with open_session(host, made, cut={"y": [None, None, "seq"]}) as session:
        with pytest.raises(ModelError, match="cannot be cut") as caught:
            session.run(None, random(1, 3, 5))
        assert "expected to be seq, which is 8" in str(caught.value.cause)
    with pytest.raises(OptionError, match="no output 'z'"):
        open_session(host, made, cut={"z": ["seq"]})


def test_maps_and_sequences_are_returned_only_if_nothing_was_padded(host: qnnbridge.Host) -> None:
    iris = onnx.load(MODELS / "logreg_iris.onnx")
    iris.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    iris.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    label, probabilities = (output.name for output in iris.graph.output)
    with open_session(host, iris, buckets={"rows": 3}) as session:
        rows = {"float_input": rng.random((2, 2), np.float32)}
        assert session.run([label], rows)[0].shape == (2,)
        with pytest.raises(ModelError, match="cannot be cut back") as caught:
            session.run([probabilities], rows)
        assert "only tensors" in str(caught.value.cause)
        full = {"float_input": rng.random((3, 2), np.float32)}
        assert len(session.run(None, full)[1]) == 3


# --- effect of padding on the outputs ---


def masked_mean() -> onnx.ModelProto:
    return model(
        [
            node("Mul", ["x", "mask"], ["seen"]),
            node("ReduceSum", ["seen", "axes"], ["total"], keepdims=0),
            node("ReduceSum", ["mask", "axes"], ["count"], keepdims=0),
            node("Div", ["total", "count"], ["y"]),
        ],
        [tensor("x", [1, "seq"]), tensor("mask", [1, "seq"])],
        [tensor("y", [1])],
        {"axes": np.array([1], np.int64)},
    )


def test_a_masked_mean_is_not_changed_by_padding(host: qnnbridge.Host) -> None:
    feeds = {**random(1, 5), "mask": np.ones((1, 5), np.float32)}
    with open_session(host, masked_mean(), pad={"x": 1e3, "mask": 0}) as session:
        report = session.verify_padding(feeds)
        assert report.ok
        assert [dict(o.bucket) for o in report.outputs] == [{"seq": 8}, {"seq": 16}]
        assert "does not change the results" in str(report)
    with open_session(host, masked_mean(), pad={"x": 1e3, "mask": 1}) as session:
        report = session.verify_padding([feeds])
        assert not report.ok
        assert report.outputs[0].difference > 100
        assert "although the model has 'mask'" in str(report)


def test_a_plain_mean_is_changed_by_padding_and_the_report_names_the_fix(host: qnnbridge.Host) -> None:
    made = one_input([node("ReduceMean", ["x"], ["y"], axes=[2], keepdims=0)], {"y": [1, 3]}, shape=[1, 3, "seq"])
    with open_session(host, made) as session:
        text = str(session.verify_padding(random(1, 3, 5)))
    assert text.startswith("Padding changes the results:")
    assert "'y', seq=5 padded to seq=8: 3 of 3 values differ" in text
    assert "at all positions" in text
    assert "an operation of the model runs over the whole length" in text
    assert "Feed the model's mask" not in text, "it has none"
    assert "'mask'" not in text


def test_a_convolution_is_changed_by_padding_only_at_the_edge_and_the_report_says_so(host: qnnbridge.Host) -> None:
    weights = np.ones((1, 3, 3), np.float32)
    made = one_input(
        [node("Conv", ["x", "w"], ["y"], pads=[1, 1])], {"y": [1, 1, "seq"]}, {"w": weights}, [1, 3, "seq"]
    )
    feeds = {"x": np.ones((1, 3, 6), np.float32)}
    with open_session(host, made, pad=5) as session:
        text = str(session.verify_padding(feeds))
    assert "only the last 1 of 6 positions of axis 2" in text
    assert "depends on neighbouring inputs" in text
    with open_session(host, made, pad=0) as session:  # as the model itself pads
        assert session.verify_padding(feeds).ok


def test_an_output_that_is_cut_at_the_wrong_end_is_detected(host: qnnbridge.Host) -> None:
    made = one_input(
        [node("Concat", ["x", "token"], ["y"], axis=2)], {"y": None}, {"token": np.ones((1, 3, 1), np.float32)}
    )
    with open_session(host, made, pad=0) as session:
        assert not session.verify_padding(random(1, 3, 5))


def test_integers_and_nan_are_compared_exactly(host: qnnbridge.Host) -> None:
    made = model(
        [node("ArgMax", ["x"], ["y"], axis=1, keepdims=0), node("Log", ["x"], ["z"])],
        [tensor("x", [1, "seq"])],
        [tensor("y", [1], TensorProto.INT64), tensor("z", [1, "seq"])],
    )
    feeds = {"x": np.array([[-1, -3, -2]], np.float32)}  # z is empty
    with open_session(host, made, pad=-9) as session:
        assert session.verify_padding(feeds).ok
    with open_session(host, made, pad=0) as session:
        report = session.verify_padding(feeds)
        assert [(o.output, o.ok) for o in report.outputs if dict(o.bucket) == {"seq": 8}] == [
            ("y", False),
            ("z", True),
        ]


def test_feeds_that_need_no_padding_are_refused_as_a_check_of_padding(host: qnnbridge.Host) -> None:
    with open_session(host, masked_mean(), pad=0) as session:

        def feeds(length: int) -> dict[str, Any]:
            return {**random(1, length), "mask": np.ones((1, length), np.float32)}

        with pytest.raises(OptionError, match="None of these feeds is padded"):
            session.verify_padding(feeds(16))
        with pytest.raises(InvalidArgument, match="largest bucket"):
            session.verify_padding(feeds(17))
        with pytest.raises(OptionError, match="tolerance=-1"):
            session.verify_padding(feeds(5), tolerance=-1)
        assert session.verify_padding(feeds(8)).ok  # padded to the largest bucket


def test_a_model_that_does_not_run_with_the_unpadded_size_is_reported(host: qnnbridge.Host) -> None:
    nodes = [node("Reshape", ["x", "cells"], ["c"]), node("Transpose", ["c"], ["y"], perm=[0, 2, 1, 3])]
    made = one_input(nodes, {"y": None}, {"cells": np.array([1, 3, -1, 4], np.int64)}, [1, 3, "seq"])
    with open_session(host, made) as session:
        with pytest.raises(ModelError, match="does not run with these sizes without padding") as caught:
            session.verify_padding(random(1, 3, 6))
        assert "Reshape" in str(caught.value.cause)


def convolution() -> onnx.ModelProto:
    """Return two layers: the second one pads with zeros, where the first one has a bias."""
    weights = rng.standard_normal((3, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w", "b"], ["m"], pads=[1, 1]),
        node("Conv", ["m", "w", "b"], ["y"], pads=[1, 1]),
    ]
    return one_input(nodes, {"y": [1, 3, "seq"]}, {"w": weights, "b": np.ones(3, np.float32)})


def mean_of_the_masked() -> onnx.ModelProto:
    return model(
        [
            node("Mul", ["x", "mask"], ["m"]),
            node("ReduceSum", ["m", "axes"], ["s"]),
            node("ReduceSum", ["mask", "axes"], ["n"]),
            node("Div", ["s", "n"], ["y"]),
        ],
        [tensor("x", [1, 3, "seq"]), tensor("mask", [1, 1, "seq"])],
        [tensor("y", [1, 3, 1])],
        {"axes": np.asarray([2], np.int64)},
    )


@pytest.mark.parametrize(
    ("made", "decided"),
    [
        (one_input([node("Sigmoid", ["x"], ["y"])], {"y": [1, 3, "seq"]}), "pad=0"),
        (mean_of_the_masked(), "pad=0"),
        (convolution(), "chunk='seq'"),
    ],
    ids=["values alone", "mask", "convolution"],
)
def test_the_padding_value_is_derived_from_the_model_if_none_is_given(
    host: qnnbridge.Host, made: onnx.ModelProto, decided: str
) -> None:
    with open_session(host, made, pad=None) as session:
        assert session.buckets is not None
        assert session.buckets.decided == decided
        for length in (3, 8, 13, 16):
            feeds = random(1, 3, length)
            if len(session.get_inputs()) > 1:
                feeds["mask"] = np.ones((1, 1, length), np.float32)
            with qnnbridge.InferenceSession(made.SerializeToString(), host=host, providers=[CPU]) as plain:
                np.testing.assert_allclose(
                    session.run(None, feeds)[0], plain.run(None, feeds)[0], rtol=1e-4, atol=1e-5
                )


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("ReduceMean", ["x"], ["y"], axes=[2])], "With zeros: 'y'"),
        # Zeros do not change the maximum of the random values of the check, but they do if all values are negative.
        ([node("ReduceMax", ["x"], ["y"], axes=[2])], "With zeros: 'y'"),
        ([node("ArgMax", ["x"], ["i"], axis=2), node("Cast", ["i"], ["y"], to=7)], "do not show what output 'y'"),
    ],
    ids=["mean", "maximum", "integers"],
)
def test_no_padding_value_is_chosen_if_padding_changes_the_results(
    host: qnnbridge.Host, nodes: Sequence[onnx.NodeProto], words: str
) -> None:
    made = one_input(nodes, {"y": [1, 3, 1]})
    if nodes[0].op_type == "ArgMax":
        made.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(OptionError, match="no value is given for padding input 'x'") as refused:
        open_session(host, made, pad=None)
    assert any(words in line for line in refused.value.evidence), refused.value.evidence
    if words.startswith("With zeros"):
        assert "pad=0" not in (refused.value.fix or "")
        assert "one session for each size" in (refused.value.fix or "")


def test_the_first_padded_call_is_compared_with_the_unpadded_model(
    host: qnnbridge.Host, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generated inputs do not show everything: this model uses its neighbours only where a value is above 50."""
    monkeypatch.delenv("QNNBRIDGE_VERIFY")
    nodes = [
        node("Greater", ["x", "fifty"], ["large"]),
        node("Cast", ["large"], ["is_large"], to=1),
        node("ReduceMax", ["is_large"], ["any"], keepdims=1),
        node("ReduceMean", ["x"], ["mean"], axes=[2], keepdims=1),
        node("Mul", ["mean", "any"], ["shift"]),
        node("Add", ["x", "shift"], ["y"]),
    ]
    made = one_input(nodes, {"y": [1, 3, "seq"]}, {"fifty": np.float32(50)})
    keywords: dict[str, Any] = {"buckets": {"seq": [8]}, "pad": 0, "providers": [(QNN, {"soc_model": SOC_MODEL})]}
    harmless, harmful = random(1, 3, 5), {"x": random(1, 3, 5)["x"] + 100}
    for mode in ("warn", "raise"):
        for feeds in (harmless, harmful):
            with qnnbridge.InferenceSession(
                made.SerializeToString(), host=host, verify=mode, **keywords
            ) as session:
                assert session.buckets is not None
                assert session.buckets.padding == ""
                if mode == "raise" and feeds is harmful:
                    for _ in range(2):
                        with pytest.raises(errors.NumbersDiffer, match="with and without padding"):
                            session.run(None, feeds)
                else:
                    session.run(None, feeds)
                    until(lambda: session.verified.state == ("differs" if feeds is harmful else "agrees"))  # noqa: B023
                assert ("seq=5 padded to seq=8" in session.buckets.padding) == (feeds is harmful)


def test_a_session_with_a_single_size_never_pads_and_refuses_other_sizes(host: qnnbridge.Host) -> None:
    made = one_input([node("ReduceMax", ["x"], ["y"], axes=[2])], {"y": [1, 3, 1]})
    with open_session(host, made, pad=None, buckets={"seq": 8}) as session:
        feeds = random(1, 3, 8)
        np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["x"].max(2, keepdims=True))
        for length in (7, 9):
            with pytest.raises(errors.InvalidArgument, match=f"'seq' is {length}, and the session accepts only 8"):
                session.run(None, random(1, 3, length))
        assert session.buckets is not None
        assert (session.buckets.padded, session.buckets.padding) == (0, "")
    with open_session(host, made, pad=None, buckets={"seq": 8}, overflow="cpu") as session:
        for length in (7, 8, 9):
            feeds = random(1, 3, length)
            np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["x"].max(2, keepdims=True))


def test_the_error_suggests_only_padding_values_that_passed_a_trial(host: qnnbridge.Host) -> None:
    made = one_input([node("ReduceMax", ["x"], ["y"], axes=[2])], {"y": [1, 3, 1]})
    with pytest.raises(OptionError) as refused:
        open_session(host, made, pad=None)
    assert "Give pad='edge', which changed nothing in trials" in (refused.value.fix or "")
    with open_session(host, made, pad="edge") as session:
        assert session.verify_padding(random(1, 3, 5))


def frames_of_sound() -> onnx.ModelProto:
    """Return the first part of a speech model: windows of 400 samples with a hop of 160, and the number of windows."""
    weights = rng.standard_normal((4, 1, 400)).astype(np.float32) / 20
    return model(
        [
            node("Conv", ["x", "w"], ["features"], strides=[160]),
            node("Sub", ["x_lens", "window"], ["s"]),
            node("Div", ["s", "hop"], ["d"]),
            node("Add", ["d", "one"], ["lens"]),
        ],
        [tensor("x", [1, 1, "seq"]), tensor("x_lens", [1], TensorProto.INT64)],
        [tensor("features", [1, 4, "T"]), tensor("lens", [1], TensorProto.INT64)],
        {"w": weights, "window": np.int64(400), "hop": np.int64(160), "one": np.int64(1)},
    )


def test_padding_of_an_audio_model_is_chosen_automatically_and_its_output_is_cut_by_its_hop(
    host: qnnbridge.Host,
) -> None:
    made = frames_of_sound()
    with open_session(host, made, pad=None, buckets={"seq": [1600, 4000]}) as session:
        assert session.buckets is not None
        assert session.buckets.decided == "pad=0"
        assert session.buckets.cut["features"] == (None, None, "(seq - 240) // 160")
        with qnnbridge.InferenceSession(made.SerializeToString(), host=host, providers=[CPU]) as plain:
            for length in (400, 559, 560, 1599, 1600, 1601, 2000, 3999, 4000):
                feeds = {**random(1, 1, length), "x_lens": np.array([length])}
                for given, expected in zip(session.run(None, feeds), plain.run(None, feeds), strict=True):
                    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


def test_an_integer_output_that_depends_on_padded_values_is_not_used_as_a_length(host: qnnbridge.Host) -> None:
    made = frames_of_sound()
    del made.graph.node[1:]
    made.graph.node.append(node("ReduceMax", ["features"], ["m"], keepdims=0))
    made.graph.node.append(node("Cast", ["m"], ["c"], to=TensorProto.INT64))
    made.graph.node.append(node("Add", ["c", "x_lens"], ["lens"]))
    with pytest.raises(OptionError) as refused:
        open_session(host, made, pad=None, buckets={"seq": [1600, 3200]})
    assert any("do not show what output 'lens'" in line for line in refused.value.evidence), refused.value.evidence


@pytest.mark.simulator
def test_every_session_warns_of_padding_that_changes_results(
    host: qnnbridge.Host, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QNNBRIDGE_VERIFY")
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    monkeypatch.setenv("QNNBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    onnx.save(convolution(), tmp_path / "m.onnx")
    onnx.save(one_input([node("Sigmoid", ["x"], ["y"])], {"y": [1, 3, "seq"]}), tmp_path / "plain.onnx")
    found: dict[str, list[qnnbridge.BucketStatus]] = {}
    for name in ("m", "plain", "m"):
        with qnnbridge.InferenceSession(
            tmp_path / f"{name}.onnx",
            providers=[(QNN, {"soc_model": SOC_MODEL})],
            host=host,
            buckets={"seq": [8]},
            pad=0,
            cache=True,
        ) as session:
            assert session.buckets is not None
            assert session.buckets.decided == ""
            assert session.run(None, random(1, 3, 5))[0].shape == (1, 3, 5), "the requested shape is used"
            found.setdefault(name, []).append(session.buckets)
            assert (session.verified.state == "differs") == (name == "m")
            assert ("padding changes results" in session.verified.reason) == (name == "m")
    first, again = (status.padding for status in found["m"])
    assert "next to the padding" in first
    assert first in str(found["m"][0])
    assert (again, found["plain"][0].padding) == (first, "")
    told = [one.getMessage() for one in caplog.records if "padding changes results" in one.getMessage()]
    assert len(told) == 2


def test_the_last_row_is_repeated_if_padding_with_the_edge_value_is_requested(host: qnnbridge.Host) -> None:
    made = one_input([node("ReduceMax", ["x"], ["y"], axes=[2])], {"y": [1, 3, 1]})
    with open_session(host, made, pad="edge") as session:
        for length in (1, 5, 16):
            feeds = {"x": -1 - np.abs(random(1, 3, length)["x"])}
            np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["x"].max(2, keepdims=True))
        assert session.verify_padding({"x": -1 - np.abs(random(1, 3, 5)["x"])})
    with open_session(host, made, pad={"x": 0}) as session:
        assert not session.verify_padding({"x": -1 - np.abs(random(1, 3, 5)["x"])})


def test_combinations_of_sizes_that_the_model_cannot_run_are_not_warmed(host: qnnbridge.Host) -> None:
    made = model([node("Add", ["x", "z"], ["y"])], [tensor("x", ["a"]), tensor("z", ["b"])], [tensor("y", ["a"])])
    with open_session(host, made, buckets={"a": [4, 8], "b": [4, 8]}) as session:
        status = session.warm()
        assert sorted(status.ruled_out) == ["a=4, b=8", "a=8, b=4"]
        assert all(status.ruled_out.values())
        assert [dict(one.sizes) for one in status.variants if one.made] == [{"a": 4, "b": 4}, {"a": 8, "b": 8}]
        assert "a=4, b=8: skipped" in str(status)
        x = np.arange(6, dtype=np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x, "z": x})[0], 2 * x)
