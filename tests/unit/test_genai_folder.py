"""Hostile configs of models for generation cause a typed error each; facts about a stage are cached."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.contract.small_models import MODELS

from qnnbridge_host.genai.models import place
from qnnbridge_host.model.genai_folder import CONFIG, GenaiStage, read_folder
from qnnbridge_host.model.source import KnownFile
from qnnbridge_protocol.errors import GenerationFolderInvalid
from qnnbridge_protocol.specs import Placement, SessionSpec

DECODER: dict[str, Any] = {"filename": "model.onnx"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model": ' * 100_000, "is not valid JSON"),
        ('{"model": {"context_length": 1e999, "decoder": {}}}', "cannot be interpreted"),
        ('{"model": {"decoder": {"pipeline": 5}}}', "cannot be interpreted"),
        (json.dumps({"model": {"decoder": {"filename": "a\0b.onnx"}}}), "cannot be read"),
        (
            json.dumps({"model": {"decoder": {**DECODER, "session_options": []}, "eos_token_id": "x"}}),
            "cannot be interpreted",
        ),
    ],
)
def test_a_hostile_config_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(text, "utf-8")
    with pytest.raises(GenerationFolderInvalid) as refused:
        read_folder(str(tmp_path))
    assert words in str(refused.value.cause)


@pytest.mark.parametrize(
    ("model", "step"),
    [
        (5, ("append_provider", "QNN")),
        ({"decoder": []}, ("append_provider", "QNN")),
        ({"decoder": {**DECODER, "session_options": {"provider_options": 5}}}, ("clear_providers",)),
        ({"decoder": {**DECODER, "session_options": {"provider_options": [5]}}}, ("append_provider", "QNN")),
        ({"decoder": DECODER}, ("overlay", '{"model": 5}')),
        ({"decoder": DECODER}, ("overlay", "[" * 100_000)),
        ({"decoder": DECODER}, ("overlay", "[]")),
    ],
)
def test_an_invalid_change_of_a_config_is_refused(model: Any, step: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"model": model}), "utf-8")
    with pytest.raises(GenerationFolderInvalid):
        read_folder(str(tmp_path), [step])


def test_the_placement_of_a_stage_is_determined_again_for_another_file_of_the_same_size_and_date(
    tmp_path: Path,
) -> None:
    file, cache = tmp_path / "stage.onnx", str(tmp_path / "cache")
    folder: Any = SimpleNamespace(stages=[GenaiStage("decoder", str(file), (("qnn", {}),))])
    probed: list[SessionSpec] = []

    def probe(spec: SessionSpec) -> Placement:
        probed.append(spec)
        return Placement(qnn_nodes=1, known=True)

    for contents in (b"one", b"one", b"two"):
        if not file.exists() or file.read_bytes() != contents:
            fresh = tmp_path / "fresh"
            fresh.write_bytes(contents)
            os.utime(fresh, ns=(1, 1))
            os.replace(fresh, file)
        place(folder, probe, cache, {}, strict=True)
    assert len(probed) == 2


def test_the_fingerprint_depends_on_contents_and_not_on_dates(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"model": {"decoder": DECODER}}), "utf-8")
    stage, found = tmp_path / "model.onnx", []
    model = (MODELS / "mul_1.onnx").read_bytes()
    for contents, date_ns in ((model, 1), (model, 2), (model.replace(b"mul_1", b"mul_2"), 1)):
        stage.write_bytes(contents)
        os.utime(stage, ns=(date_ns, date_ns))
        found.append(read_folder(str(tmp_path), look=KnownFile.look).fingerprint)
    assert found[0] == found[1] != found[2]
    assert not read_folder(str(tmp_path)).fingerprint, "the doctor hashes no gigabytes"
