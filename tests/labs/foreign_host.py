"""Tests of a host on another kind of machine, which the tests of each lab inherit and run with their host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lab_models
import numpy as np
import pytest
from onnx import TensorProto, helper

import qnnbridge
from qnnbridge import errors

CPU = ["CPUExecutionProvider"]
QNN = "QNNExecutionProvider"


def echo(host: qnnbridge.Host, model: Path, value: Any) -> Any:
    with qnnbridge.InferenceSession(str(model), providers=CPU, host=host) as session:
        return session.run(None, {"x": value})[0]


class HostWithoutNpu:
    """Tests with the fixture `host`."""

    def test_a_real_model_gives_the_same_results_as_on_this_machine(
        self, host: qnnbridge.Host, tmp_path: Path
    ) -> None:
        onnxruntime = pytest.importorskip("onnxruntime")
        model = lab_models.text_direction(tmp_path)
        here = onnxruntime.InferenceSession(str(model), providers=CPU)
        with qnnbridge.InferenceSession(str(model), providers=CPU, host=host) as session:
            for line, feeds in zip(lab_models.TEXT_LINES, lab_models.text_direction_inputs(), strict=True):
                (there,) = session.run(None, feeds)
                np.testing.assert_allclose(there, here.run(None, feeds)[0], rtol=0, atol=1e-5)
                assert lab_models.says_upside_down(there) == line.upside_down

    @pytest.mark.parametrize(
        "dtype",
        [
            "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
            "float64",
        ],
    )  # fmt: skip
    def test_every_bit_survives_the_transfer_to_the_host_and_back(
        self, host: qnnbridge.Host, tmp_path: Path, dtype: str
    ) -> None:
        raw = np.random.default_rng(3).integers(0, 256, 64 * 8, dtype=np.uint8)
        value = (raw[:64] > 127) if dtype == "bool" else raw.view(dtype)[:64]  # all NaN payloads included
        value = value.reshape(4, 16)
        element_type = int(helper.np_dtype_to_tensor_dtype(value.dtype))
        back = echo(host, lab_models.identity(tmp_path, element_type, (4, 16)), value)
        assert back.dtype == value.dtype
        assert back.shape == value.shape
        assert back.tobytes() == value.tobytes()

    def test_a_type_that_numpy_does_not_have_survives_too(self, host: qnnbridge.Host, tmp_path: Path) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        value = np.arange(0, 2**16, 257, dtype=np.uint16).view(ml_dtypes.bfloat16)
        back = echo(host, lab_models.identity(tmp_path, TensorProto.BFLOAT16, value.shape), value)
        assert back.shape == value.shape
        assert back.view(np.uint16).tobytes() == value.tobytes()

    def test_strings_in_all_scripts_survive(self, host: qnnbridge.Host, tmp_path: Path) -> None:
        value = np.array([["", "plain", "größer"], ["模型", "🙂 emoji", "a\tb\nc"]], dtype=object)
        back = echo(host, lab_models.identity(tmp_path, TensorProto.STRING, (2, 3)), value)
        assert back.tolist() == value.tolist()

    def test_a_sequence_of_maps_is_returned_as_python_objects(self, host: qnnbridge.Host, tmp_path: Path) -> None:
        model = lab_models.labelled(tmp_path, ["up", "down", "größer"])
        with qnnbridge.InferenceSession(str(model), providers=CPU, host=host) as session:
            (result,) = session.run(None, {"scores": np.array([[0.5, 0.25, 0.125], [1, 2, 3]], np.float32)})
        assert result == [{"up": 0.5, "down": 0.25, "größer": 0.125}, {"up": 1, "down": 2, "größer": 3}]

    def test_qnn_is_refused_without_an_npu_and_the_host_keeps_running(
        self, host: qnnbridge.Host, tmp_path: Path
    ) -> None:
        model = lab_models.quantized_convolution(tmp_path)
        pid = host.info.pid
        with pytest.raises(errors.ProviderUnavailable) as caught:
            qnnbridge.InferenceSession(str(model), providers=[QNN], host=host)
        assert caught.value.cause
        assert caught.value.fix
        with qnnbridge.InferenceSession(str(model), providers=CPU, host=host) as session:
            (result,) = session.run(None, lab_models.quantized_convolution_inputs())
        assert result.shape == (1, 8, 16, 16)
        assert host.info.pid == pid

    def test_an_allowed_fallback_works_without_an_npu_and_is_visible(
        self, host: qnnbridge.Host, tmp_path: Path
    ) -> None:
        model = lab_models.quantized_convolution(tmp_path)
        with pytest.warns(qnnbridge.CpuFallbackWarning):
            session = qnnbridge.InferenceSession(str(model), providers=[QNN], host=host, fallback="cpu")
        with session:
            assert session.placement.qnn_nodes == 0
            assert session.placement.cpu_nodes > 0
            assert session.placement.cause
            assert session.run(None, lab_models.quantized_convolution_inputs())[0].any()


class HostWithNpuInName:
    """Tests with the fixture `host_with_fake_npu`: an NPU is listed, but there is no driver."""

    saver: str
    ir: str

    def test_an_npu_that_does_not_start_is_visible_if_the_cpu_is_allowed(
        self, host_with_fake_npu: qnnbridge.Host, tmp_path: Path
    ) -> None:
        model = lab_models.quantized_convolution(tmp_path)
        with pytest.warns(qnnbridge.CpuFallbackWarning):
            session = qnnbridge.InferenceSession(
                str(model), providers=[QNN], host=host_with_fake_npu, fallback="cpu"
            )
        with session:
            assert session.placement.qnn_nodes == 0
            assert session.placement.cpu_nodes > 0
            assert session.run(None, lab_models.quantized_convolution_inputs())[0].any()

    def test_a_qnn_session_runs_on_arm64_with_the_recording_backend(
        self, host_with_fake_npu: qnnbridge.Host, tmp_path: Path
    ) -> None:
        model = lab_models.quantized_convolution(tmp_path)
        with qnnbridge.InferenceSession(
            str(model), providers=[(QNN, {"backend_path": self.saver})], host=host_with_fake_npu
        ) as session:
            assert session.placement.qnn_nodes > 0
            assert session.placement.cpu_nodes == 0
            (result,) = session.run(None, lab_models.quantized_convolution_inputs())
        assert result.shape == (1, 8, 16, 16)

    def test_an_npu_that_fails_in_a_run_is_one_typed_error_and_the_host_keeps_running(
        self, host_with_fake_npu: qnnbridge.Host, tmp_path: Path
    ) -> None:
        model = lab_models.quantized_convolution(tmp_path)
        pid = host_with_fake_npu.info.pid
        with (
            qnnbridge.InferenceSession(
                str(model), providers=[(QNN, {"backend_path": self.ir})], host=host_with_fake_npu
            ) as session,
            pytest.raises(errors.EPFail),
        ):
            session.run(None, lab_models.quantized_convolution_inputs())
        back = echo(host_with_fake_npu, lab_models.identity(tmp_path, TensorProto.INT64, (2,)), np.arange(2))
        assert back.tolist() == [0, 1]
        assert host_with_fake_npu.info.pid == pid
