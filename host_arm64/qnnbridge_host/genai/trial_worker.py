"""Worker's part of `trial`: generate with the installed release of onnxruntime-genai in two ways.

The release may crash the process, which has no other work. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_bool, c_char_p, c_size_t
from typing import Any, Final

import numpy as np

from qnnbridge_host.genai.generation import Generation, GenerationSettings
from qnnbridge_host.genai.models import GenaiModel, ModelRequest, load_plain
from qnnbridge_host.genai.multimodal import ModelProcessor, load_media, named_tensors, read_tensors, text_array
from qnnbridge_host.genai.native import GenaiLibrary, Object, make_tensor
from qnnbridge_host.genai.tokenizers import ModelTokenizer, TokenStream
from qnnbridge_host.request.client import StopSignal
from qnnbridge_protocol.errors import BridgeError, GenerationUnsupported

PROMPT_TOKENS: Final = 6
NEW_TOKENS: Final = 4
# Context length that is enough for prompt and tokens, and needs a small KV cache.
_MAX_LENGTH: Final = 64
_ABSENT: Final = b"qnnbridge-absent"


def perform(request: ModelRequest, engine: Any) -> dict[str, str]:
    """Try the installed release with the request's folder.

    Return a map of three texts: "problem" (the kind of problem), "words" (its description) and "compared" (why
    tokens could not be compared). A text that does not apply is "".

    Errors of loading the model are raised: they do not concern the interface.
    """
    model = load_plain(request, engine)
    search = {"do_sample": False, "num_beams": 1.0, "num_return_sequences": 1.0}
    room = model.folder.context_length or _MAX_LENGTH
    # For a model with a fixed window use the whole context as max_length, as the host does.
    search["max_length"] = float(room if model.folder.window is not None else min(room, _MAX_LENGTH))
    prompt = _prompt(model)
    ours = _outcome(_by_host, model, search, prompt)
    if isinstance(ours, list):
        for step in _all_functions(model):
            # Some calls use names that do not exist: the library's error shows that it accepts the arguments.
            with contextlib.suppress(BridgeError):
                step()
    module = model.library.module
    del model  # free it first: two models may not fit into the NPU
    return judge(ours, _outcome(_by_module, module, request, search, prompt))


def judge(ours: list[int] | Exception, theirs: list[int] | Exception) -> dict[str, str]:
    """Compare the tokens or the error of the host's code (`ours`) and of the Python module (`theirs`)."""
    if isinstance(ours, list) and isinstance(theirs, list):
        if ours == theirs:
            return {"problem": "", "words": "", "compared": "" if ours else "neither way gives a token"}
        return {"problem": "differs", "words": f"{ours} instead of {theirs}", "compared": ""}
    if isinstance(ours, list):
        return {"problem": "", "words": "", "compared": f"its module reports {theirs}"}
    if isinstance(theirs, list):
        return {"problem": "fails", "words": str(ours), "compared": ""}
    if isinstance(ours, GenerationUnsupported):  # the layout
        return {"problem": "layout", "words": ours.message, "compared": ""}
    # Both fail alike, for example because the model needs an image, so there is nothing to compare.
    return {"problem": "", "words": "", "compared": f"both report {ours}"}


def _outcome(generate: Callable[..., list[int]], *arguments: Any) -> list[int] | Exception:
    try:
        return generate(*arguments)
    except Exception as error:  # noqa: BLE001 - a module of another release may raise anything
        return error


