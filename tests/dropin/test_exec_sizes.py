"""Free dimensions in a program written for onnxruntime: given by `qnnbridge exec`, or decided by the first call."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn")

from tests import needs
from tests.dropin.running import exec_program, program
from tests.fakes import models as build

WEIGHTS = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) / 4


def write(folder: Path, shape: list[int | str | None] | None = None) -> None:
    """Write a model y = relu(x @ w) @ w. The dimensions of x are by default two named free ones."""
    dims = ["batch", "time", 8] if shape is None else shape
    nodes = [
        build.node("MatMul", ["x", "w"], ["a"]),
        build.node("Relu", ["a"], ["b"]),
        build.node("MatMul", ["b", "w"], ["y"]),
    ]
    made = build.model(nodes, [build.tensor("x", dims)], [build.tensor("y", dims)], {"w": WEIGHTS})
    build.saved(made, folder / "m.onnx")
    np.save(folder / "w.npy", WEIGHTS)


BEGIN = """
    import numpy as np
    import onnxruntime as ort

    w = np.load("w.npy")
    session = ort.InferenceSession("m.onnx", providers=PROVIDERS)

    def feed(*sizes):
        return {"x": np.random.default_rng(sum(sizes)).standard_normal((*sizes, 8)).astype(np.float32)}

    def check(given, y):
        expected = np.maximum(given["x"] @ w, 0) @ w
        assert y.shape == expected.shape, (y.shape, expected.shape)
        assert np.abs(y - expected).max() < 0.02 * np.abs(expected).max() + 1e-3

    def call(*sizes):
        given = feed(*sizes)
        check(given, session.run(None, given)[0])
"""


def ran(folder: Path, text: str, *options: str, providers: str = "None", **environ: str) -> tuple[str, list[str]]:
    """Run the program with `exec --provider qnn --report`; return its stderr and the report's rows of the model."""
    source = BEGIN.replace("PROVIDERS", providers) + text
    chosen = () if "--provider" in options else ("--provider", "qnn")
    done = exec_program("--report", *chosen, *options, program(folder, source), cwd=folder, **environ)
    assert done.returncode == 0, done.stderr
    report = [line for line in done.stderr.partition("qnnbridge report")[2].splitlines() if "m.onnx" in line]
    rows = [re.sub(r" +", " ", line.strip()) for line in report if "node" in line and ":" not in line]
    # Sessions, calls and failures follow the nodes; times and the verdict on the numbers follow those.
    return done.stderr, [re.sub(r"(nodes?(?: \d+){3}).*", r"\1", row) for row in rows]


SAME = """
    for _ in range(3):
        call(2, 5)
    print(session.get_inputs()[0].shape)
"""


def test_a_program_with_one_size_has_its_nodes_on_qnn_from_the_first_call_on(tmp_path: Path) -> None:
    write(tmp_path)
    said, report = ran(tmp_path, SAME)
    assert (
        "0 of 3 nodes after optimisation run on QNN: QNN takes only fixed sizes, but these dimensions are free: "
        "batch, time." in said
    )
    assert "qnnbridge exec --dim batch=SIZE --dim time=SIZE" in said
    assert (
        "m.onnx: fixed to the sizes of its first call (batch=2, time=5), 3 of 3 nodes after optimisation run on QNN."
        in said
    )
    assert report == [
        "m.onnx CPU, all of 3 nodes 1 0 0",
        "m.onnx QNN, all of 3 nodes 1 3 0",
    ]


def test_calls_with_other_sizes_run_as_before_and_are_reported_once(tmp_path: Path) -> None:
    write(tmp_path)
    said, report = ran(tmp_path, "\n    for n in (5, 6, 5, 7, 5, 6):\n        call(1, n)\n")
    assert said.count("run the nodes with free dimensions on the CPU") == 1
    assert "m.onnx: calls with time=6 run" in said
    assert "qnnbridge exec --dim batch=1 --bucket time=5,6 compiles these sizes, too." in said
    assert [line.split()[-2:-1] for line in report] == [["3"], ["3"]]


def test_every_way_to_run_uses_qnn(tmp_path: Path) -> None:
    write(tmp_path)
    said, report = ran(
        tmp_path,
        """
    import threading

    given = feed(2, 5)
    binding = session.io_binding()
    binding.bind_cpu_input("x", given["x"])
    binding.bind_output("y")
    for _ in range(3):
        session.run_with_iobinding(binding)
        check(given, binding.copy_outputs_to_cpu()[0])
    value = ort.OrtValue.ortvalue_from_numpy(given["x"])
    check(given, session.run_with_ort_values(["y"], {"x": value})[0].numpy())
    done = threading.Event()
    answers = []
    session.run_async(["y"], given, lambda results, _, error: (answers.append((results, error)), done.set()), None)
    assert done.wait(60)
    assert not answers[0][1]
    check(given, answers[0][0][0])
    binding = session.io_binding()
    binding.bind_cpu_input("x", feed(1, 3)["x"])
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    check(feed(1, 3), binding.copy_outputs_to_cpu()[0])
""",
    )
    assert [line.split()[-3:-1] for line in report] == [["1", "1"], ["1", "5"]], said


def test_calls_of_many_threads_get_their_own_results_during_the_compilation(tmp_path: Path) -> None:
    write(tmp_path)
    ran(
        tmp_path,
        """
    import random
    import threading

    failures = []

    def work(seed):
        choose = random.Random(seed)
        try:
            for _ in range(40):
                call(choose.choice((1, 2)), choose.choice((4, 5)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
""",
    )


