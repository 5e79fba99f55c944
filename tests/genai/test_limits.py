"""Limits of generation: one deadline for everything, schemas that crash a host, indices and sizes, invalid
files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import DeadlineExceeded, GenerationError, GenerationFolderInvalid, OptionError
from qnnbridge.genai._remote import end_overdue
from tests.genai.conftest import Folders, prompt

pytestmark = pytest.mark.process

ENDLESS = (
    "{% for a in range(100000) %}{% for b in range(100000) %}{% if b < 0 %}x{% endif %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("schema", [{"const": -(2**63)}, {"properties": {"a": {"enum": [-(2**63) + 1]}}}])
def test_a_schema_that_crashed_the_host_is_refused(
    schema: dict[str, object], folders: Folders, host: qnnbridge.Host
) -> None:
    model, before = genai.Model(folders("dynamic"), host=host), host.stats.crashes
    with pytest.raises(GenerationError, match="out of range"):
        genai.generate(model, "x", max_tokens=2, guidance=("json_schema", json.dumps(schema)))
    assert host.stats.crashes == before


def test_a_schema_that_the_library_refuses_raises_an_error_about_the_schema(
    folders: Folders, host: qnnbridge.Host
) -> None:
    model = genai.Model(folders("dynamic"), host=host)
    for schema in ({"$ref": "#/nowhere"}, {"not": {}}, {"type": "integer", "minimum": 5, "maximum": 1}):
        with pytest.raises(GenerationError) as caught:
            genai.generate(model, "x", max_tokens=2, guidance=("json_schema", json.dumps(schema)))
        assert not isinstance(caught.value, GenerationFolderInvalid)
        assert caught.value.details["guidance"]


def test_a_quarantined_request_does_not_quarantine_other_requests(folders: Folders, host: qnnbridge.Host) -> None:
    """A crash counts against the request with all its parameters, never against the model alone."""
    remote = genai.Model(folders("dynamic"), host=host)._remote
    seen = set()
    for options in ({}, {"max_length": 50}, {"do_sample": True}):
        for guidance in (None, ("regex", "a+", False), ("regex", "b+", False)):
            recipe = genai._recipe.GenerationRecipe(dict(options), guidance)  # type: ignore[attr-defined]
            generation = genai._remote_generation.RemoteGeneration(remote, recipe)  # type: ignore[attr-defined]
            for tokens in ([5, 6], [5, 7]):
                seen.add(generation._context_of(tokens).fingerprint)
                assert generation._context_of(tokens).fingerprint == generation._context_of(tokens).fingerprint
    assert len(seen) == 18
    assert remote.context.fingerprint not in seen
    calls = [remote.context_of("x", ["encode", {"texts": [text]}]).fingerprint for text in ("a", "b")]
    assert len({*calls, remote.context.fingerprint}) == 3


def test_one_deadline_covers_all_tokenizer_calls_to_a_host_that_hangs(folders: Folders) -> None:
    with qnnbridge.Host() as own:
        model = genai.Model(folders("dynamic"), host=own)
        process = psutil.Process(own.info.pid)
        process.send_signal(signal.SIGSTOP)
        try:
            for given in ("a text", [{"role": "user", "content": "x"}], prompt(5)):
                begun = time.monotonic()
                with pytest.raises(DeadlineExceeded):
                    genai.generate(model, given, max_tokens=3, timeout=0.5)
                assert time.monotonic() - begun < 10
        finally:
            process.send_signal(signal.SIGCONT)


def test_a_chat_template_that_never_ends_is_abandoned_and_its_host_replaced(folders: Folders) -> None:
    with qnnbridge.Host() as own:
        model = genai.Model(folders("dynamic"), host=own)
        tokenizer = genai.Tokenizer(model)
        messages = [{"role": "user", "content": "x"}]
        with pytest.raises(DeadlineExceeded) as caught:
            genai.generate(model, messages, tokenizer=tokenizer, max_tokens=3, timeout=1, template=ENDLESS)
        assert caught.value.details["state"] == "still-running"
        first = own.stats.generation
        assert end_overdue(own, 0.2)
        assert "".join(genai.generate(model, messages, max_tokens=3, timeout=60)) is not None
        assert own.stats.generation == first + 1
        assert own.stats.crashes == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes in folders")
@pytest.mark.parametrize("name", ["tokenizer.json", "genai_config.json"])
def test_a_pipe_in_place_of_a_file_is_refused(
    name: str, folders: Folders, host: qnnbridge.Host, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders("dynamic"), folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(GenerationFolderInvalid, match=f"{name} in model is neither"):
        genai.Model(folder, host=host, timeout=20)


def test_an_index_without_a_sequence_is_refused(folders: Folders, host: qnnbridge.Host) -> None:
    model, before = genai.Model(folders("dynamic"), host=host), host.stats.crashes
    params = genai.GeneratorParams(model)
    params.set_search_options(batch_size=2)
    batch = genai.Generator(model, params)
    batch.append_tokens([prompt(4), prompt(4, 8)])
    batch.generate_next_token()
    assert [len(batch.get_sequence(index)) for index in (0, 1)] == [5, 5]
    single = genai.Generator(model, genai.GeneratorParams(model))
    single.append_tokens(prompt(4))
    for generator in (batch, single):
        for index in (2, 7, -1, 10**9, 2**70):
            with pytest.raises(IndexError):
                generator.get_sequence(index)
    with pytest.raises(OptionError, match="no sequence 7"):  # the host checks automatically
        batch._remote.sequence(7)  # type: ignore[attr-defined]
    assert host.stats.crashes == before


@pytest.mark.parametrize("name", ["batch_size", "num_beams", "num_return_sequences"])
@pytest.mark.parametrize("size", [0, -1, 0.5, 10**6, -(2**40)])
def test_batch_sizes_are_checked(name: str, size: float, folders: Folders, host: qnnbridge.Host) -> None:
    model, before = genai.Model(folders("dynamic"), host=host), host.stats.crashes
    params = genai.GeneratorParams(model)
    params.set_search_options(**{name: size})
    with pytest.raises((OptionError, GenerationError)):
        genai.Generator(model, params).append_tokens(prompt(4))
    assert host.stats.crashes == before


def test_tokens_outside_of_the_vocabulary_and_tensors_of_another_size_raise_an_error(
    folders: Folders, host: qnnbridge.Host
) -> None:
    model, before = genai.Model(folders("dynamic"), host=host), host.stats.crashes
    tokenizer = genai.Tokenizer(model)
    for token in (10**6, -1, 2**40):
        for call in (tokenizer.decode, lambda tokens: tokenizer.create_stream().decode(tokens[0])):
            with pytest.raises(GenerationError):
                call([token])
        with pytest.raises(GenerationError):
            genai.Generator(model, genai.GeneratorParams(model)).append_tokens([token])
    generator = genai.Generator(model, genai.GeneratorParams(model))
    generator.append_tokens(prompt(4))
    size = generator.get_logits().size
    for count in (0, 1, size - 1, size + 1):
        with pytest.raises(qnnbridge.BridgeError):
            generator.set_logits([0.0] * count)
    with pytest.raises(qnnbridge.BridgeError):
        generator.get_output("nothing of this name")
    for length in (-1, 5, 2**40):
        with pytest.raises(GenerationError):
            generator.rewind_to(length)
    assert host.stats.crashes == before
