"""Invalid folders and arguments raise one clear error each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import (
    GenerationError,
    GenerationFolderInvalid,
    GenerationUnsupported,
    OptionError,
    PromptRefused,
)
from tests.genai.conftest import Folders, prompt
from tests.genai.tiny_decoders import VOCABULARY

pytestmark = [pytest.mark.process, pytest.mark.simulator]


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def config(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "genai_config.json"
        told = json.loads(path.read_text("utf-8"))
        change(told)
        path.write_text(json.dumps(told), "utf-8")

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (shutil.rmtree, "does not exist"),
    "empty": (empty, "no genai_config.json"),
    "config empty": (lambda f: (f / "genai_config.json").write_text(""), "is not valid JSON"),
    "config a list": (lambda f: (f / "genai_config.json").write_text("[]"), "is not a JSON object"),
    "config cut off": (lambda f: (f / "genai_config.json").write_text('{"model": {'), "is not valid JSON"),
    "config of bytes": (lambda f: (f / "genai_config.json").write_bytes(b"\xff\xfe\xfa"), "cannot be read"),
    "no model": (config(lambda c: c.pop("model")), "no section 'model'"),
    "no file named": (config(lambda c: c["model"].update(decoder={})), "contains no model file"),  # type: ignore[attr-defined]
    "a stage is gone": (lambda f: (f / "iterator.onnx").unlink(), "iterator.onnx"),
    "a stage is empty": (lambda f: (f / "context.onnx").write_bytes(b""), "context.onnx"),
    "a stage is cut off": (
        lambda f: (f / "iterator.onnx").write_bytes((f / "iterator.onnx").read_bytes()[:-500]),
        "'iterator'",
    ),
    "a stage is a Git LFS pointer": (
        lambda f: (f / "lm_head.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"),
        "Git LFS",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "okenizer"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused(damage: str, folders: Folders, host: qnnbridge.Host, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders("window"), folder)
    break_it, words = DAMAGES[damage]
    break_it(folder)
    with pytest.raises(GenerationFolderInvalid) as refused:
        genai.Tokenizer(genai.Model(folder, host=host)).encode("x")
    assert words in str(refused.value)
    assert refused.value.fix
    assert host.stats.crashes == 0


def test_a_file_in_place_of_a_folder_is_refused(host: qnnbridge.Host, folders: Folders) -> None:
    with pytest.raises(GenerationFolderInvalid, match="is not a model for onnxruntime-genai"):
        genai.Model(folders("dynamic") / "model.onnx", host=host)


def test_a_null_character_in_a_text_is_refused(folders: Folders, host: qnnbridge.Host) -> None:
    """genai encodes the text before the null character, and loses the rest of the conversation."""
    tokenizer = genai.Tokenizer(genai.Model(folders("dynamic"), host=host))
    messages = [{"role": "user", "content": "a\0b"}]
    for attempt in (
        lambda: tokenizer.encode("a\0b"),
        lambda: tokenizer.encode_batch(["a", "\0"]),
        lambda: tokenizer.apply_chat_template(json.dumps(messages)),
        lambda: tokenizer.apply_chat_template("\0"),
    ):
        with pytest.raises(PromptRefused, match="null character"):
            attempt()
    escaped = json.dumps([{"role": "user", "content": "\\u0000"}])
    assert tokenizer.apply_chat_template(escaped) == "<|user|>\\u0000<|end|><|assistant|>"


def test_errors_in_chat_templates_are_raised(folders: Folders, host: qnnbridge.Host) -> None:
    tokenizer = genai.Tokenizer(genai.Model(folders("dynamic"), host=host))
    messages = json.dumps([{"role": "user", "content": "hi"}])
    assert tokenizer.apply_chat_template(messages) == "<|user|>hi<|end|><|assistant|>"
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=False) == "<|user|>hi<|end|>"
    for wrong in ("{% for %}", "{{ raise_exception('no') }}", "{% endif %}"):
        with pytest.raises(GenerationError) as refused:
            tokenizer.apply_chat_template(messages, template_str=wrong)
        assert refused.value.fix
    with pytest.raises(GenerationError):
        tokenizer.apply_chat_template("no JSON")


@pytest.mark.parametrize("tokens", [[VOCABULARY], [-1], [2**31], [2**40]])
def test_token_ids_that_the_model_lacks_are_refused(
    tokens: list[int], folders: Folders, host: qnnbridge.Host
) -> None:
    model = genai.Model(folders("dynamic"), host=host)
    tokenizer = genai.Tokenizer(model)
    with pytest.raises(PromptRefused, match="outside"):
        tokenizer.decode(tokens)
    with pytest.raises(PromptRefused, match="outside"):
        tokenizer.create_stream().decode(tokens[0])
    with pytest.raises(PromptRefused, match="outside"):
        genai.Generator(model, genai.GeneratorParams(model)).append_tokens(tokens)


def test_invalid_arguments_are_refused(folders: Folders, host: qnnbridge.Host) -> None:
    model = genai.Model(folders("dynamic"), host=host)
    params = genai.GeneratorParams(model)
    with pytest.raises(OptionError, match="not a number"):
        params.set_search_options(max_length="many")
    for number in (float("nan"), float("inf"), 10**400):
        with pytest.raises(OptionError, match="temperature="):
            genai.generate(model, "x", temperature=number)
    with pytest.raises(GenerationError, match="range"):
        genai.generate(model, "x", seed=2**70)
    params.set_search_options(max_length=5000)
    with pytest.raises(PromptRefused, match="5000 exceeds the model"):
        genai.Generator(model, params).append_tokens(prompt(5))
    wrong = genai.GeneratorParams(model)
    wrong.set_search_options(no_such_option=1)
    with pytest.raises(GenerationError):
        genai.Generator(model, wrong).append_tokens(prompt(5))
    with pytest.raises(OptionError):
        genai.generate(model, "x", max_tokens=0)
    with pytest.raises(OptionError):
        genai.generate(model, "x", stop="")
    with pytest.raises(OptionError):
        genai.Model(folders("dynamic"), host=host, fallback="gpu")  # type: ignore[arg-type]
    with pytest.raises(PromptRefused):
        genai.generate(model, "")
    with pytest.raises(OptionError, match="integers"):
        genai.Generator(model, genai.GeneratorParams(model)).append_tokens([1.5])
    overlaid = genai.Config(folders("dynamic"))
    overlaid.overlay("{")
    with pytest.raises(GenerationFolderInvalid, match="overlay"):
        genai.Model(overlaid, host=host)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 10**9},
        {"type": "array", "maxItems": 1e7},
        {"type": "array", "maxItems": 10**400},
        {"anyOf": [{"type": "array", "items": {"const": n}, "maxItems": 6000} for n in range(20)]},
    ],
)
def test_a_schema_with_more_items_than_memory_holds_is_refused(
    schema: dict[str, object], folders: Folders, host: qnnbridge.Host
) -> None:
    """minItems of 10^9 took all memory, in a call that could not be interrupted."""
    model = genai.Model(folders("dynamic"), host=host)
    with pytest.raises(GenerationError, match="more than 100,000 items"):
        genai.generate(model, "x", max_tokens=2, guidance=("json_schema", json.dumps(schema)), timeout=20)
    few = {"type": "array", "items": {"type": "integer"}, "maxItems": 1000}
    with genai.generate(model, "x", max_tokens=2, guidance=("json_schema", json.dumps(few))) as answer:
        assert "".join(answer).startswith("[")


def test_a_prompt_that_fails_leaves_no_generator(
    folders: Folders, host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The KV cache stayed in memory as long as the traceback of the error."""
    model, closed = genai.Model(folders("dynamic"), host=host), []
    monkeypatch.setattr(genai.Generator, "close", lambda generator: closed.append(generator))
    with pytest.raises(PromptRefused):
        genai.generate(model, prompt(500))
    with pytest.raises(ZeroDivisionError):
        genai.generate(model, prompt(5), on_begin=lambda stream: 1 // 0)
    assert len(closed) == 2


def test_unsupported_functions_are_refused(folders: Folders, host: qnnbridge.Host) -> None:
    model = genai.Model(folders("dynamic"), host=host)
    for attempt in (
        model.create_multimodal_processor,
        model.create_streaming_processor,
        genai.Request,
        genai.Engine,
        genai.Tensor([1]).data,
        lambda: genai.Config.from_package_ep("x", "y"),
        lambda: genai.register_execution_provider_library("CUDA", "libcuda.so"),
    ):
        with pytest.raises(GenerationUnsupported):
            attempt()
    assert genai.is_qnn_available()
    assert not genai.is_cuda_available()
    genai.register_execution_provider_library("QNNExecutionProvider", "libqnn.so")
