"""The classes compared with onnxruntime_genai in this process, on a model that genai runs correctly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge_protocol.errors import GenerationError, PromptRefused
from tests import needs
from tests.dropin.genai_table import PAGE, page
from tests.genai.conftest import Folders, prompt
from tests.genai.plain_loop import PlainLoop
from tests.genai.tiny_decoders import VOCABULARY

pytestmark = [pytest.mark.process, pytest.mark.simulator]

og = pytest.importorskip("onnxruntime_genai")

TEXTS = ["The NPU of a PC", "Grüße, 世界 \U0001f600!", "a\nb\tc  d", "<|user|>hi<|end|>", ""]


class Pair:
    """A model in this process and in the host."""

    def __init__(self, folder: Path, host: qnnbridge.Host) -> None:
        self.there, self.here = genai.Model(folder, host=host), og.Model(str(folder))
        self.tokenizer_there, self.tokenizer_here = genai.Tokenizer(self.there), og.Tokenizer(self.here)


@pytest.fixture(scope="module")
def pair(folders: Folders, host: qnnbridge.Host) -> Pair:
    return Pair(folders("dynamic"), host)


def generate(module: Any, model: Any, count: int, **options: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Return the tokens in the order of generation, and the final sequences."""
    params = module.GeneratorParams(model)
    params.set_search_options(**options)
    generator = module.Generator(model, params)
    rows = int(options.get("batch_size", 1))
    tokens = [prompt(9, n) for n in range(rows)]
    generator.append_tokens(np.array(tokens, np.int32) if rows > 1 else np.array(tokens[0], np.int32))
    made: list[list[int]] = []
    while not generator.is_done() and len(made) < count:
        generator.generate_next_token()
        made.append([int(one) for one in generator.get_next_tokens()])
    return made, [[int(one) for one in generator.get_sequence(n)] for n in range(rows)]


def test_a_finished_batch_has_no_further_token(pair: Pair) -> None:
    params = genai.GeneratorParams(pair.there)
    params.set_search_options(batch_size=2, max_length=11)
    generator = genai.Generator(pair.there, params)
    generator.append_tokens(np.array([prompt(9, n) for n in range(2)], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    with pytest.raises(GenerationError, match="is done"):
        generator.generate_next_token()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 12},
        {"min_length": 20, "max_length": 40},
        {"repetition_penalty": 1.3},
        {"do_sample": True, "top_k": 30, "random_seed": 11, "temperature": 0.8},
        {"do_sample": True, "top_p": 0.9, "random_seed": 3},
        {"num_beams": 3, "max_length": 25},
        {"batch_size": 3, "max_length": 25},
        {"num_beams": 2, "num_return_sequences": 2, "max_length": 25},
    ],
)
def test_tokens_equal_those_of_genai(pair: Pair, options: dict[str, Any]) -> None:
    assert generate(genai, pair.there, 30, **options) == generate(og, pair.here, 30, **options)


def test_the_tokenizer_equals_that_of_genai(pair: Pair) -> None:
    there, here = pair.tokenizer_there, pair.tokenizer_here
    for text in TEXTS:
        tokens = here.encode(text)
        assert there.encode(text).tolist() == tokens.tolist()
        assert there.encode(text).dtype == np.int32
        assert there.decode(tokens) == here.decode(tokens)
    assert there.encode_batch(TEXTS[:3]).as_numpy().tolist() == here.encode_batch(TEXTS[:3]).as_numpy().tolist()
    assert there.decode_batch(there.encode_batch(TEXTS[:2])) == here.decode_batch(here.encode_batch(TEXTS[:2]))
    assert there.to_token_id("<|user|>") == here.to_token_id("<|user|>")
    assert (there.bos_token_id, there.pad_token_id) == (here.bos_token_id, here.pad_token_id)
    assert there.eos_token_ids.tolist() == list(here.eos_token_ids)


def test_streams_return_the_same_pieces_as_genai(pair: Pair) -> None:
    there, here = pair.tokenizer_there.create_stream(), pair.tokenizer_here.create_stream()
    tokens = [int(one) for text in TEXTS for one in pair.tokenizer_here.encode(text)]
    assert [there.decode(one) for one in tokens] == [here.decode(one) for one in tokens]


