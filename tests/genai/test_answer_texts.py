"""Texts of answers, which the host decodes in the steps that generate the tokens, against onnxruntime_genai."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge._transport.channel import Channel, ReplyStream
from qnnbridge.errors import OptionError
from tests.genai.conftest import Folders, prompt
from tests.genai.kills import Killer
from tests.genai.tiny_decoders import VOCABULARY, write_model

pytestmark = [pytest.mark.process, pytest.mark.simulator]

og = pytest.importorskip("onnxruntime_genai")


class Decoder:
    """Return a tokenizer of onnxruntime_genai in this process."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._model = og.Model(str(folder))
        self._tokenizer = og.Tokenizer(self._model)
        if options:
            self._tokenizer.update_options(**options)
        self.ends = json.loads((folder / "genai_config.json").read_text("utf-8"))["model"]["eos_token_id"]
        self.ends = self.ends if isinstance(self.ends, list) else [self.ends]

    def token(self, word: str) -> int:
        return int(self._tokenizer.to_token_id(word))

    def text(self, answer: Sequence[int]) -> str:
        stream = self._tokenizer.create_stream()
        return "".join(stream.decode(token) for token in answer if token not in self.ends)


def ask(model: genai.Model, tokens: Sequence[int], count: int = 24, **options: Any) -> genai.TextStream:
    with genai.generate(model, tokens, max_tokens=count, **{"temperature": 0, **options}) as answer:
        pieces = list(answer)
    assert "".join(pieces) == answer.text
    return answer


@pytest.fixture
def own_host() -> Any:
    with qnnbridge.Host() as host:
        yield host


@pytest.mark.parametrize("kind", ["dynamic", "window"])
def test_texts_equal_those_of_a_stream_in_process(kind: str, folders: Folders, host: qnnbridge.Host) -> None:
    model, here, texts = genai.Model(folders(kind), host=host), Decoder(folders(kind)), list[str]()
    for number in range(6):
        answer = ask(model, prompt(9, number))
        assert answer.text == here.text(answer.tokens)
        texts.append(answer.text)
    assert len({*texts} - {""}) > 2


def biased_model(folder: Path, word: str = "") -> int:
    """Write a model that generates only this special token, or only its end token. Return the token."""
    write_model(folder, "dynamic")
    here = Decoder(folder)
    token = here.token(word) if word else here.ends[0]
    path = folder / "model.onnx"
    model = onnx.load(path)
    (last,) = (node for node in model.graph.node if "logits" in node.output)
    last.output[list(last.output).index("logits")] = "before"
    bias = np.zeros(VOCABULARY, np.float32)
    bias[token] = 1e4
    model.graph.initializer.append(onnx.numpy_helper.from_array(bias, "bias"))
    model.graph.node.append(onnx.helper.make_node("Add", ["before", "bias"], ["logits"]))
    onnx.save(model, path)
    return int(token)


def test_the_options_of_the_tokenizer_are_used(tmp_path: Path, host: qnnbridge.Host) -> None:
    special, found = biased_model(tmp_path / "model", "<|user|>"), list[str]()
    model = genai.Model(tmp_path / "model", host=host)
    for skip in ("true", "false"):
        tokenizer, here = genai.Tokenizer(model), Decoder(tmp_path / "model", skip_special_tokens=skip)
        tokenizer.update_options(skip_special_tokens=skip)
        answer = ask(model, prompt(9), 3, tokenizer=tokenizer)
        assert answer.tokens == [special] * 3
        assert answer.text == here.text(answer.tokens)
        found.append(answer.text)
    assert found == ["", "<|user|>" * 3]


def test_a_text_continues_in_the_next_host(folders: Folders, own_host: qnnbridge.Host) -> None:
    model, here, killer = genai.Model(folders("dynamic"), host=own_host), Decoder(folders("dynamic")), None
    expected = ask(model, prompt(9)).text
    killer = Killer(own_host)
    with genai.generate(model, prompt(9), max_tokens=24, temperature=0) as answer:
        for number, _ in enumerate(answer):
            if number in (0, 5):
                killer.kill()
    assert killer.kills == 2
    assert answer.stats.restarts >= 1
    assert answer.text == expected == here.text(answer.tokens)


def test_an_end_token_has_no_text_even_after_a_prompt_that_ends_with_one(
    tmp_path: Path, host: qnnbridge.Host
) -> None:
    end = biased_model(tmp_path / "model")
    model, pool = genai.Model(tmp_path / "model", host=host), genai.GeneratorPool(2)
    for tokens in ([*prompt(5), end], prompt(5), [*prompt(5), end, end]):
        answer = ask(model, tokens, pool=pool)
        assert (answer.tokens, answer.text, answer.finish_reason) == ([end], "", "stop")


