"""The bridge's result in each case in which onnxruntime-genai crashes or computes wrong tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import GenerationUnsupported, PlacementRefused, PromptRefused
from tests.genai.conftest import Folders, prompt
from tests.genai.kills import Killer
from tests.genai.plain_loop import PlainLoop
from tests.genai.tiny_decoders import END, PAD, Sizes, write_model

pytestmark = [pytest.mark.process, pytest.mark.simulator]

LAYOUTS = ["dynamic", "window", "window-qnn"]


@pytest.fixture(scope="module", params=LAYOUTS)
def pair(request: pytest.FixtureRequest, folders: Folders, host: qnnbridge.Host) -> tuple[genai.Model, PlainLoop]:
    folder = folders(request.param)
    return genai.Model(folder, host=host), PlainLoop(folder)


def generator(model: genai.Model, **options: object) -> genai.Generator:
    params = genai.GeneratorParams(model)
    params.set_search_options(**options)
    return genai.Generator(model, params)


def generate(one: genai.Generator, count: int = 1000) -> list[int]:
    made: list[int] = []
    while not one.is_done() and len(made) < count:
        one.generate_next_token()
        made.append(int(one.get_next_tokens()[0]))
    return made


Pair = tuple[genai.Model, PlainLoop]


@pytest.mark.parametrize(("length", "max_length"), [(5, 20), (5, 32), (31, 33), (33, 50), (42, 96), (1, 96)])
def test_a_prompt_shorter_than_the_window_works(pair: Pair, length: int, max_length: int) -> None:
    """onnxruntime-genai itself aborts, corrupts the heap or raises RuntimeError, depending on release and length."""
    model, truth = pair
    one = generator(model, max_length=max_length)
    one.append_tokens(prompt(length))
    made = generate(one, 24)
    assert made == truth.generate(prompt(length), min(24, max_length - length))
    assert one.token_count() == length + len(made)
    assert list(one.get_sequence(0)) == prompt(length) + made


def test_a_second_turn_works(pair: Pair) -> None:
    """onnxruntime-genai itself returns wrong tokens with exit code 0, on every layout."""
    model, truth = pair
    one = generator(model)
    one.append_tokens(prompt(10))
    first = generate(one, 5)
    one.append_tokens(prompt(8, 11))
    assert generate(one, 10) == truth.generate([*prompt(10), *first, *prompt(8, 11)], 10)
    assert one.stats.replays == (model.info.layout != "dynamic")


def test_a_prompt_in_pieces_works(pair: Pair) -> None:
    model, truth = pair
    one = generator(model)
    for at in range(0, 36, 9):
        one.append_tokens(prompt(36)[at : at + 9])
    assert generate(one, 10) == truth.generate(prompt(36), 10)


def test_the_whole_context_can_be_used(pair: Pair) -> None:
    """onnxruntime-genai itself wastes the space of pads after a short prompt, and has no space for a long prompt at
    all.
    """
    model, truth = pair
    short = generator(model)
    short.append_tokens(prompt(10))
    assert len(generate(short)) == model.info.context_length - 10
    long = generator(model)
    long.append_tokens(prompt(70))
    made = generate(long)
    assert len(made) == model.info.context_length - 70
    if model.info.layout == "dynamic":
        assert made == truth.generate(prompt(70), 100)


def test_rewind_works(pair: Pair) -> None:
    """onnxruntime-genai itself raises an error on pipelines."""
    model, truth = pair
    one = generator(model)
    one.append_tokens(prompt(12))
    made = generate(one, 6)
    one.rewind_to(8)
    one.append_tokens(prompt(5, 3))
    assert generate(one, 8) == truth.generate([*prompt(8), *prompt(5, 3)], 8)
    one.rewind_to(0)
    one.append_tokens(prompt(12))
    assert generate(one, 6) == made


@pytest.mark.parametrize("name", ["num_beams", "batch_size", "num_return_sequences"])
def test_several_sequences_from_a_pipeline_work(folders: Folders, host: qnnbridge.Host, name: str) -> None:
    model = genai.Model(folders("window"), host=host)
    with pytest.raises(GenerationUnsupported, match=f"{name}=2 does not work"):
        generator(model, **{name: 2}).append_tokens(prompt(4))


def test_a_layout_that_this_genai_cannot_run_is_refused(folders: Folders, host: qnnbridge.Host) -> None:
    with pytest.raises(GenerationUnsupported, match="cannot run sliding") as refused:
        genai.Model(folders("sliding"), host=host)
    assert "0.15.2" in str(refused.value.fix)


@pytest.mark.parametrize("option", [{"backend_path": "libQnnNothing.so"}, {"backend_path": "libQnnCpu.so"}])
def test_provider_options_that_silently_compute_on_the_cpu_are_refused(
    folders: Folders, host: qnnbridge.Host, tmp_path: Path, option: dict[str, str]
) -> None:
    import shutil

    folder = tmp_path / "wrong"
    shutil.copytree(folders("window-qnn"), folder)
    config = folder / "genai_config.json"
    config.write_text(config.read_text("utf-8").replace("libQnnHtp.so", option["backend_path"]), "utf-8")
    with pytest.raises(qnnbridge.BridgeError) as refused:
        genai.Model(folder, host=host)
    assert refused.value.fix
    if isinstance(refused.value, PlacementRefused):
        assert refused.value.details["stage"] == "context"


def test_the_placement_of_the_stages_is_reported(folders: Folders, host: qnnbridge.Host) -> None:
    model = genai.Model(folders("window-qnn"), host=host)
    told = {one.stage: one for one in model.placement}
    assert [name for name, one in told.items() if one.wanted] == ["context", "iterator"]
    assert told["context"].placement.qnn_nodes > 10
    assert {kind for _, kind in told["iterator"].placement.cpu_list} == {"GroupQueryAttention"}
    assert all(one.by_design for one in told.values())


@pytest.mark.parametrize(
    ("tokens", "words"),
    [([], "no tokens"), ([100000, 5], "outside"), ([-5, 5], "outside"), (prompt(97), "do not fit")],
)
def test_invalid_prompts_are_refused(pair: Pair, tokens: list[int], words: str) -> None:
    model, truth = pair
    one = generator(model)
    with pytest.raises(PromptRefused, match=words) as refused:
        one.append_tokens(tokens)
    assert refused.value.fix
    one.append_tokens(prompt(9))
    assert generate(one, 3) == truth.generate(prompt(9), 3)


@pytest.mark.parametrize("tokens", [[PAD] * 5, [7, PAD, 8], [7, 8, PAD]])
def test_a_prompt_with_pad_tokens_is_refused(tokens: list[int], folders: Folders, host: qnnbridge.Host) -> None:
    """onnxruntime-genai itself returns the answer to another prompt."""
    one = generator(genai.Model(folders("window"), host=host))
    with pytest.raises(PromptRefused, match="pad token 0"):
        one.append_tokens(tokens)
    dynamic = generator(genai.Model(folders("dynamic"), host=host))
    if tokens[-1] == PAD:
        with pytest.raises(PromptRefused, match="pad token 0"):
            dynamic.append_tokens(tokens)
    else:
        dynamic.append_tokens(tokens)
        assert generate(dynamic, 4) == PlainLoop(folders("dynamic")).generate(tokens, 4)


@pytest.mark.parametrize("layout", ["dynamic", "window"])
def test_a_pad_token_that_the_model_generated_counts_as_a_token_of_the_history(
    layout: str, host: qnnbridge.Host, tmp_path: Path
) -> None:
    """Check further prompts, rewinding and reading logits afterwards, and a new host that continues the history."""
    folder = write_model(tmp_path / layout, layout, sizes=Sizes(context=192, special=(10.0, -50.0, -50.0, -50.0)))
    truth = PlainLoop(folder)
    with qnnbridge.Host() as own:
        model = genai.Model(folder, host=own)
        one, history = generator(model), prompt(9)
        one.append_tokens(history)
        for turn in range(3):
            made = generate(one, 12)
            assert made == truth.generate(history, 12)
            history += made
            last = max(at for at, token in enumerate(history) if token == PAD)
            assert last > len(history) - 12
            # Rewind to the pad token, so that it is the last one.
            one.rewind_to(last + 1)
            del history[last + 1 :]
            if turn == 1:
                Killer(own).kill()
            assert np.argmax(one.get_logits()) == truth.generate(history, 1)[0]
            assert generate(one, 3) == truth.generate(history, 3)
            one.rewind_to(last + 1)
            one.append_tokens(prompt(4, turn))
            history += prompt(4, turn)
        assert generate(one, 5) == truth.generate(history, 5)
        with pytest.raises(PromptRefused, match="pad token 0"):
            one.append_tokens([7, PAD])


def test_a_history_whose_pad_tokens_do_not_fit_is_refused(tmp_path: Path) -> None:
    """With a window, tokens before the first pad token are prefilled with pads, unless they fill a whole window."""
    folder = write_model(tmp_path / "window", "window", sizes=Sizes(special=(10.0, -50.0, -50.0, -50.0)))
    with qnnbridge.Host() as own:
        one = generator(genai.Model(folder, host=own))
        one.append_tokens(prompt(9))
        assert PAD in generate(one, 12)
        with pytest.raises(PromptRefused, match="no room in the context"):
            one.append_tokens(prompt(60))


@pytest.mark.parametrize("layout", ["dynamic", "window"])
def test_an_end_token_that_equals_the_pad_token_is_a_token_of_the_prompt(
    layout: str, host: qnnbridge.Host, tmp_path: Path
) -> None:
    """As with SmolLM2, whose chat template writes the token after each message, onnxruntime-genai returns wrong
    tokens.
    """
    folder = write_model(tmp_path / layout, layout)
    config = json.loads((folder / "genai_config.json").read_text("utf-8"))
    config["model"]["pad_token_id"] = END
    (folder / "genai_config.json").write_text(json.dumps(config), "utf-8")
    model, truth = genai.Model(folder, host=host), PlainLoop(folder)
    assert (model.info.pad, genai.Tokenizer(model).pad_token_id) == (END, END)
    for tokens in ([*prompt(4), END, *prompt(5, 9)], [END, *prompt(33), END], [*prompt(6), END]):
        one = generator(model)
        one.append_tokens(tokens)
        first = generate(one, 5)
        assert first == truth.generate(tokens, 5)
        one.append_tokens([END, *prompt(3)])
        assert generate(one, 4) == truth.generate([*tokens, *first, END, *prompt(3)], 4)


def test_rows_of_a_batch_are_filled_with_the_pad_token_of_the_config(
    folders: Folders, host: qnnbridge.Host, tmp_path: Path
) -> None:
    onnxruntime_genai = pytest.importorskip("onnxruntime_genai")
    folder = write_model(tmp_path / "dynamic", "dynamic")
    config = json.loads((folder / "genai_config.json").read_text("utf-8"))
    config["model"]["pad_token_id"] = END
    (folder / "genai_config.json").write_text(json.dumps(config), "utf-8")
    rows = [[*prompt(4), END, END], prompt(6, 9)]
    told = []
    for module, model in (
        (onnxruntime_genai, onnxruntime_genai.Model(str(folder))),
        (genai, genai.Model(folder, host=host)),
    ):
        params = module.GeneratorParams(model)
        params.set_search_options(batch_size=2, max_length=14)
        one = module.Generator(model, params)
        one.append_tokens(rows)
        while not one.is_done():
            one.generate_next_token()
        told.append([list(map(int, one.get_sequence(row))) for row in range(2)])
    assert told[0] == told[1]


def test_a_log_callback_does_not_crash_the_exit_of_the_program(folders: Folders) -> None:
    """onnxruntime-genai itself aborts at exit."""
    program = f"""
import onnxruntime_genai as og
og.set_log_options(enabled=True)
og.set_log_callback(print)
model = og.Model({str(folders("dynamic"))!r})
params = og.GeneratorParams(model)
params.set_search_options(max_length=12)
generator = og.Generator(model, params)
generator.append_tokens([5, 6, 7])
while not generator.is_done():
    generator.generate_next_token()
print(og.__name__, len(generator.get_sequence(0)))
"""
    done = subprocess.run(
        [sys.executable, "-c", "import qnnbridge.dropin\n" + program], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "onnxruntime_genai 12\n"), done.stderr
