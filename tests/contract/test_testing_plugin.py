"""`qnnbridge.testing` and its fixtures, in separate runs of pytest, as applications use them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import qnnbridge
from qnnbridge.testing import assert_numbers, assert_on_npu, watch_sessions
from tests.contract.small_models import CPU, MODELS, model, node, tensor

pytest_plugins = ["pytester"]

MODEL = str(MODELS / "mul_1.onnx")
FEED = {"X": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)}

BEGIN = f"""
    import numpy as np
    import pytest
    import qnnbridge

    MODEL = {MODEL!r}
    FEED = {{"X": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)}}

    def run(feed=FEED, model=MODEL, **keywords):
        with qnnbridge.InferenceSession(model, **keywords) as session:
            return session.run(None, feed)
"""


@pytest.fixture(autouse=True)
def loaded(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the plugin by name, since the entry point of this checkout may not be installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "qnnbridge._pytest_plugin")


@pytest.fixture
def half_on_qnn(tmp_path: Path) -> str:
    """Return a model with Relu, which QNN supports, then Det, which it does not."""
    made = model(
        [node("Relu", ["x"], ["r"], name="relu"), node("Det", ["r"], ["y"], name="det")],
        [tensor("x", [2, 3, 3])],
        [tensor("y", [2])],
    )
    path = tmp_path / "half.onnx"
    path.write_bytes(made.SerializeToString())
    return str(path)


def outcomes(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(textwrap.dedent(BEGIN) + textwrap.dedent(source))
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options, timeout=100)


@pytest.mark.simulator
def test_a_node_that_leaves_the_npu_fails_the_test(pytester: pytest.Pytester, half_on_qnn: str) -> None:
    pytest.importorskip("onnxruntime_qnn")
    result = outcomes(
        pytester,
        f"""
        HALF = {half_on_qnn!r}
        X = {{"x": np.ones((2, 3, 3), np.float32)}}

        def test_all_on_the_npu(npu_placement):
            run()
            assert len(npu_placement.sessions) == 1

        def test_one_node_away(npu_placement):
            run(X, HALF, fallback="cpu")

        def test_allowed(npu_placement):
            npu_placement.allow.add("Det")
            run(X, HALF, fallback="cpu")

        def test_without_fixture():
            run(X, HALF, fallback="cpu")

        def test_no_session(npu_placement):
            pass

        def test_cpu_alone(npu_placement):
            run(providers=["CPUExecutionProvider"])

        def test_a_failure_of_its_own(npu_placement):
            assert 1 == 2
        """,
    )
    result.assert_outcomes(passed=3, failed=4)
    text = result.stdout.str()
    assert "half.onnx: 1 of 2 nodes do not run on the NPU: det (Det). Cause: " in text
    assert f"`qnnbridge analyze {half_on_qnn}`" in text
    assert text.count("No session that uses QNN was created") >= 2
    assert "assert 1 == 2" in text
    assert "_pytest_plugin.py" not in text, "the frames of the plugin are hidden"


@pytest.mark.simulator
def test_numbers_that_differ_fail_the_test(pytester: pytest.Pytester) -> None:
    pytest.importorskip("onnxruntime_qnn")
    result = outcomes(
        pytester,
        """
        from qnnbridge._session.numbers_check import NumbersCheck
        from qnnbridge_protocol.model_records import NumbersReport, OutputNumbers

        @pytest.fixture
        def wrong(monkeypatch):
            found = NumbersReport("differs", (OutputNumbers("differs", 6, 3.5, output="Y"),))
            monkeypatch.setattr(NumbersCheck, "_ask", lambda *_: found)

        def test_the_same(npu_numbers):
            run()
            assert npu_numbers.sessions[0].verified.state == "agrees"

        def test_again_although_it_is_known(npu_numbers, wrong):
            run()

        def test_swallowed_by_the_program(npu_numbers, wrong):
            with pytest.raises(qnnbridge.errors.NumbersDiffer):
                run()

        def test_verify_off_by_the_program(npu_numbers, wrong):
            run(verify=False)

        def test_nothing_shown(npu_numbers):
            run({"X": np.zeros((3, 2), np.float32)})

        def test_never_run(npu_numbers):
            qnnbridge.InferenceSession(MODEL).close()
        """,
    )
    text = result.stdout.str()
    result.assert_outcomes(passed=2, failed=4)
    assert "mul_1.onnx computes different results on QNN than on the CPU." in text
    assert "no call was compared with the CPU" in text


WITHOUT_QNN = """
    @pytest.fixture(scope="session")
    def qnn_host_missing():
        return "the host has no onnxruntime-qnn"

    def test_one(npu_placement):
        raise AssertionError("not reached")

    def test_other():
        pass