def test_wrong_or_empty_feeds_do_not_fix_a_size(tmp_path: Path) -> None:
    write(tmp_path)
    said, _ = ran(
        tmp_path,
        """
    assert session.run(None, {"x": np.zeros((1, 0, 8), np.float32)})[0].shape == (1, 0, 8)
    for wrong in ({}, {"x": np.zeros((1, 4, 8))}, {"x": np.zeros((1, 8), np.float32)}, {"z": 1}):
        try:
            session.run(None, wrong)
        except Exception as error:
            assert "qnnbridge" not in type(error).__module__ or "INVALID" in str(error) or "missing" in str(error)
        else:
            raise AssertionError(wrong)
    call(1, 4)
""",
    )
    assert "its first call (batch=1, time=4)" in said


@pytest.mark.parametrize("shape", needs.some([[None, None, 8], ["?", "?", 8]]))
def test_axes_without_a_dimension_name_are_fixed_as_well(shape: list[int | str | None], tmp_path: Path) -> None:
    write(tmp_path, shape)
    said, report = ran(tmp_path, "\n    for n in (5, 5, 2):\n        call(2, n)\n")
    assert "its first call (x:0=2, x:1=5), 3 of 3 nodes after optimisation run on QNN" in said
    assert [line.split()[-2] for line in report] == ["1", "2"]


def test_given_sizes_are_used_from_the_start(tmp_path: Path) -> None:
    write(tmp_path)
    said, report = ran(
        tmp_path,
        "\n    assert session.placement.qnn_nodes == 3\n    for n in (3, 4, 7, 8):\n        call(1, n)\n",
        *("--dim", "batch=1", "--bucket", "time=4,8"),
    )
    assert report == ["m.onnx QNN, all of 3 nodes 1 4 0"], said
    assert "run on QNN: QNN takes" not in said


def test_calls_that_do_not_fit_the_given_sizes_run_on_the_cpu_even_if_warnings_are_errors(
    tmp_path: Path,
) -> None:
    write(tmp_path, ["n", "n", 8])
    said, _ = ran(
        tmp_path,
        "\n    for sizes in ((4, 4), (5, 5), (4, 5), (4, 4)):\n        call(*sizes)\n",
        *("--dim", "n=4"),
        PYTHONWARNINGS="error",
    )
    assert said.count("a call runs on the CPU, as overflow='cpu' allows") == 1


def test_a_batch_of_one_size_is_not_split(tmp_path: Path) -> None:
    """If rows depend on each other, parts give other results; only --bucket allows a split."""
    write(tmp_path)
    said, _ = ran(tmp_path, "\n    call(2, 4)\n", "--dim", "batch=1", "--dim", "time=4")
    assert "runs on the CPU, as overflow='cpu' allows: batch=2, time=4 does not fit into any bucket" in said
    said, _ = ran(tmp_path, "\n    call(2, 4)\n", "--bucket", "batch=1", "--dim", "time=4")
    assert "runs on the CPU" not in said


def test_sizes_that_leave_a_dimension_free_cause_a_warning_and_the_first_call_fixes_them(tmp_path: Path) -> None:
    write(tmp_path)
    said, report = ran(tmp_path, SAME, "--dim", "batch=2", "--dim", "other=3")
    assert "sizes are given for batch, other, but not for time. QNN needs a size for each free dimension" in said
    assert report[1].startswith("m.onnx QNN, all of 3 nodes")


def test_a_program_that_requests_qnn_itself_is_warned_and_not_changed(tmp_path: Path) -> None:
    write(tmp_path)
    asked = "['QNNExecutionProvider']"
    said, report = ran(tmp_path, SAME, "--provider", "as-requested", providers=asked)
    assert (
        "0 of 3 nodes after optimisation run on QNN: QNN takes only fixed sizes, but these dimensions are free: "
        "batch, time. To fix them" in said
    )
    assert report == ["m.onnx CPU, all of 3 nodes 1 3 0"]
    options = ("--provider", "as-requested", "--dim", "batch=2", "--dim", "time=5")
    _, report = ran(tmp_path, SAME, *options, providers=asked)
    assert report == ["m.onnx QNN, all of 3 nodes 1 3 0"]


def test_a_program_that_requests_the_cpu_is_not_warned(tmp_path: Path) -> None:
    write(tmp_path)
    said, _ = ran(tmp_path, SAME, "--provider", "as-requested", "--dim", "batch=2")
    assert said.strip().startswith("qnnbridge report")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dim", "batch"], "is not of the form NAME=SIZE"),
        (["--bucket", "batch=x"], "is not of the form NAME=SIZE,SIZE"),
        (["--dim", "n=1", "--bucket", "n=1,2"], '"n" is in --dim and in --bucket'),
    ],
)
def test_options_without_an_effect_are_refused(options: list[str], words: str, tmp_path: Path) -> None:
    done = exec_program(*options, "program.py", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", needs.some(["[", "1", '{"a": 0}', '{"a": "b"}', "{}"]))
def test_the_error_for_a_variable_without_sizes_names_the_variable(text: str, tmp_path: Path) -> None:
    write(tmp_path)
    source = BEGIN.replace("PROVIDERS", "['QNNExecutionProvider']")
    done = exec_program(program(tmp_path, source), cwd=tmp_path, QNNBRIDGE_DROPIN_SIZES=text)
    assert done.returncode == 2
    assert "QNNBRIDGE_DROPIN_SIZES=" in done.stderr
    assert '{"batch": 1' in done.stderr