def test_a_stream_works_at_the_same_time_as_a_generator(pair: Pair) -> None:
    """Tokens that were generated ahead are also decoded ahead; a stream that gets other tokens is right, too."""
    params = genai.GeneratorParams(pair.there)
    generator = genai.Generator(pair.there, params)
    generator.append_tokens(prompt(9))
    there, here = pair.tokenizer_there.create_stream(), pair.tokenizer_here.create_stream()
    for number in range(20):
        generator.generate_next_token()
        token = int(generator.get_next_tokens()[0])
        if number % 5 == 4:
            token = 60  # not the tokens of the generator
        assert there.decode(token) == here.decode(token)


def test_a_stream_whose_call_failed_decodes_the_same_token_again(pair: Pair) -> None:
    tokens = pair.tokenizer_here.encode(TEXTS[1])
    there, here = pair.tokenizer_there.create_stream(), pair.tokenizer_here.create_stream()
    for number, token in enumerate(tokens):
        if number in (0, 3):
            # The first error is that of the request that creates the stream and decodes its first token.
            with pytest.raises(PromptRefused):
                there.decode(VOCABULARY + 5)
        assert there.decode(token) == here.decode(token)


def test_the_first_token_is_returned_with_the_prompt(pair: Pair) -> None:
    expected, _ = generate(og, pair.here, 3, do_sample=False, max_length=40)
    with genai.generate(
        pair.there, prompt(9, 0), tokenizer=pair.tokenizer_there, max_tokens=3, temperature=0
    ) as answer:
        # One request for the prompt with its first token, and none before the application requests the second.
        assert answer.stats.steps == 1
        list(answer)
    assert answer.tokens == [row[0] for row in expected]
    assert answer.stats.first_token_s is not None
    assert answer.stats.first_token_s > 0


def test_logits_and_outputs_equal_those_of_genai(pair: Pair) -> None:
    def look(module: Any, model: Any) -> list[Any]:
        generator = module.Generator(model, module.GeneratorParams(model))
        generator.append_tokens(np.array(prompt(9), np.int32))
        seen = [generator.get_logits()]
        for _ in range(3):
            generator.generate_next_token()
        seen.append(generator.get_logits())
        forced = np.full((1, 1, VOCABULARY), -1e9, np.float32)
        forced[0, 0, 42] = 1e9
        generator.set_logits(forced)
        generator.generate_next_token()
        return [*seen, generator.get_next_tokens(), generator.get_output("logits").shape[-1]]

    for there, here in zip(look(genai, pair.there), look(og, pair.here), strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-4)


def test_reading_logits_between_steps_changes_no_token(pair: Pair) -> None:
    plain, _ = generate(genai, pair.there, 20)
    generator = genai.Generator(pair.there, genai.GeneratorParams(pair.there))
    generator.append_tokens(prompt(9, 0))
    made = []
    for number in range(20):
        generator.generate_next_token()
        made.append([int(generator.get_next_tokens()[0])])
        if number in (6, 7, 13):
            assert int(generator.get_logits().argmax()) == plain[number + 1][0]
    assert made == plain


def test_guidance_gives_the_same_tokens_as_genai(pair: Pair) -> None:
    params = genai.GeneratorParams(pair.there)
    params.set_guidance("regex", "(cat|dog)+")
    generator = genai.Generator(pair.there, params)
    generator.append_tokens(prompt(9))
    made = []
    while not generator.is_done() and len(made) < 12:
        generator.generate_next_token()
        made.append(int(generator.get_next_tokens()[0]))
    text = pair.tokenizer_there.decode(made)
    assert text.replace("cat", "").replace("dog", "").strip("cdoat") == ""
    assert text[:3] in ("cat", "dog")


def test_the_config_gives_the_same_settings_as_genai(folders: Folders, host: qnnbridge.Host) -> None:
    config = genai.Config(folders("dynamic"))
    config.overlay('{"search": {"max_length": 14}}')
    config.clear_providers()
    model = genai.Model(config, host=host)
    assert model.info.search["max_length"] == 14
    assert genai.GeneratorParams(model).get_search_options()["max_length"] == 14
    assert len(generate(genai, model, 50)[0]) == 5
    assert (model.type, model.device_type) == ("llama", "CPU")