def _prompt(model: GenaiModel) -> list[int]:
    """Return a prompt of tokens from the last two thirds of the vocabulary, without end and pad tokens."""
    folder = model.folder
    size = folder.vocab_size or 1000
    never = {*folder.eos, folder.pad, model.filler}
    found = [n for n in range(size // 3, size) if n not in never] or [n for n in range(size) if n not in never]
    return found[:: max(1, len(found) // PROMPT_TOKENS)][:PROMPT_TOKENS]


def _by_host(model: GenaiModel, search: Mapping[str, float | bool], prompt: Sequence[int]) -> list[int]:
    generation, stop = Generation(model, GenerationSettings(dict(search))), StopSignal()
    generation.append(prompt, stop)
    generation.logits(stop)
    made = generation.generate(NEW_TOKENS, stop, None)
    if len(made) > 1 and not generation.done:
        # Generate the last token again: this tests rewinding or, if the model cannot rewind, replaying the history.
        generation.align(len(prompt) + len(made) - 1)
        made[-1:] = generation.generate(1, stop, None)
    return made


def _by_module(
    module: Any, request: ModelRequest, search: Mapping[str, float | bool], prompt: Sequence[int]
) -> list[int]:
    config = module.Config(request.path)
    for name, *arguments in request.steps:
        getattr(config, name)(*arguments)
    for name, content in request.data.items():
        config.add_model_data(name, content)
    model = module.Model(config)
    params = module.GeneratorParams(model)
    params.set_search_options(**search)
    generator = module.Generator(model, params)
    generator.append_tokens(list(prompt))
    made: list[int] = []
    while len(made) < NEW_TOKENS and not generator.is_done():
        generator.generate_next_token()
        made.append(int(generator.get_next_tokens()[0]))
    return made


def _all_functions(model: GenaiModel) -> Iterator[Callable[[], Any]]:
    """Yield calls of the functions that a plain generation does not use.

    Some calls use made-up names, so that the library reports an error and nothing is changed.
    """
    native, label = model.library, _ABSENT

    def made(kind: str, name: str, *arguments: Any, keeps: tuple[Any, ...] = ()) -> Object:
        return native.make(kind, name, *arguments, keeps=keeps)

    yield from _config_functions(native, model.folder.path)
    yield from _tokenizer_functions(model)
    params = made("GeneratorParams", "OgaCreateGeneratorParams", model.model.handle, keeps=(model,))
    yield lambda: native.call("OgaGeneratorParamsSetSearchBool", params.handle, b"do_sample", c_bool(False))
    yield lambda: native.call("OgaGeneratorParamsSetSearchNumber", params.handle, b"max_length", 16.0)
    one = made("Generator", "OgaCreateGenerator", model.model.handle, params.handle, keeps=(params, model))
    yield lambda: native.call("OgaGeneratorParamsSetGuidance", params.handle, b"regex", b"a", False)
    yield lambda: native.call("OgaGenerator_SetRuntimeOption", one.handle, label, b"0")
    for name in ("OgaGenerator_GetInput", "OgaGenerator_GetOutput"):
        yield lambda name=name: made("Tensor", name, one.handle, label)  # type: ignore[misc]
    tensor = make_tensor(native, np.zeros((1, 1), np.float32))
    yield lambda: native.call("OgaGenerator_SetModelInput", one.handle, label, tensor.handle)
    yield lambda: native.ints("OgaGenerator_GetNextTokens", one.handle)
    yield from _media_functions(model, one)
    adapters = made("Adapters", "OgaCreateAdapters", model.model.handle, keeps=(model,))
    missing = os.path.join(model.folder.path, _ABSENT.decode()).encode()
    yield lambda: native.call("OgaLoadAdapter", adapters.handle, missing, label)
    yield lambda: native.call("OgaSetActiveAdapter", one.handle, adapters.handle, label)
    yield lambda: native.call("OgaUnloadAdapter", adapters.handle, label)


def _media_functions(model: GenaiModel, generator: Object) -> Iterator[Callable[[], Any]]:
    """Yield calls of the functions for pictures and sound. A model for text only has no processor."""
    native = model.library
    tensors = named_tensors(native, {_ABSENT.decode(): np.zeros(1, np.float32)})
    yield lambda: native.call("OgaGenerator_SetInputs", generator.handle, tensors.handle)
    yield lambda: read_tensors(native, tensors)
    for kind in ("Images", "Audios"):
        yield lambda kind=kind: load_media(native, kind, [b"x"])  # type: ignore[misc]
    yield lambda: text_array(native, ["a"])
    try:
        processor = ModelProcessor(model)
    except BridgeError:
        return
    yield lambda: processor.process("a", (), ())
    yield lambda: processor.decode([2])
    yield lambda: TokenStream(model, "OgaCreateTokenizerStreamFromProcessor", processor.native)


def _config_functions(native: GenaiLibrary, path: str) -> Iterator[Callable[[], Any]]:
    config = native.make("Config", "OgaCreateConfig", os.fsencode(path))
    content = c_char_p(b"x")
    decoder = "OgaConfig{}DecoderProviderOptionsHardware{}"
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("OgaConfigAddModelData", (_ABSENT, content, c_size_t(1))),
        ("OgaConfigRemoveModelData", (_ABSENT,)),
        ("OgaConfigOverlay", (b"{}",)),
        ("OgaConfigAppendProvider", (b"QNN",)),
        ("OgaConfigSetProviderOption", (b"QNN", b"backend_type", b"htp")),
        (decoder.format("Set", "DeviceType"), (b"QNN", b"NPU")),
        (decoder.format("Set", "DeviceId"), (b"QNN", 1)),
        (decoder.format("Set", "VendorId"), (b"QNN", 1)),
        (decoder.format("Clear", "DeviceType"), (b"QNN",)),
        (decoder.format("Clear", "DeviceId"), (b"QNN",)),
        (decoder.format("Clear", "VendorId"), (b"QNN",)),
        ("OgaConfigClearProviders", ()),
    ]
    for name, arguments in calls:
        yield lambda name=name, given=arguments: native.call(name, config.handle, *given)  # type: ignore[misc]


def _tokenizer_functions(model: GenaiModel) -> Iterator[Callable[[], Any]]:
    try:
        tokenizer = ModelTokenizer(model, {})
    except BridgeError:  # the folder has no tokenizer
        return
    yield tokenizer.ids
    yield lambda: tokenizer.decode(tokenizer.encode("a b"))
    yield lambda: tokenizer.stream().decode(tokenizer.encode("a"))
    yield lambda: tokenizer.to_token_id(_ABSENT.decode())
    yield lambda: tokenizer.update_options({"add_special_tokens": "false"})
    message = json.dumps([{"role": "user", "content": "a"}])
    yield lambda: tokenizer.apply_chat_template(message, None, None, add_generation_prompt=True)