"""


def test_without_qnn_tests_are_skipped_or_fail_as_configured(pytester: pytest.Pytester) -> None:
    result = outcomes(pytester, WITHOUT_QNN, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    assert "QNN is not available: the host has no onnxruntime-qnn" in result.stdout.str()
    result = outcomes(pytester, WITHOUT_QNN, "--require-qnn")
    result.assert_outcomes(passed=1, errors=1)
    assert "--require-qnn is given, but QNN is not available" in result.stdout.str()


def test_without_a_host_tests_are_skipped(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_HOST_PYTHON", str(pytester.path / "none.exe"))
    result = outcomes(pytester, "def test_one(npu_numbers):\n    pass\n", "-rs")
    result.assert_outcomes(skipped=1)
    assert "QNN is not available: " in result.stdout.str()


def test_the_start_of_pytest_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import sys

        def pytest_sessionfinish():
            print("LOADED", *sorted(name for name in sys.modules if name.startswith(("qnnbridge", "numpy", "msgpack"))))
        """
    )
    pytester.makepyfile("def test_one():\n    pass\n")
    result = pytester.runpytest_subprocess("-s", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    (loaded,) = [line.partition("LOADED")[2] for line in result.stdout.lines if "LOADED" in line]
    assert loaded.split() == ["qnnbridge", "qnnbridge._pytest_plugin", "qnnbridge_protocol"]


def test_a_program_with_the_drop_in_is_watched_too(pytester: pytest.Pytester) -> None:
    """pytest issues no warning, although the bridge is imported before it."""
    pytest.importorskip("onnxruntime_qnn")
    pytester.makepyfile(
        f"""
        import numpy as np
        import onnxruntime as ort

        def test_one(npu_placement, npu_numbers):
            session = ort.InferenceSession({MODEL!r})
            session.run(None, {{"X": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)}})
            assert npu_placement.sessions == npu_numbers.sessions == [session]
        """
    )
    done = subprocess.run(
        [sys.executable, "-m", "qnnbridge_tools", "exec", "--provider", "qnn", "-m", "pytest", "-W", "error", "-q"],
        cwd=pytester.path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


# --- without pytest --------------------------------------------------------------------------------------------


@pytest.mark.simulator
def test_assertions_work_on_a_single_session(host: qnnbridge.Host, half_on_qnn: str) -> None:
    pytest.importorskip("onnxruntime_qnn")
    with qnnbridge.InferenceSession(MODEL, host=host) as session:
        assert_on_npu(session)
        report = assert_numbers(session, FEED)
        assert report.state == "agrees"
        with pytest.raises(AssertionError, match=r"mul_1.onnx: Y: SNR .*; required: at least 250 dB"):
            assert_numbers(session, FEED, min_snr_db=250)
        with pytest.raises(AssertionError, match="not certain that the results agree"):
            assert_numbers(session, {"X": np.full((3, 2), np.nan, np.float32)})
    with qnnbridge.InferenceSession(half_on_qnn, host=host, fallback="cpu") as session:
        with pytest.raises(AssertionError, match="1 of 2 nodes do not run on the NPU"):
            assert_on_npu(session)
        assert_on_npu(session, allow={"det"})
    with qnnbridge.InferenceSession(MODEL, providers=CPU, host=host) as session:
        with pytest.raises(AssertionError, match="1 of 1 nodes do not run on the NPU"):
            assert_on_npu(session, allow={"Mul"})


@pytest.mark.simulator
def test_only_sessions_inside_of_a_watched_block_are_checked(host: qnnbridge.Host, half_on_qnn: str) -> None:
    pytest.importorskip("onnxruntime_qnn")
    with watch_sessions() as watch, qnnbridge.InferenceSession(MODEL, host=host) as session:
        session.run(None, FEED)
    qnnbridge.InferenceSession(half_on_qnn, host=host, fallback="cpu").close()
    assert watch.sessions == [session]
    with pytest.raises(AssertionError, match="do not run on the NPU"), watch_sessions(numbers=False):
        qnnbridge.InferenceSession(half_on_qnn, host=host, fallback="cpu").close()
    with pytest.raises(KeyError), watch_sessions():
        raise KeyError("the block's own error is not replaced")
