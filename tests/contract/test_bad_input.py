"""Bad input gives one clear error of a fitting class, costs the host nothing, and the next call works.

The tests check that an error's message contains the wrong value and the fix.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from onnx import TensorProto

import qnnbridge
from qnnbridge import errors
from tests.contract.small_models import CPU, MODELS, QNN, identity

pytestmark = pytest.mark.simulator

MODEL = MODELS / "q.onnx"
MODEL_BYTES = MODEL.read_bytes()
X = np.random.default_rng(3).random((1, 3, 64, 64), np.float32)
# Maximum number of lines of an error message.
MAX_LINES = 8


class Refused(Protocol):
    def __call__(self, cls: type[Exception], call: Callable[[], Any], *words: str) -> Exception: ...


@pytest.fixture(scope="module")
def good(host: qnnbridge.Host) -> qnnbridge.InferenceSession:
    """A session that must not be affected by errors of other sessions."""
    return qnnbridge.InferenceSession(MODEL, host=host)


@pytest.fixture(scope="module")
def expected(good: qnnbridge.InferenceSession) -> bytes:
    return bytes(good.run(None, {"x": X})[0].tobytes())


@pytest.fixture
def refused(host: qnnbridge.Host, good: qnnbridge.InferenceSession, expected: bytes) -> Refused:
    """Return a function that checks that a call is refused with a readable error and without side effects."""

    def check(cls: type[Exception], call: Callable[[], Any], *words: str) -> Exception:
        with pytest.raises(cls) as caught:
            call()
        text = str(caught.value)
        assert len(text.splitlines()) <= MAX_LINES, text
        assert "Traceback" not in text
        assert [word for word in words if word not in text] == [], text
        assert good.run(None, {"x": X})[0].tobytes() == expected
        assert host.stats.generation == 1
        return caught.value

    return check


# --- models ----------------------------------------------------------------------------------------------

NO_MODELS: dict[str, tuple[bytes, str]] = {
    "text": (b"This is no model.\n" * 20, "is not an ONNX model"),
    "random bytes": (random.Random(5).randbytes(5000), "is not an ONNX model"),
    "empty": (b"", "is empty"),
    "Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4cac19622fc3\nsize 985\n",
        "git lfs pull",
    ),
    "half a model": (MODEL_BYTES[: len(MODEL_BYTES) // 2], "cut off"),
    "all but the last byte": (MODEL_BYTES[:-1], "cut off"),
    "zeros": (bytes(10**6), "it consists of zeros"),
    "a model and then zeros": (MODEL_BYTES + bytes(10**6), f"zeros from byte {len(MODEL_BYTES)} on"),
}


@pytest.mark.parametrize("content", NO_MODELS)
def test_a_file_that_is_not_a_model_is_refused(
    content: str, host: qnnbridge.Host, refused: Refused, tmp_path: Path
) -> None:
    data, words = NO_MODELS[content]
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    refused(
        errors.OrtError, lambda: qnnbridge.InferenceSession(path, host=host), "broken.onnx", words, "Cause:", "Fix:"
    )


@pytest.mark.parametrize(("data", "cls"), [(b"", errors.InvalidArgument), (b"hello", errors.InvalidProtobuf)])
def test_bytes_that_are_not_a_model_are_refused(
    data: bytes, cls: type[Exception], host: qnnbridge.Host, refused: Refused
) -> None:
    refused(cls, lambda: qnnbridge.InferenceSession(data, host=host), "protobuf")


def test_a_missing_model_file_is_refused(host: qnnbridge.Host, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "not there.onnx"
    refused(errors.NoSuchFile, lambda: qnnbridge.InferenceSession(path, host=host), str(path), "Check the path")


def test_a_folder_is_refused_as_a_model(host: qnnbridge.Host, refused: Refused, tmp_path: Path) -> None:
    refused(
        errors.InvalidProtobuf,
        lambda: qnnbridge.InferenceSession(tmp_path, host=host),
        str(tmp_path),
        "is a folder",
        "the .onnx file in the folder",
    )


def test_a_model_that_is_neither_a_path_nor_bytes_is_refused(host: qnnbridge.Host, refused: Refused) -> None:
    wrong: Any = 5
    refused(TypeError, lambda: qnnbridge.InferenceSession(wrong, host=host), "<class 'int'>")


def test_the_error_for_free_dimensions_names_them_and_how_to_fix_them(
    host: qnnbridge.Host, refused: Refused
) -> None:
    refused(
        errors.PlacementRefused,
        lambda: qnnbridge.InferenceSession(MODELS / "pnet.onnx", host=host),
        "pnet.onnx",
        "'input_1': N, M1, M2",
        "add_free_dimension_override_by_name('N', SIZE)",
        "fallback='cpu'",
    )


# --- compiled models -------------------------------------------------------------------------------------


@pytest.fixture
def compiled(host: qnnbridge.Host, tmp_path: Path) -> Path:
    """Return a compiled model whose context binary is a separate file."""
    path = tmp_path / "compiled.onnx"
    options = qnnbridge.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_embed_mode", "0")
    options.add_session_config_entry("ep.context_file_path", str(path))
    qnnbridge.InferenceSession(MODEL, options, host=host).close()
    return path


def binary_of(compiled: Path) -> Path:
    (found,) = compiled.parent.glob("*.bin")
    return found


def test_a_compiled_model_runs_until_its_context_binary_is_deleted(
    compiled: Path, host: qnnbridge.Host, refused: Refused, expected: bytes
) -> None:
    with qnnbridge.InferenceSession(compiled, host=host) as session:
        assert session.run(None, {"x": X})[0].tobytes() == expected
    name = binary_of(compiled).name
    binary_of(compiled).unlink()
    refused(
        errors.ContextUnusable,
        lambda: qnnbridge.InferenceSession(compiled, host=host),
        f"cannot run here: its context binary {name} is missing",
        f"Copy {name} next to the model",
    )


@pytest.mark.parametrize(("kept", "words"), [(-1, "cut off"), (0, "is empty")])
def test_a_compiled_model_with_a_damaged_context_binary_is_refused(
    kept: int, words: str, compiled: Path, host: qnnbridge.Host, refused: Refused
) -> None:
    binary = binary_of(compiled)
    binary.write_bytes(binary.read_bytes()[:kept])
    refused(
        errors.ContextUnusable,
        lambda: qnnbridge.InferenceSession(compiled, host=host),
        words,
        "recompile from the original model",
    )


# --- feeds -----------------------------------------------------------------------------------------------

WRONG_FEEDS: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = {
    "another dtype": (
        {"x": X.astype(np.float64)},
        errors.InvalidArgument,
        ("tensor(double)", "tensor(float)", "'x'", "astype(numpy.float32)"),
    ),
    "a dimension too few": ({"x": X[0]}, errors.InvalidArgument, ("x", "(3, 64, 64)", "(1, 3, 64, 64)")),
    "another size": ({"x": X[..., :63]}, errors.InvalidArgument, ("x", "(1, 3, 64, 63)", "(1, 3, 64, 64)")),
    "nothing": ({}, ValueError, ("['x']", "missing")),
    "another name": ({"image": X}, ValueError, ("['x']", "'image' is not an input")),
    "a name too many": ({"x": X, "y": X}, errors.InvalidArgument, ("Invalid input name: y", "inputs are 'x'")),
    "strings": ({"x": X.astype(str)}, errors.InvalidArgument, ("tensor(string)", "tensor(float)", "'x'")),
    "a text": ({"x": "hello"}, RuntimeError, ("'x'", "Got a str", "tensor(float)")),
    "an object": ({"x": object()}, RuntimeError, ("'x'", "object", "tensor(float)")),
}


@pytest.mark.parametrize("what", WRONG_FEEDS)
def test_wrong_feeds_are_refused(what: str, good: qnnbridge.InferenceSession, refused: Refused) -> None:
    feeds, cls, words = WRONG_FEEDS[what]
    refused(cls, lambda: good.run(None, feeds), *words)


def test_a_missing_feed_for_a_required_input_is_refused(good: qnnbridge.InferenceSession, refused: Refused) -> None:
    """Check that nothing is sent: ONNX Runtime passes ``None`` on and fails in the node."""
    import onnxruntime

    direct = onnxruntime.InferenceSession(MODELS / "mul_1.onnx", providers=[CPU])
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="Missing Input: X"):
        direct.run(None, {"X": None})
    before = good.host.stats.generation
    refused(errors.Fail, lambda: good.run(None, {"x": None}), "FAIL : Missing Input: x", "not optional")
    assert (good.host.stats.generation, good.host.stats.crashes) == (before, 0)


def test_numbers_are_refused_where_strings_are_required(host: qnnbridge.Host, refused: Refused) -> None:
    with qnnbridge.InferenceSession(identity(TensorProto.STRING), providers=[CPU], host=host) as session:
        refused(
            errors.InvalidArgument,
            lambda: session.run(None, {"x": np.zeros(3, np.float32)}),
            "tensor(float)",
            "'x' is tensor(string)",
        )
        assert session.run(None, {"x": np.array(["a"])})[0].tolist() == ["a"]


def test_a_tensor_over_the_size_limit_is_refused_before_anything_is_sent(
    host: qnnbridge.Host, refused: Refused
) -> None:
    """Use zeros, which occupy no memory until they are read: this test would be slow if the bridge read them."""
    three_gib = np.zeros(3 << 28, np.float32)
    with qnnbridge.InferenceSession(identity(), providers=[CPU], host=host) as session:
        refused(
            errors.TooLarge,
            lambda: session.run(None, {"x": three_gib}),
            str(three_gib.nbytes),
            "nothing was sent",
            "Split the batch",
        )
        assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [1, 1]


def test_an_unknown_output_name_is_refused(good: qnnbridge.InferenceSession, refused: Refused) -> None:
    refused(
        errors.InvalidArgument,
        lambda: good.run(["label"], {"x": X}),
        "Invalid output name:label",
        "outputs are y",
    )


# --- options ---------------------------------------------------------------------------------------------


def test_an_unknown_provider_is_refused(host: qnnbridge.Host, refused: Refused) -> None:
    refused(
        errors.ProviderUnavailable,
        lambda: qnnbridge.InferenceSession(MODEL, providers=["QNNProvider"], host=host),
        "'QNNProvider'",
        QNN,
        CPU,
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("soc_modell", "60", "Did you mean 'soc_model'?"),
        ("performance_mode", "burst", "Did you mean 'htp_performance_mode'?"),
        ("htp_performance_mode", "bursty", "Did you mean 'burst'?"),
        ("vtcm_mb", "many", "a whole number"),
        ("soc_model", "SC8380", "SC8380XP (60)"),
        ("backend_path", "libQnnHtpp.so", "Did you mean 'libQnnHtp.so'?"),
    ],
)
def test_a_wrong_provider_option_is_refused(
    name: str, value: str, words: str, host: qnnbridge.Host, refused: Refused
) -> None:
    options = [{name: value}]
    refused(
        errors.OptionError,
        lambda: qnnbridge.InferenceSession(MODEL, provider_options=options, host=host),
        name,
        words,
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("qnn.htp_perf_modes", "burst", "Did you mean 'qnn.htp_perf_mode'?"),
        ("qnn.htp_perf_mode", "bursty", "Did you mean 'burst'?"),
    ],
)
def test_a_wrong_run_option_is_refused(
    name: str, value: str, words: str, good: qnnbridge.InferenceSession, refused: Refused
) -> None:
    options = qnnbridge.RunOptions()
    options.add_run_config_entry(name, value)
    refused(errors.OptionError, lambda: good.run(None, {"x": X}, options), name, words)


def test_an_unknown_configuration_entry_is_refused(host: qnnbridge.Host, refused: Refused) -> None:
    options = qnnbridge.SessionOptions()
    options.add_session_config_entry("ep.context_enabled", "1")
    refused(
        errors.OptionError,
        lambda: qnnbridge.InferenceSession(MODEL, options, host=host),
        "'ep.context_enabled'",
        "Did you mean 'ep.context_enable'?",
    )


def test_session_options_of_another_type_are_refused(host: qnnbridge.Host, refused: Refused) -> None:
    refused(
        TypeError,
        lambda: qnnbridge.InferenceSession(MODEL, {"intra_op_num_threads": 1}, host=host),
        "dict",
        "qnnbridge.SessionOptions()",
    )


def test_run_options_of_another_type_are_refused(good: qnnbridge.InferenceSession, refused: Refused) -> None:
    refused(TypeError, lambda: good.run(None, {"x": X}, "fast"), "str", "qnnbridge.RunOptions()")


def test_a_session_option_with_a_value_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"intra_op_num_threads must be a whole number, not 'four'"):
        qnnbridge.SessionOptions().intra_op_num_threads = "four"


def test_an_unknown_session_option_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"Did you mean 'intra_op_num_threads'\?"):
        qnnbridge.SessionOptions().intra_op_threads = 4


def test_options_for_a_provider_that_is_not_requested_are_refused(host: qnnbridge.Host, refused: Refused) -> None:
    refused(
        ValueError,
        lambda: qnnbridge.InferenceSession(MODEL, providers=[QNN], provider_options=[{}, {}], host=host),
        "should be the same length",
    )


def test_an_unknown_fallback_is_refused(host: qnnbridge.Host, refused: Refused) -> None:
    unknown: Any = "gpu"
    refused(
        errors.OptionError,
        lambda: qnnbridge.InferenceSession(MODEL, fallback=unknown, host=host),
        "fallback='gpu'",
        "'error' or 'cpu'",
    )


# --- closed objects --------------------------------------------------------------------------------------


def test_a_closed_session_refuses_calls(host: qnnbridge.Host, refused: Refused) -> None:
    session = qnnbridge.InferenceSession(MODEL, host=host)
    session.close()
    refused(errors.Closed, lambda: session.run(None, {"x": X}), "session is closed", "Create a new")
    assert [node.name for node in session.get_inputs()] == ["x"]


def test_a_closed_host_refuses_calls(refused: Refused) -> None:
    with qnnbridge.Host() as other:
        session = qnnbridge.InferenceSession(identity(), providers=[CPU], host=other)
    refused(
        errors.Closed,
        lambda: session.run(None, {"x": X[0, 0, 0]}),
        "host was closed",
        "Create a new qnnbridge.Host",
    )
    refused(errors.Closed, lambda: qnnbridge.InferenceSession(MODEL, host=other), "host was closed")
    session.close()