def test_the_first_request_returns_text_and_later_steps_return_the_rest(
    folders: Folders, host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sent = genai.Model(folders("dynamic"), host=host), list[str]()
    tokenizer = genai.Tokenizer(model)
    ask(model, prompt(9), tokenizer=tokenizer)  # loads the model and the tokenizer
    call, opened = Channel.call, ReplyStream.open.__func__  # type: ignore[attr-defined]
    one = threading.get_ident()

    def counted(channel: Channel, header: dict[str, Any], *rest: Any) -> Any:
        if threading.get_ident() == one:
            sent.append(header["operation"])
        return call(channel, header, *rest)

    def counted_open(kind: type, channel: Channel, header: dict[str, Any], *rest: Any) -> Any:
        sent.append(header["operation"])
        return opened(kind, channel, header, *rest)

    monkeypatch.setattr(Channel, "call", counted)
    monkeypatch.setattr(ReplyStream, "open", classmethod(counted_open))
    with genai.generate(model, prompt(9), tokenizer=tokenizer, max_tokens=30, temperature=0) as answer:
        assert sent == ["generator"]
        list(answer)
    # One token with the prompt, then 8, 16 and 5.
    assert sent == ["generator", "step", "step", "step"]
    sent.clear()
    messages = [{"role": "user", "content": "hello"}]
    ask(model, messages, 1, tokenizer=tokenizer)  # type: ignore[arg-type]
    assert sent == ["apply_chat_template", "generator"]


def test_a_text_of_the_template_is_encoded_with_the_options_of_its_time(
    folders: Folders, host: qnnbridge.Host
) -> None:
    model, message = genai.Model(folders("dynamic"), host=host), json.dumps([{"role": "user", "content": "so"}])
    tokenizer, found = genai.Tokenizer(model), []
    for add in ("true", "false", "true"):
        other = genai.Tokenizer(model)
        tokenizer.update_options(add_special_tokens=add)
        other.update_options(add_special_tokens=add)
        text = tokenizer.apply_chat_template(message)
        for _ in range(2):
            tokens = tokenizer.encode(text)
            assert list(tokens) == list(other.encode(text))
            tokens[:] = 0  # the application may change its copy
        found.append(text)
        tokenizer.update_options(add_special_tokens="false")
        other.update_options(add_special_tokens="false")
        assert list(tokenizer.encode(text)) == list(other.encode(text))
    assert len(set(found)) == 1


def test_an_answer_may_end_when_its_next_step_was_requested(
    tmp_path: Path, folders: Folders, host: qnnbridge.Host
) -> None:
    full = ask(genai.Model(folders("dynamic"), host=host), prompt(9), 40).tokens
    lengths = sorted({full.index(token) + 1 for token in full})
    assert len(lengths) > 8
    for length in lengths:
        folder = tmp_path / str(length)
        shutil.copytree(folders("dynamic"), folder)
        config = json.loads((folder / "genai_config.json").read_text("utf-8"))
        config["model"]["eos_token_id"] = full[length - 1]
        (folder / "genai_config.json").write_text(json.dumps(config), "utf-8")
        model, pool = genai.Model(folder, host=host), genai.GeneratorPool(1)
        first = ask(model, prompt(9), 40, pool=pool)
        assert (first.tokens, first.finish_reason) == (full[:length], "stop")
        turn = [*prompt(9), *first.tokens, *prompt(4, 1)]
        second = ask(model, turn, 40, pool=pool)
        assert second.cached_tokens
        assert second.tokens == ask(model, turn, 40).tokens


def test_a_cancel_reaches_the_request_that_creates_the_generator(tmp_path: Path, host: qnnbridge.Host) -> None:
    from tests.genai.tiny_decoders import Sizes

    folder = write_model(tmp_path / "slow", "dynamic", sizes=Sizes(context=2048, ballast=40))
    model = genai.Model(folder, host=host)
    tokenizer = genai.Tokenizer(model)
    ask(model, prompt(5), 1, tokenizer=tokenizer)

    def stop(stream: genai.TextStream) -> None:
        threading.Timer(0.2, stream.cancel).start()

    with genai.generate(
        model, prompt(2000), tokenizer=tokenizer, max_tokens=40, temperature=0, on_begin=stop
    ) as answer:
        assert answer.finish_reason == "cancelled"
    assert answer.tokens == []
    # The model stays usable: no work of the prompt remains that would keep it busy.
    until = time.monotonic() + 30
    assert len(ask(model, prompt(5), 3, tokenizer=tokenizer, timeout=30).tokens) == 3
    assert time.monotonic() < until


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}], ids=str)
def test_an_answer_of_several_sequences_is_refused(
    folders: Folders, host: qnnbridge.Host, options: dict[str, Any]
) -> None:
    """The concatenated tokens of the first beam are not the best sequence."""
    model = genai.Model(folders("dynamic"), host=host)
    with pytest.raises(OptionError, match=f"{next(iter(options))}=2 requests several sequences"):
        genai.generate(model, prompt(9), **options)
