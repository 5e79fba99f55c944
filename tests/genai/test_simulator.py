"""Tokens on the simulator are genai's own where genai is right: one prompt, default max_length."""

from __future__ import annotations

import pytest

import qnnbridge
from qnnbridge import genai
from tests.genai.conftest import Folders, prompt

pytestmark = [pytest.mark.process, pytest.mark.simulator]


def test_tokens_are_genais_own(folders: Folders, host: qnnbridge.Host) -> None:
    og = pytest.importorskip("onnxruntime_genai")
    import onnxruntime_qnn

    og.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
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
