"""One server and one private host for all tests of this folder, most of which do not change the server's state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("uvicorn")

import serve_models as models
from serving import PRIVATE, Server, serving

import qnnbridge


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of models as `--models` accepts it, in both layouts."""
    folder = tmp_path_factory.mktemp("served")
    for datatype, element in models.ELEMENTS.items():
        models.write_identity(folder / f"same-{datatype}.onnx", element)
    models.write_identity(folder / "scalar.onnx", models.ELEMENTS["FP32"], [])
    versions = folder / "versions"
    for version in ("1", "3", "note"):
        (versions / version).mkdir(parents=True)
    models.write_counter(versions / "1" / "model.onnx")
    models.write_identity(versions / "3" / "model.onnx", models.ELEMENTS["INT32"], ["n", 2])
    models.write_counter(folder / "counter.onnx")
    return folder


@pytest.fixture(scope="session")
def server(private_temporary_folder: Path, model_folder: Path) -> Iterator[Server]:
    real = ["pnet", "onet", "silero_vad_openvino_16k", "logreg_iris"]
    named = [option for name in real for option in ("--model", f"{name}={models.MODELS / name}.onnx")]
    with serving(*PRIVATE, *named, "--models", model_folder, "--max-request", "32M") as running:
        yield running
        assert running.end() == 0, running.errors()


@pytest.fixture(scope="session")
def direct_host(private_temporary_folder: Path) -> Iterator[qnnbridge.Host]:
    """Host for sessions without a server."""
    with qnnbridge.Host() as host:
        host.start()
        yield host