def test_a_model_can_be_loaded_from_bytes(folders: Folders, host: qnnbridge.Host, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "without"
    shutil.copytree(folders("dynamic"), folder)
    data = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").unlink()
    config = genai.Config(folder)
    config.add_model_data("model.onnx", data)
    model = genai.Model(config, host=host)
    assert generate(genai, model, 8) == generate(genai, genai.Model(folders("dynamic"), host=host), 8)


def test_adapters_give_the_same_tokens_as_genai(folders: Folders, host: qnnbridge.Host, tmp_path: Path) -> None:
    model = genai.Model(folders("dynamic"), host=host)
    adapters = genai.Adapters(model)
    with pytest.raises(qnnbridge.BridgeError):
        adapters.load(tmp_path / "none.onnx_adapter", "none")


def test_the_table_of_names_is_complete() -> None:
    assert PAGE.read_text("utf-8") == page(og)


# --- the end token ---


START = [10, 20, 30]


def ending(module: Any, folder: Path, end: int, **options: Any) -> Any:
    """Return the model with another end token."""
    config = module.Config(str(folder))
    config.overlay(f'{{"model": {{"eos_token_id": [{end}]}}}}')
    return module.Model(config, **options)


def until_done(module: Any, model: Any) -> tuple[list[int], list[int]]:
    generator, made = module.Generator(model, module.GeneratorParams(model)), []
    generator.append_tokens(START)
    while not generator.is_done():
        generator.generate_next_token()
        made.append(int(generator.get_next_tokens()[0]))
    return made, [int(one) for one in generator.get_sequence(0)]


@pytest.mark.parametrize("kind", ["dynamic", "window"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_an_answer_ends_with_its_end_token(kind: str, count: int, folders: Folders, host: qnnbridge.Host) -> None:
    """The end token is the first one, or in the middle of a step, or at the end of a step."""
    truth = PlainLoop(folders(kind))
    answer = truth.generate(START, 20)
    assert answer[count] not in answer[:count]
    model = ending(genai, folders(kind), answer[count], host=host)
    expected = (answer[: count + 1], [*START, *answer[:count]])
    assert until_done(genai, model) == expected
    if kind == "dynamic":
        assert until_done(og, ending(og, folders(kind), answer[count])) == expected
    with genai.generate(model, START) as stream:
        assert "".join(stream)
    assert stream.finish_reason == "stop"
    assert stream.tokens == answer[: count + 1]


def test_a_rewind_that_drops_nothing_leaves_a_finished_generation_finished(
    folders: Folders, host: qnnbridge.Host
) -> None:
    for kind in ("dynamic", "window"):
        answer = PlainLoop(folders(kind)).generate(START, 5)
        model = ending(genai, folders(kind), answer[4], host=host)
        one = genai.Generator(model, genai.GeneratorParams(model))
        one.append_tokens(START)
        one.rewind_to(len(START))
        while not one.is_done():
            one.generate_next_token()
            if not one.is_done():
                one.rewind_to(one.token_count())
        assert list(one.get_sequence(0)) == [*START, *answer[:4]]
        one.rewind_to(one.token_count())
        assert one.is_done()
        with pytest.raises(GenerationError, match="done"):
            one.generate_next_token()
        one.rewind_to(one.token_count() - 1)
        assert not one.is_done()
        one.generate_next_token()
        assert list(one.get_sequence(0)) == [*START, *answer[:4]]


@needs.posix
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_generation_continues_in_a_fork_and_in_its_parent(folders: Folders, host: qnnbridge.Host) -> None:
    truth = PlainLoop(folders("dynamic")).generate(START, 12)
    model = genai.Model(folders("dynamic"), host=host)
    one = genai.Generator(model, genai.GeneratorParams(model))
    one.append_tokens(START)
    for _ in range(5):
        one.generate_next_token()

    def go_on() -> bool:
        for _ in range(7):
            one.generate_next_token()
        return list(one.get_sequence(0)) == [*START, *truth]

    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if go_on() else 2
            host.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert go_on()


def test_a_turn_after_an_end_token_can_be_rewound_to_before_that_token(
    folders: Folders, host: qnnbridge.Host
) -> None:
    for kind in ("dynamic", "window"):
        truth = PlainLoop(folders(kind))
        answer = truth.generate(START, 5)
        model = ending(genai, folders(kind), answer[4], host=host)
        one = genai.Generator(model, genai.GeneratorParams(model))
        one.append_tokens(START)
        while not one.is_done():
            one.generate_next_token()
        assert list(one.get_sequence(0)) == [*START, *answer[:4]]
        one.append_tokens(prompt(4, 3))
        one.generate_next_token()
        assert list(one.get_next_tokens()) == truth.generate([*START, *answer[:4], *prompt(4, 3)], 1)
        one.rewind_to(len(START) + 2)
        while not one.is_done():
            one.generate_next_token()
        assert list(one.get_sequence(0)) == [*START, *answer[:4]]
