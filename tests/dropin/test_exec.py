"""`qnnbridge exec`: an unmodified program, and the Python processes that it starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

from tests import needs
from tests.dropin.running import MODELS, TIMEOUT_S, exec_program, program

MUL = str(MODELS / "mul_1.onnx")

ONE_RUN = f"""
    import numpy as np
    import onnxruntime as ort

    session = ort.InferenceSession({MUL!r})
    print(ort.__spec__.name, session.run(None, {{"X": np.ones((3, 2), np.float32)}})[0].sum())
"""


@pytest.mark.parametrize("options", [(), ("--report",)])
def test_a_program_gets_the_bridge_as_the_module_onnxruntime(options: tuple[str, ...], tmp_path: Path) -> None:
    ran = exec_program(*options, program(tmp_path, ONE_RUN), cwd=tmp_path)
    assert ran.stdout.split() == ["qnnbridge.ort", "21.0"], ran.stderr
    assert ("CPU, all of 1 node" in ran.stderr) == bool(options)


def test_a_program_runs_as_under_plain_python(tmp_path: Path) -> None:
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
        "import sys, onnxruntime\nprint(onnxruntime.__spec__.name, sys.argv[1:])\n"
    )
    ran = exec_program("-m", "tool", "x", "-y", cwd=tmp_path)
    assert ran.stdout.strip() == "qnnbridge.ort ['x', '-y']", ran.stderr


@pytest.mark.parametrize(
    "start", [["-m", "pk.mod"], ["-mpk.mod"], ["--provider", "cpu", "--report", "-m", "pk.mod"]]
)
def test_arguments_after_the_module_belong_to_the_module_as_with_python_m(start: list[str], tmp_path: Path) -> None:
    (tmp_path / "pk").mkdir()
    (tmp_path / "pk" / "mod.py").write_text("import sys\nprint(sys.argv[1:])\n")
    own = ["--", "--x"] if start == ["-mpk.mod"] else ["--its", "own", "--", "--report", "-m", "y", "--help"]
    ran = exec_program(*start, *own, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, f"{own}\n"), ran.stderr
    assert ("qnnbridge report" in ran.stderr) == ("--report" in start)


@pytest.mark.parametrize("arguments", [["-m"], ["-m", ""], []])
def test_a_missing_module_name_is_an_error(arguments: list[str], tmp_path: Path) -> None:
    ran = exec_program(*arguments, cwd=tmp_path)
    assert ran.returncode == 2
    assert "'-m' requires an argument" in ran.stderr or "No program is given" in ran.stderr
    assert "Unexpected" not in ran.stderr


def test_the_variable_chooses_the_provider_unless_the_option_does(tmp_path: Path) -> None:
    name = program(tmp_path, "from qnnbridge.ort._placement import policy\nprint(policy())\n")
    said = [
        exec_program(*options, name, cwd=tmp_path, QNNBRIDGE_DROPIN_PROVIDER=value).stdout.strip()
        for options, value in (([], "qnn"), (["--provider", "cpu"], "qnn"), ([], ""))
    ]
    assert said == ["qnn", "cpu", "as-requested"]


def test_the_variable_moves_models_to_the_npu(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    ran = exec_program("--report", program(tmp_path, ONE_RUN), cwd=tmp_path, QNNBRIDGE_DROPIN_PROVIDER="qnn")
    assert "QNN, all of 1 node" in ran.stderr


def test_an_unknown_provider_in_the_variable_is_refused_with_an_explanation(tmp_path: Path) -> None:
    ran = exec_program(program(tmp_path, ONE_RUN), cwd=tmp_path, QNNBRIDGE_DROPIN_PROVIDER="gpu")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("Error: QNNBRIDGE_DROPIN_PROVIDER='gpu' is not known.")
    assert "as-requested, qnn, cpu" in ran.stderr


@pytest.mark.parametrize("options", [[], ["--report"]])
def test_without_a_host_the_error_is_readable(options: list[str], tmp_path: Path) -> None:
    missing = str(tmp_path / "no-python")
    ran = exec_program(*options, program(tmp_path, ONE_RUN), cwd=tmp_path, QNNBRIDGE_HOST_PYTHON=missing)
    assert (ran.returncode, ran.stdout) == (1, "")
    said = ran.stderr.splitlines()
    assert said[0].startswith("Error: The environment variable QNNBRIDGE_HOST_PYTHON names ")
    assert said[-1].startswith("  Fix: ")
    assert "Traceback" not in ran.stderr


def host_that_cannot_start(folder: Path) -> str:
    """Return an interpreter that exits immediately, but whose packages have a version, so that the program is
    started.
    """
    metadata = (
        folder / "broken" / "lib" / "python3.11" / "site-packages" / "onnxruntime-1.20.0.dist-info" / "METADATA"
    )
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: onnxruntime\nVersion: 1.20.0\n")
    python = folder / "broken" / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    return str(python)


@needs.posix
def test_the_error_of_a_host_that_cannot_start_shows_only_frames_of_the_program(tmp_path: Path) -> None:
    python = host_that_cannot_start(tmp_path)
    name = program(tmp_path, ONE_RUN)
    ran = exec_program(name, cwd=tmp_path, QNNBRIDGE_HOST_PYTHON=python)
    assert ran.returncode == 1
    frames = [line for line in ran.stderr.splitlines() if line.startswith("  File ")]
    assert len(frames) == 1
    assert name in frames[0]
    assert "\nError: The QNN host process ended before it was ready: exit code 3.\n  Cause: " in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("  Fix: ")
    debugged = exec_program(name, cwd=tmp_path, QNNBRIDGE_HOST_PYTHON=python, QNNBRIDGE_DEBUG="1")
    assert "supervisor.py" in debugged.stderr


@needs.posix
def test_a_program_can_handle_a_missing_host_itself(tmp_path: Path) -> None:
    source = f"""
        import sys
        import onnxruntime as ort
        from qnnbridge.errors import HostStartFailed

        try:
            ort.InferenceSession({MUL!r})
        except HostStartFailed:
            print("handled")
        sys.excepthook = lambda kind, error, trace: print("its own hook", kind.__name__)
        ort.InferenceSession({MUL!r})
    """
    python = host_that_cannot_start(tmp_path)
    ran = exec_program(program(tmp_path, source), cwd=tmp_path, QNNBRIDGE_HOST_PYTHON=python)
    assert ran.stdout.splitlines()[0] == "handled"
    assert ran.stdout.splitlines()[1].startswith("its own hook ")
    assert ran.returncode == 1


def test_an_error_of_the_program_keeps_its_traceback(tmp_path: Path) -> None:
    ran = exec_program(program(tmp_path, "def f():\n    raise KeyError('mine')\n\nf()\n"), cwd=tmp_path)
    assert ran.returncode == 1
    assert "KeyError: 'mine'" in ran.stderr
    assert "qnnbridge_tools" not in ran.stderr


def test_child_processes_of_the_program_have_the_bridge_too(tmp_path: Path) -> None:
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
            return ort.__spec__.name, float(session.run(None, {{"X": np.full((3, 2), number, np.float32)}})[0].sum())

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(work, [1, 2], 1))
            subprocess.run([sys.executable, "-c", "import onnxruntime; print(onnxruntime.__spec__.name)"], check=True)
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


def test_the_report_shows_where_models_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime_qnn")
    monkeypatch.setenv("QNNBRIDGE_VERIFY", "warn")
    ran = exec_program("--provider", "qnn", "--report", program(tmp_path, ONE_RUN), cwd=tmp_path)
    line = next(line for line in ran.stderr.splitlines() if "mul_1.onnx" in line)
    assert "QNN, all of 1 node" in line, ran.stderr
    assert "agree on" in line, ran.stderr


def test_the_report_has_the_numbers_of_a_model_that_qnn_computes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison of the only call ends after the program's last line."""
    pytest.importorskip("onnxruntime_qnn")
    monkeypatch.setenv("QNNBRIDGE_VERIFY", "warn")
    source = f"""
        import numpy as np
        import onnxruntime as ort
        from qnnbridge._session.numbers_check import NumbersCheck
        from qnnbridge_protocol.model_records import NumbersReport, OutputNumbers

        def late(*_):
            import time
            time.sleep(0.5)
            return NumbersReport("differs", (OutputNumbers("differs", 6, 3.5, output="Y"),), "", "Y: SNR 3.5 dB")

        NumbersCheck._ask = late
        session = ort.InferenceSession({MUL!r})
        session.run(None, {{"X": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)}})
    """
    ran = exec_program("--provider", "qnn", "--report", program(tmp_path, source), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    line = next(line for line in ran.stderr.splitlines() if "mul_1.onnx  " in line)
    assert line.split()[-1] == "differ", ran.stderr
    assert "mul_1.onnx: numbers differ: Y: SNR 3.5 dB" in ran.stderr


def test_the_report_counts_each_call_once_even_if_it_is_repeated(tmp_path: Path) -> None:
    source = f"""
        import numpy as np
        import onnxruntime as ort

        session = ort.InferenceSession({MUL!r})
        x = np.ones((3, 2), np.float32)
        for _ in range(7):
            session.run(None, {{"X": x}})
        bound = session.io_binding()
        bound.bind_cpu_input("X", x)
        bound.bind_output("Y")
        for _ in range(4):
            session.run_with_iobinding(bound)
        try:
            session.run(None, {{"X": np.ones(5, np.float32)}})
        except ort.capi.onnxruntime_pybind11_state.InvalidArgument:
            pass
    """
    ran = exec_program("--report", program(tmp_path, source), cwd=tmp_path)
    line = next(line for line in ran.stderr.splitlines() if "mul_1.onnx" in line)
    sessions, calls, failed = line.partition("node")[2].split()[:3]
    assert (sessions, calls, failed) == ("1", "12", "1"), ran.stderr


def test_a_model_that_cannot_run_on_the_npu_runs_on_the_cpu_and_the_report_gives_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    source = f"""
        import numpy as np
        import onnxruntime as ort

        session = ort.InferenceSession({str(MODELS / "pnet.onnx")!r})
        print(len(session.run(None, {{"input_1": np.zeros((1, 24, 24, 3), np.float32)}})))
    """
    ran = exec_program("--provider", "qnn", "--report", program(tmp_path, source), cwd=tmp_path)
    assert ran.stdout.strip() == "2", ran.stderr
    assert "fixed dimensions" in ran.stderr


GRU = """
    import numpy as np
    import onnxruntime as ort
    import onnxruntime.backend as backend
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {{"W": (1, 24, 6), "R": (1, 24, 8), "B": (1, 48)}}
    constants = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("GRU", ["t", "W", "R", "B"], ["y"], hidden_size=8, linear_before_reset=1),
    ]
    x, y = helper.make_tensor_value_info("x", 1, ["b", "s", 6]), helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers={providers})
    feeds = {{"x": np.ones((1, 5, 6), np.float32)}}
    print(*[session.run(None, feeds)[0].shape for _ in range(2)])
    """


@pytest.mark.parametrize("providers", ["ort.get_available_providers()", "['CPUExecutionProvider']"])
def test_a_model_with_free_dimensions_moves_to_qnn_with_the_first_call(providers: str, tmp_path: Path) -> None:
    """QNN fails on such a session instead of leaving its nodes to the CPU."""
    pytest.importorskip("onnxruntime_qnn")
    source = GRU.format(providers=providers)
    ran = exec_program("--provider", "qnn", "--report", program(tmp_path, source), cwd=tmp_path)
    assert ran.stdout.strip() == "(5, 1, 1, 8) (5, 1, 1, 8)", ran.stderr
    assert "The first call fixes them" in ran.stderr
    assert (
        "fixed to the sizes of its first call (b=1, s=5), 2 of 2 nodes after optimisation run on QNN" in ran.stderr
    )
    report = re.sub(" +", " ", ran.stderr.partition("qnnbridge report")[2])
    assert "CPU, all of 2 nodes 1 0 0 " in report, report  # sessions, calls, failed
    assert "QNN, all of 2 nodes 1 2 0 " in report, report


def test_a_program_that_requests_all_providers_gets_qnn_without_its_errors(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    source = GRU.format(providers="ort.get_available_providers()")
    source += """
    import os
    mul = ort.InferenceSession(os.environ["MUL"], providers=ort.get_available_providers())
    print(mul.get_providers()[0], session.get_providers())
    """
    path = os.fspath(MODELS / "mul_1.onnx")
    ran = exec_program(program(tmp_path, source), cwd=tmp_path, MUL=path, QNNBRIDGE_DROPIN_PROVIDER="")
    assert ran.stdout.splitlines()[1] == "QNNExecutionProvider ['CPUExecutionProvider']", ran.stderr
    assert "runs on the CPU: " in ran.stderr
    source = GRU.format(providers="['QNNExecutionProvider', 'CPUExecutionProvider']")
    ran = exec_program(program(tmp_path, source), cwd=tmp_path)
    assert "EPFail: " in ran.stderr  # the program requests QNN by name


def test_the_device_of_the_onnx_backend_is_the_cpu_unless_the_user_sets_another(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    source = f"""
        import numpy as np
        import onnx
        import onnxruntime.backend as backend

        model = {str(MODELS / "mul_1.onnx")!r}
        for device in ({{}}, {{"device": "CPU"}}):
            ready = backend.prepare(model, **device)
            print(ready._session.get_providers()[0], ready.run([np.ones((3, 2), np.float32)])[0].sum())
        scalar = onnx.helper.make_tensor_value_info("x", 1, [])
        node = onnx.helper.make_node("Identity", ["x"], ["y"])
        out = onnx.helper.make_tensor_value_info("y", 1, [])
        graph = onnx.helper.make_graph([node], "g", [scalar], [out])
        made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
        print(backend.prepare(made, "CPU").run([np.float32(3)])[0])
    """
    name = program(tmp_path, source)
    ran = exec_program(name, cwd=tmp_path)
    assert ran.stdout.splitlines() == ["CPUExecutionProvider 21.0"] * 2 + ["3.0"], ran.stderr
    ran = exec_program("--provider", "qnn", name, cwd=tmp_path)
    assert ran.stdout.splitlines()[0].startswith("QNNExecutionProvider 21.0"), ran.stderr


def test_a_missing_program_or_an_unknown_provider_is_reported(tmp_path: Path) -> None:
    missing = exec_program("nope.py", cwd=tmp_path)
    assert missing.returncode == 2
    assert "There is no program nope.py" in missing.stderr
    assert "Traceback" not in missing.stderr
    unknown = exec_program("--provider", "gpu", "nope.py", cwd=tmp_path)
    assert "as-requested, qnn, cpu" in unknown.stderr


def test_importing_the_drop_in_has_the_same_effect(tmp_path: Path) -> None:

    source = "import qnnbridge.dropin\nimport onnxruntime\nimport onnxruntime.capi._pybind_state as C\nimport numpy as np\n"
    source += "print(onnxruntime.__spec__.name, C.SessionOptions is onnxruntime.SessionOptions)\n"
    ran = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["qnnbridge.ort", "True"], ran.stderr


def test_the_drop_in_refuses_if_onnxruntime_is_already_imported(tmp_path: Path) -> None:

    ran = subprocess.run(
        [sys.executable, "-c", "import onnxruntime, qnnbridge.dropin"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "onnxruntime is already imported" in ran.stderr


def test_survived_crashes_are_counted(tmp_path: Path) -> None:
    source = f"""
        import numpy as np
        import onnxruntime as ort
        import psutil
        import qnnbridge

        session = ort.InferenceSession({MUL!r})
        psutil.Process(qnnbridge.default_host().info.pid).kill()
        print(session.run(None, {{"X": np.ones((3, 2), np.float32)}})[0].sum())
    """
    ran = exec_program("--report", program(tmp_path, source), cwd=tmp_path)
    assert ran.stdout.strip() == "21.0", ran.stderr
    assert "1 crash of the host, 1 call repeated after a crash; 1 process" in ran.stderr


def test_the_host_uses_its_own_onnxruntime_whatever_the_program_has(tmp_path: Path) -> None:

    import onnxruntime

    source = """
        import qnnbridge
        print(qnnbridge.default_host().info.ort_folder)
    """
    ran = exec_program(program(tmp_path, source), cwd=tmp_path)
    assert os.path.samefile(ran.stdout.strip(), os.path.dirname(onnxruntime.__file__))


def test_a_program_that_requests_cuda_is_warned_and_runs(tmp_path: Path) -> None:
    source = ONE_RUN.replace(
        f"({MUL!r})", f"({MUL!r}, providers=['CUDAExecutionProvider', 'CPUExecutionProvider'])"
    )
    ran = exec_program(program(tmp_path, source), cwd=tmp_path)
    assert ran.stdout.split() == ["qnnbridge.ort", "21.0"], ran.stderr
    assert "Specified provider 'CUDAExecutionProvider' is not in available provider names" in ran.stderr
    assert "program.py" in ran.stderr  # the line that requests it


def test_stdin_arguments_and_path_reach_the_program_unchanged(tmp_path: Path) -> None:

    folder = tmp_path / "größe 模型"
    folder.mkdir()
    (folder / "modell ü.onnx").write_bytes(Path(MUL).read_bytes())
    (folder / "prögram.py").write_text(
        "import sys\nimport onnxruntime as ort\n"
        "s = ort.InferenceSession('modell ü.onnx')\n"
        "print(s.get_inputs()[0].name, sys.stdin.read(), ascii(sys.argv))\n"
        "sys.exit('words')\n",
        encoding="utf-8",
    )
    ran = subprocess.run(
        [sys.executable, "-m", "qnnbridge_tools", "exec", "prögram.py", "--provider", "ä", "--", ""],
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        input="from a pipe",
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
    )
    assert ran.stdout.strip() == r"X from a pipe ['pr\xf6gram.py', '--provider', '\xe4', '--', '']", ran.stderr
    assert ran.stderr.strip() == "words"
    assert ran.returncode == 1


@needs.posix
@pytest.mark.parametrize("options", [[], ["--report"]])
def test_signals_reach_the_program(options: list[str], tmp_path: Path) -> None:
    """Ctrl+C reaches all processes of the terminal, a plain kill only `qnnbridge exec`; the program gets both."""
    name = program(
        tmp_path,
        f"""
        import signal
        import sys
        import onnxruntime as ort

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(8))
        session = ort.InferenceSession({MUL!r})
        try:
            print("ready", flush=True)
            while True:
                signal.pause()
        except KeyboardInterrupt:
            print(len(session.get_inputs()), flush=True)
            sys.exit(9)
        """,
    )
    for group, number, code in ((True, signal.SIGINT, 9), (False, signal.SIGTERM, 8)):
        with subprocess.Popen(
            [sys.executable, "-m", "qnnbridge_tools", "exec", *options, name],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == b"ready\n"
            if group:
                os.killpg(running.pid, number)
            else:
                running.send_signal(number)
            running.communicate(timeout=60)
        assert running.returncode == code


def test_a_python_that_lacks_the_bridge_is_reported(tmp_path: Path) -> None:
    name = program(
        tmp_path,
        """
        import subprocess
        import sys

        # Without the installed packages.
        ran = subprocess.run([sys.executable, "-S", "-c", "import onnxruntime"], capture_output=True, text=True)
        print(ran.stderr.splitlines()[-1])
        """,
    )
    said = exec_program(name, cwd=tmp_path).stdout
    assert said.startswith("ImportError: qnnbridge provides onnxruntime here, but this Python (")
    assert "Install qnnbridge there" in said


@pytest.mark.parametrize("isolated", ["-I", "-E"])
def test_an_interpreter_that_ignores_pythonpath_has_the_bridge_too(isolated: str, tmp_path: Path) -> None:
    name = program(
        tmp_path, "import onnxruntime, sys, neighbour\nprint(onnxruntime.__spec__.name)\nprint(sys.argv)\n"
    )
    (tmp_path / "neighbour.py").touch()
    for start, argv in (([name], [name, "x"]), (["-m", "program"], [str(tmp_path / name), "x"])):
        ran = subprocess.run(
            [sys.executable, isolated, "-m", "qnnbridge_tools", "exec", *start, "x"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.stdout.splitlines() == ["qnnbridge.ort", str(argv)], ran.stderr


def test_the_command_itself_needs_no_numpy(tmp_path: Path) -> None:
    """Imports of the command delay every program. The report of imports ends where the program starts."""
    name = program(tmp_path, "print('the program')")
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "qnnbridge_tools", "exec", name],
        cwd=tmp_path,
        env={**os.environ, "QNNBRIDGE_HOST_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert ran.stdout == "the program\n"
    assert "qnnbridge.ort._environment" in imported
    assert "numpy" not in imported
