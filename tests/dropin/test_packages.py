"""Popular packages that use onnxruntime, unmodified: on Python 3.10 without onnxruntime, and together with
onnxruntime."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

from tests.dropin.running import TIMEOUT_S, exec_program
from tests.labs.labs import demand, lab_folder

FOLDER = Path(__file__).parent / "programs"
# Programs for packages that only `scripts/labs` installs, if they are installed.
MORE = FOLDER.glob("more/*.py") if (lab_folder() / "packages" / "more").exists() else ()
PROGRAMS = {path.stem: path for path in sorted((*FOLDER.glob("*.py"), *MORE))}

pytestmark = pytest.mark.lab

# Index of the CPU in a pair of node counts.
CPU = 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_package_gives_the_same_results_without_onnxruntime(name: str, tmp_path: Path) -> None:
    application = demand("packages/application/bin/python", "setup_packages.sh")
    ran = exec_program(
        "--report", _program(name), cwd=tmp_path, python=str(application), QNNBRIDGE_HOST_PYTHON=sys.executable
    )
    assert ran.returncode == 0, ran.stderr
    assert "CPU, all" in ran.stderr
    assert _result(ran.stdout) == beside_onnxruntime(name)


# Models, and how many of their nodes run on QNN and on the CPU with `--provider qnn`, with onnxruntime 1.32. All
# but common_det have inputs of any size, which QNN does not support: these are the nodes of the session for the
# sizes of the first call. file_kinds has no entry, since fixed sizes move none of its nodes to QNN.
ON_THE_NPU = {
    "captcha": {"common_det.onnx": (274, 0), "common_old.onnx": (209, 43)},
    "detector": {"320n.onnx": (238, 0)},
    "file_kinds": {"model.onnx": (77, 0)},
    "nsfw": {"open-nsfw.onnx": (124, 0)},
    "ocr": {
        "ch_PP-OCRv4_det_infer.onnx": (330, 0),
        "ch_ppocr_mobile_v2.0_cls_infer.onnx": (181, 0),
        "ch_PP-OCRv4_rec_infer.onnx": (395, 0),
    },
}

_RAN_ON = re.compile(
    r"(?P<model>\S+) +(?:QNN, all of (?P<all_qnn>\d+)|CPU, all of (?P<all_cpu>\d+)|QNN (?P<qnn>\d+) nodes?, CPU (?P<cpu>\d+))\b"
)


def test_placements_with_almost_the_same_number_of_nodes_count_as_equal() -> None:
    placed = nodes_by_model(
        ["  a.onnx  QNN, all of 277 nodes  1", "  b.onnx  QNN 120 nodes, CPU 148  1", "  a.onnx: x"]
    )
    assert placed == {"a.onnx": (277, 0), "b.onnx": (120, 148)}
    assert same_placement((277, 0), (274, 0))
    assert same_placement((120, 148), (119, 150))
    for other in ((273, 1), (0, 274), (150, 119), (200, 0)):
        assert not same_placement(other, (274, 0))
    assert not same_placement((0, 408), (2, 406))
    assert not same_placement((1, 93), (0, 94))
    assert not same_placement((150, 119), (119, 150))
    assert not same_placement((40, 276), (27, 289))


def nodes_by_model(report: list[str]) -> dict[str, tuple[int, int]]:
    """Return the numbers of nodes on QNN and on the CPU from the table of the report."""
    rows = [row.groupdict("0") for line in report if (row := _RAN_ON.match(line.strip()))]
    return {
        row["model"]: (int(row["all_qnn"]) + int(row["qnn"]), int(row["all_cpu"]) + int(row["cpu"])) for row in rows
    }


def same_placement(nodes: tuple[int, int], known: tuple[int, int]) -> bool:
    """Return whether two placements are almost equal.

    Versions of onnxruntime fuse a few nodes more or less; none moves all nodes of QNN or of the CPU to the other
    side.
    """
    return all(
        bool(now) == bool(then) and abs(now - then) <= max(5, then // 20)
        for now, then in zip(nodes, known, strict=True)
    )


@pytest.mark.simulator
@pytest.mark.parametrize("name", ON_THE_NPU)
def test_a_package_on_the_npu_reports_its_placement_and_stays_close_to_the_cpu(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    application = demand("packages/application/bin/python", "setup_packages.sh")
    ran = exec_program(
        *("--provider", "qnn", "--report", _program(name)),
        cwd=tmp_path,
        python=str(application),
        QNNBRIDGE_HOST_PYTHON=sys.executable,
    )
    assert ran.returncode == 0, ran.stderr
    report = ran.stderr.partition("qnnbridge report")[2].splitlines()
    placed = nodes_by_model(report)
    for model, known in ON_THE_NPU[name].items():
        assert same_placement(placed[model], known), ran.stderr
        assert not known[CPU] or any(line.startswith(f"  {model}: ") for line in report), ran.stderr
    assert _near(_result(ran.stdout), beside_onnxruntime(name)), ran.stdout


@functools.cache
def beside_onnxruntime(name: str) -> Any:
    """Return the output of the same program with onnxruntime in its own process."""
    packages = demand("packages/beside-onnxruntime", "setup_packages.sh")
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, _program(name)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert ran.returncode == 0, ran.stderr
    return _result(ran.stdout)


def _program(name: str) -> str:
    return str(PROGRAMS[name])


def _result(stdout: str) -> Any:
    return json.loads(stdout.splitlines()[-1])


def _near(one: Any, other: Any) -> bool:
    """Compare scores within 0.06, pixels within 2, and everything else exactly.

    The NPU computes in fp16: with all 238 nodes of the detector on QNN its score is 0.428, on the CPU 0.382, and
    its boxes are the same.
    """
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 0.06
    if type(one) is int and type(other) is int:
        return abs(one - other) <= 2
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_near, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_near(one[key], other[key]) for key in one)
    return bool(one == other)
