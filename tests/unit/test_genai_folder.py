"""Hostile configs of models for generation: one typed error each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qnnbridge_host.model.genai_folder import CONFIG, read_folder
from qnnbridge_protocol.errors import GenerationFolderInvalid

DECODER: dict[str, Any] = {"filename": "model.onnx"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model": ' * 100_000, "no JSON"),
        ('{"model": {"context_length": 1e999, "decoder": {}}}', "not understood"),
        ('{"model": {"decoder": {"pipeline": 5}}}', "not understood"),
        (json.dumps({"model": {"decoder": {"filename": "a\0b.onnx"}}}), "cannot be read"),
        (json.dumps({"model": {"decoder": {**DECODER, "session_options": []}, "eos_token_id": "x"}}), "understood"),
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
def test_a_change_of_a_config_that_does_not_fit_it_is_refused(
    model: Any, step: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"model": model}), "utf-8")
    with pytest.raises(GenerationFolderInvalid):
        read_folder(str(tmp_path), [step])
