"""The `repr` of objects for generation shows facts that the application has, without a call to the host."""

from __future__ import annotations

import numpy as np
import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge_protocol.errors import BridgeError
from tests.genai.conftest import Folders, prompt

pytestmark = [pytest.mark.process, pytest.mark.simulator]


def test_a_model_shows_its_stages_on_qnn(folders: Folders, host: qnnbridge.Host) -> None:
    model = genai.Model(folders("window-qnn"), host=host)
    on_qnn = sum(stage.placement.qnn_nodes > 0 for stage in model.placement)
    assert on_qnn
    shown = repr(model)
    assert shown.startswith(f"<Model window-qnn: {model.type}, {on_qnn} of {len(model.placement)} stages on QNN")
    assert "(simulator)" in shown
    assert f"context of {model.info.context_length} tokens" in shown
    assert repr(model.info) == shown.replace("<Model ", "<GenerationModelInfo ")
    html = model._repr_html_()
    for stage in model.placement:
        placement = repr(stage.placement).removeprefix("<Placement: ").removesuffix(">")
        assert f"<li>{stage.stage}: {placement}</li>" in html
        assert repr(stage).startswith(f"<StagePlacement {stage.stage}: ")
    model.close()
    assert repr(model).startswith("<Model window-qnn: not loaded; the next call loads the model again, ")


def test_a_stage_that_left_qnn_is_marked() -> None:
    whole = qnnbridge.Placement(qnn_nodes=4, cpu_nodes=0, backend="htp")
    half = qnnbridge.Placement(qnn_nodes=3, cpu_nodes=1, backend="htp", cpu_list=(("<b>a</b>", "Mul"),))

    def info(*stages: genai.StagePlacement) -> genai.GenerationModelInfo:
        facts = ("phi3", "CPU", "dynamic", None, 64, 300, (2,), None, {}, "f", "<i>m</i>", "0.18")
        return genai.GenerationModelInfo(*facts, stages=stages)

    good = genai.StagePlacement("decoder", True, False, whole)
    assert "&#9888;" not in info(good)._repr_html_()
    for_good = genai.StagePlacement("embeddings", False, True, half)
    assert "&#9888;" not in info(good, for_good)._repr_html_(), "it stays on the CPU by design"
    left = info(good, genai.StagePlacement("head", True, False, half))
    assert repr(left) == "<GenerationModelInfo <i>m</i>: phi3, 2 of 2 stages on QNN, context of 64 tokens>"
    assert "&#9888; <b>2 of 2 stages on QNN</b>" in left._repr_html_()
    assert "&lt;i&gt;m&lt;/i&gt;" in left._repr_html_()
    assert "<i>" not in left._repr_html_()


def test_tokenizer_params_and_generator_can_be_shown_without_a_call(folders: Folders, host: qnnbridge.Host) -> None:
    model = genai.Model(folders("dynamic"), host=host)
    tokenizer = genai.Tokenizer(model)
    tokenizer.update_options(skip_special_tokens=True)
    assert repr(tokenizer) == "<Tokenizer dynamic: skip_special_tokens=true>"

    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=14, temperature=0.5, do_sample=False)
    assert repr(params) == "<GeneratorParams dynamic: max_length=14, temperature=0.5, do_sample=0>"
    generator = genai.Generator(model, params)
    assert repr(generator) == "<Generator dynamic: 0 tokens>"
    generator.append_tokens(prompt(9))
    decoder = tokenizer.create_stream()
    generator.generate_next_token()
    decoder.decode(int(generator.get_next_tokens()[0]))
    shown = [repr(generator), repr(decoder)]
    assert shown == ["<Generator dynamic: 10 tokens>", "<TokenizerStream dynamic: 1 token decoded>"]

    batch = genai.GeneratorParams(model)
    batch.set_search_options(batch_size=2, max_length=14)
    several = genai.Generator(model, batch)
    several.append_tokens(np.array([prompt(9, n) for n in range(2)], np.int32))
    several.generate_next_token()
    objects = [model, tokenizer, params, generator, decoder, several]
    before = [(repr(one), one._repr_html_()) for one in objects]
    assert before[-1][0] == "<Generator dynamic: 2 sequences, 1 step>"

    host.restart()
    generation = host.stats.generation
    assert [(repr(one), one._repr_html_()) for one in objects] == before
    assert host.stats.generation == generation, "showing starts no host"
    generator.generate_next_token()
    assert repr(generator) == "<Generator dynamic: 11 tokens, continued in a new host 1 time>"


def test_an_answer_shows_its_beginning(folders: Folders, host: qnnbridge.Host) -> None:
    pool = genai.GeneratorPool(2)
    assert repr(pool) == "<GeneratorPool: 0 idle, 0 in use, at most 2>"
    model = genai.Model(folders("dynamic"), host=host)
    with genai.generate(model, prompt(9), max_tokens=3, temperature=0, pool=pool) as stream:
        assert repr(stream) == '<TextStream dynamic: 0 tokens after a prompt of 9, not finished, "">'
        assert repr(pool) == "<GeneratorPool: 0 idle, 1 in use, at most 2>"
        for _ in stream:
            pass
        assert repr(stream).startswith("<TextStream dynamic: ")
        assert f"finished: {stream.finish_reason}" in repr(stream)
    assert repr(pool) == "<GeneratorPool: 1 idle, 0 in use, at most 2>"
    stream.text = "<script>\n" + 30 * "word " + "\x1b[2J"
    assert repr(stream).endswith('"<script> word word word word word word word word word word w...">')
    assert "<script>" not in stream._repr_html_()
    assert "\x1b" not in repr(stream) + stream._repr_html_()


def test_objects_without_a_host_can_be_shown(host: qnnbridge.Host) -> None:
    config = genai.Config("/home/somebody/a model/phi-qnn")
    assert repr(config) == "<Config phi-qnn: 0 changes>"
    config.append_provider("qnn")
    assert repr(config) == "<Config phi-qnn: 1 change>"
    assert "append_provider(&#x27;qnn&#x27;)" in config._repr_html_()
    tensors = genai.NamedTensors()
    tensors["x"] = np.zeros((2, 3), np.float32)
    assert repr(tensors["x"]) == "<Tensor: float32[2, 3]>"
    assert repr(tensors) == "<NamedTensors: x float32[2, 3]>"
    unmade = object.__new__(genai.Model)
    assert repr(unmade) == "<Model: not loaded>"
    with pytest.raises(BridgeError):
        unmade.__init__(config, host=host)  # type: ignore[misc]
    assert repr(unmade) == "<Model phi-qnn: not loaded>"
    assert repr(object.__new__(genai.Generator)) == "<Generator: facts cannot be read (AttributeError)>"
