"""`onnxruntime.quantization`, `.tools` and `.transformers` are loaded from the host's installation, which is not
changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ort = pytest.importorskip("onnxruntime")

from qnnbridge.ort import _children  # noqa: E402
from tests.dropin import ort_walk  # noqa: E402
from tests.dropin.running import TIMEOUT_S, exec_program, program  # noqa: E402

pytestmark = pytest.mark.process

INSTALLED = Path(ort.__file__).parent


def run(
    folder: Path, source: str, *, without: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a program with the drop-in that cannot import the packages in `without`."""
    hidden = "".join(f"sys.modules[{name!r}] = None\n" for name in without)
    text = f"import sys\n{hidden}import qnnbridge.dropin\n{source}"
    return subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env={**os.environ, "QNNBRIDGE_HOST_PYTHON": sys.executable, **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_every_module_of_the_wheel_is_found_in_the_files_of_the_host(tmp_path: Path) -> None:
    walk = next(reversed(ort_walk.recorded().values()))
    files = [name for name in walk["files"] if walk["version"] == ort.__version__]
    source = "import json\nfrom qnnbridge.ort import _import_hook\n"
    source += f"print(json.dumps({{n: _import_hook.find_in_host(n).origin for n in {files!r}}}))"
    found = json.loads(run(tmp_path, source).stdout)
    assert len(found) == len(files)
    for name, origin in found.items():
        assert Path(origin).is_relative_to(INSTALLED), name
        assert Path(origin).exists()


@pytest.mark.parametrize(
    "line",
    [
        "from onnxruntime import quantization",
        "import onnxruntime.quantization.calibrate",
        "from onnxruntime.quantization import CalibrationDataReader, quantize_static, QuantType",
        "from onnxruntime.tools import make_dynamic_shape_fixed",
        "import onnxruntime.transformers.models",
        "from onnxruntime.capi.convert_npz_to_onnx_adapter import export_lora_parameters",
        "from onnxruntime.capi import onnxruntime_collect_build_info, _ld_preload, build_and_package_info",
    ],
)
def test_an_import_works_and_gives_one_module(line: str, tmp_path: Path) -> None:
    source = f"{line}\nimport onnxruntime, sys\n"
    source += "twice = [n for n in sys.modules if n.startswith('qnnbridge.ort.quantization.')]\n"
    source += "print(twice, onnxruntime.__spec__.name)"
    ran = run(tmp_path, source)
    assert ran.stdout.split() == ["[]", "qnnbridge.ort"], ran.stderr


def test_the_error_for_a_missing_module_names_the_version(tmp_path: Path) -> None:
    ran = run(tmp_path, "import onnxruntime.quantization", without=("onnx",))
    said = ran.stderr.splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: ")
    for part in (f"of onnxruntime {ort.__version__}", "the package onnx", sys.executable, "Install it there"):
        assert part in said, said


def test_a_module_that_the_host_lacks_is_missing_as_in_process(tmp_path: Path) -> None:
    for line in (
        "import onnxruntime.training",
        "from onnxruntime.quantization import no_such",
        "import onnxruntime.tools.x",
    ):
        ran = run(tmp_path, line)
        assert ran.returncode == 1
        assert "Error: " in ran.stderr.splitlines()[-1], ran.stderr
    assert ran.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'onnxruntime.tools.x'"
    source = "import importlib.util\nfor name in ('absent', 'capi.absent', 'training'):\n"
    source += "    print(importlib.util.find_spec('onnxruntime.' + name))"
    assert run(tmp_path, source).stdout.split() == ["None"] * 3


def test_no_bytecode_is_written_to_the_folder_of_the_host(tmp_path: Path) -> None:
    cached = {*INSTALLED.rglob("*.pyc")}
    fresh = tmp_path / "pycache"
    source = "sys.pycache_prefix = None\nimport onnxruntime.tools.file_utils as m\nprint(m.__cached__)"
    ran = run(tmp_path, source, PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(fresh))
    assert "file_utils" in ran.stdout, ran.stderr
    assert {*INSTALLED.rglob("*.pyc")} == cached


QUANTIZE = """
import numpy as np
from onnx import TensorProto, helper, numpy_helper
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

random = np.random.default_rng(0)
weight = numpy_helper.from_array(random.standard_normal((8, 4), np.float32), "w")
x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, d]) for n, d in (("x", 8), ("y", 4)))
nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
graph = helper.make_graph(nodes, "g", [x], [y], [weight])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")


class Reader(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": random.standard_normal((1, 8), np.float32)} for _ in range(4)]

    def get_next(self):
        return self.left.pop() if self.left else None


quantize_static("model.onnx", "static.onnx", Reader(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt16)
quantize_dynamic("model.onnx", "dynamic.onnx")
feeds = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)}
for name in ("static.onnx", "dynamic.onnx"):
    session = onnxruntime.InferenceSession(name, providers=["CPUExecutionProvider"])
    print(name, session.run(None, feeds)[0].tobytes().hex())
    print(sorted(i.name for i in onnx.load(name).graph.initializer), len(onnx.load(name).SerializeToString()))
"""


def test_quantizing_with_the_bridge_writes_the_same_model_as_onnxruntime(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("ours", "theirs")]
    for folder in folders:
        folder.mkdir()
    ours = exec_program(program(folders[0], QUANTIZE), cwd=folders[0])
    theirs = subprocess.run(
        [sys.executable, program(folders[1], QUANTIZE)], cwd=folders[1], capture_output=True, text=True, check=True
    )
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == theirs.stdout
    for name in ("static.onnx", "dynamic.onnx"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


@pytest.mark.parametrize("other", ["reads", "writes the same", "stays"])
def test_a_file_that_another_process_has_open_is_replaced_as_soon_as_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Windows cannot replace a file that is open in another process."""
    monkeypatch.setenv("QNNBRIDGE_HOST_PYTHON", sys.executable)
    monkeypatch.setenv("QNNBRIDGE_CACHE_DIR", str(tmp_path))
    environ: dict[str, str] = {}
    _children.offer_to_children(environ)
    shown = Path(environ["PYTHONPATH"]) / "onnxruntime" / "__init__.py"
    text = shown.read_text()
    shown.write_text("of an older release")
    replaced, replace = [], os.replace

    def busy(source: str, target: str) -> None:
        replaced.append(target)
        if other == "writes the same":
            Path(target).write_text(text)
        if other != "reads" or len(replaced) < 3:
            raise PermissionError(13, "it is being used by another process", target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", busy)
    monkeypatch.setattr(_children, "_WRITE_INTERVAL_S", 0.0)
    monkeypatch.setattr(_children, "default_runtime_folder", lambda: tmp_path / "absent" / "absent")
    monkeypatch.setattr(_children, "make_private_folder", lambda path: None)
    del environ["QNNBRIDGE_DROPIN"]
    assert _children.offer_to_children(environ) is (other != "stays")
    assert shown.read_text() == ("of an older release" if other == "stays" else text)
    assert len(replaced) == {"reads": 3, "writes the same": 1, "stays": 20}[other]
    assert [name for name in os.listdir(shown.parent) if name.endswith(".part")] == []
