"""`qnnbridge exec`: an unmodified program, and the Python processes that it starts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

from tests.dropin.running import MODELS, exec_program, program

MUL = str(MODELS / "mul_1.onnx")

ONE_RUN = f"""
    import numpy as np
    import onnxruntime as ort

    session = ort.InferenceSession({MUL!r})
    print(ort.__name__, session.run(None, {{"X": np.ones((3, 2), np.float32)}})[0].sum())
"""


def test_a_program_gets_the_bridge_under_the_name_onnxruntime(tmp_path: Path) -> None:
    ran = exec_program(program(tmp_path, ONE_RUN), cwd=tmp_path)
    assert ran.stdout.split() == ["qnnbridge.ort", "21.0"], ran.stderr


def test_everything_is_as_if_python_had_run_it(tmp_path: Path) -> None:
    name = program(
        tmp_path,
        """
        import os
        import sys

        print(__name__, sys.argv, os.path.basename(__file__), sys.path[0] == os.getcwd())
        sys.exit(7)
        """,
    )
    ran = exec_program(name, "a", "--report", "-m", cwd=tmp_path)
    assert ran.stdout.strip() == f"__main__ ['{name}', 'a', '--report', '-m'] {name} True"
    assert ran.returncode == 7


def test_a_module_runs_as_with_python_m(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__init__.py").touch()
    (tmp_path / "tool" / "__main__.py").write_text(
        "import sys, onnxruntime\nprint(onnxruntime.__name__, sys.argv[1:])\n"
    )
    ran = exec_program("-m", "tool", "x", "-y", cwd=tmp_path)
    assert ran.stdout.strip() == "qnnbridge.ort ['x', '-y']", ran.stderr


def test_an_error_of_the_program_is_its_own_traceback(tmp_path: Path) -> None:
    ran = exec_program(program(tmp_path, "def f():\n    raise KeyError('mine')\n\nf()\n"), cwd=tmp_path)
    assert ran.returncode == 1
    assert "KeyError: 'mine'" in ran.stderr
    assert "qnnbridge_tools" not in ran.stderr


def test_processes_that_the_program_starts_have_it_too(tmp_path: Path) -> None:
    name = program(
        tmp_path,
        f"""
        import multiprocessing
        import subprocess
        import sys

        def work(number):
            import numpy as np
            import onnxruntime as ort
            session = ort.InferenceSession({MUL!r})
            return ort.__name__, float(session.run(None, {{"X": np.full((3, 2), number, np.float32)}})[0].sum())

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(work, [1, 2], 1))
            subprocess.run([sys.executable, "-c", "import onnxruntime; print(onnxruntime.__name__)"], check=True)
        """,
    )
    ran = exec_program("--report", name, cwd=tmp_path)
    assert ran.stdout.splitlines() == ["[('qnnbridge.ort', 21.0), ('qnnbridge.ort', 42.0)]", "qnnbridge.ort"], (
        ran.stderr
    )
    assert "mul_1.onnx" in ran.stderr
    assert " 2 " in next(line for line in ran.stderr.splitlines() if "mul_1.onnx" in line)


def test_the_installed_version_is_that_of_the_host(tmp_path: Path) -> None:
    import onnxruntime

    name = program(
        tmp_path,
        """
        import importlib.metadata
        import importlib.util

        print(importlib.util.find_spec("onnxruntime") is not None, importlib.metadata.version("onnxruntime"))
        import onnxruntime
        print(onnxruntime.__version__, importlib.metadata.version("onnxruntime"))
        """,
    )
    ran = exec_program(name, cwd=tmp_path)
    version = onnxruntime.__version__
    assert ran.stdout.split() == ["True", version, version, version], ran.stderr


def test_the_report_says_where_models_ran(tmp_path: Path) -> None:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("onnxruntime-qnn is not installed")
    ran = exec_program("--provider", "qnn", "--report", program(tmp_path, ONE_RUN), cwd=tmp_path)
    line = next(line for line in ran.stderr.splitlines() if "mul_1.onnx" in line)
    assert "QNN, all 1 nodes" in line, ran.stderr
    asked = exec_program("--report", program(tmp_path, ONE_RUN), cwd=tmp_path)
    assert "CPU, all 1 nodes" in asked.stderr


def test_a_model_that_cannot_go_to_the_npu_runs_on_the_cpu_and_the_report_says_why(tmp_path: Path) -> None:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("onnxruntime-qnn is not installed")
    source = f"""
        import numpy as np
        import onnxruntime as ort

        session = ort.InferenceSession({str(MODELS / "pnet.onnx")!r})
        print(len(session.run(None, {{"input_1": np.zeros((1, 24, 24, 3), np.float32)}})))
    """
    ran = exec_program("--provider", "qnn", "--report", program(tmp_path, source), cwd=tmp_path)
    assert ran.stdout.strip() == "2", ran.stderr
    assert "fixed dimensions" in ran.stderr


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    missing = exec_program("nope.py", cwd=tmp_path)
    assert missing.returncode == 2
    assert "There is no program nope.py" in missing.stderr
    assert "Traceback" not in missing.stderr
    unknown = exec_program("--provider", "gpu", "nope.py", cwd=tmp_path)
    assert "as-requested, qnn, cpu" in unknown.stderr


def test_importing_the_drop_in_does_the_same(tmp_path: Path) -> None:
    import subprocess
    import sys

    source = "import qnnbridge.dropin\nimport onnxruntime\nimport onnxruntime.capi._pybind_state as C\nimport numpy as np\n"
    source += "print(onnxruntime.__name__, C.InferenceSession is onnxruntime.InferenceSession)\n"
    ran = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["qnnbridge.ort", "True"], ran.stderr


def test_after_onnxruntime_itself_the_drop_in_refuses(tmp_path: Path) -> None:
    import subprocess
    import sys

    ran = subprocess.run(
        [sys.executable, "-c", "import onnxruntime, qnnbridge.dropin"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "onnxruntime is imported already" in ran.stderr
