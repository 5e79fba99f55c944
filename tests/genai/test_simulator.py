"""Tokens on the simulator equal genai's where genai is right: one prompt, default max_length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import qnnbridge
from qnnbridge import errors, genai
from tests.genai.conftest import Folders, prompt
from tests.genai.tiny_decoders import QNN
from tests.genai.tiny_multimodal import picture, write_multimodal

pytestmark = [pytest.mark.process, pytest.mark.simulator]


@pytest.fixture(scope="module")
def og() -> Any:
    """Return a model of onnxruntime_genai in this process, with QNN."""
    module = pytest.importorskip("onnxruntime_genai")
    import onnxruntime_qnn

    module.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
    return module


def test_tokens_equal_those_of_genai(folders: Folders, host: qnnbridge.Host, og: Any) -> None:
    models = ((og, og.Model(str(folders("window-qnn")))), (genai, genai.Model(folders("window-qnn"), host=host)))
    for length in (9, 32, 40, 60):
        both = []
        for module, model in models:
            generator = module.Generator(model, module.GeneratorParams(model))
            generator.append_tokens(prompt(length))
            made = []
            for _ in range(24):
                generator.generate_next_token()
                made.append(int(generator.get_next_tokens()[0]))
            both.append(made)
        assert both[0] == both[1], length


def test_a_stage_for_images_runs_on_qnn(tmp_path: Path, host: qnnbridge.Host, og: Any) -> None:
    """Only the stage for images runs on QNN: the others have free shapes, which QNN does not support."""
    folder = write_multimodal(tmp_path / "gemma3", "gemma3", qnn=True)
    model = genai.Model(folder, host=host)
    placed = {stage.stage: stage for stage in model.placement}
    assert placed["vision"].placement.qnn_nodes > 0
    assert placed["vision"].placement.cpu_nodes == 0
    assert not placed["decoder"].wanted
    made = []
    for module, one in ((og, og.Model(str(folder))), (genai, model)):
        inputs = one.create_multimodal_processor()(
            "<|user|>a<start_of_image>b<|end|>", images=module.Images.open_bytes(picture())
        )
        generator = module.Generator(one, module.GeneratorParams(one))
        generator.set_inputs(inputs)
        tokens = []
        for _ in range(16):
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        made.append(tokens)
    assert made[0] == made[1]


def test_a_stage_for_images_that_qnn_refuses_is_refused(tmp_path: Path, host: qnnbridge.Host) -> None:
    """The model accepts images of any size: onnxruntime-genai computes the stage on the CPU, and reports nothing."""
    folder = write_multimodal(tmp_path / "qwen", "qwen2_5_vl")
    config = json.loads((folder / "genai_config.json").read_text("utf-8"))
    config["model"]["vision"]["session_options"] = {"provider_options": QNN}
    (folder / "genai_config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(errors.PlacementRefused, match="'vision'"):
        genai.Model(folder, host=host)
    assert genai.Model(folder, host=host, fallback="cpu").info.modalities == ("image",)
