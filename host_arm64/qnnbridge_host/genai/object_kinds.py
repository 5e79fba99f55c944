"""Types of objects for text generation that an application can create in the host, with their operations.

`docs/dev/protocol.md` lists the operations. Each function decodes the arguments of a request and calls the object.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge_host.engine.calls import ObjectCall, ObjectKind, ObjectResult, argument
from qnnbridge_host.genai.generation import Generation, GenerationSettings, PromptInputs
from qnnbridge_host.genai.models import GenaiModel, ModelRequest, load
from qnnbridge_host.genai.multimodal import ModelInputs, ModelProcessor, check_given
from qnnbridge_host.genai.native import token_array
from qnnbridge_host.genai.tokenizers import AnswerTexts, ModelTokenizer, TokenStream, check_tokens
from qnnbridge_host.genai.trial import TIMEOUT_S
from qnnbridge_host.model.genai_folder import GenaiFolder
from qnnbridge_host.request.client import StopSignal
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    GenerationUnsupported,
    OptionError,
    StateLost,
    desync,
)
from qnnbridge_protocol.specs import Placement, SessionSpec


class ModelAdapters:
    """LoRA adapters of a model."""

    def __init__(self, model: GenaiModel) -> None:
        self._native = model.library
        self.object = self._native.make("Adapters", "OgaCreateAdapters", model.model.handle, keeps=(model,))

    def load(self, path: str, name: str) -> None:
        self._native.call("OgaLoadAdapter", self.object.handle, path.encode(), name.encode())

    def unload(self, name: str) -> None:
        self._native.call("OgaUnloadAdapter", self.object.handle, name.encode())


# --- several sequences at once (batches, beams) ---
# Only models with dynamic shapes support several sequences. A history of tokens is not enough for a new generator,
# because beams and finished sequences of a batch have further state. So the operations are logged, and repeated
# from the start in a new generator. That is exact for greedy search and beams; random numbers would differ.


class BatchGeneration(Generation):
    """Generation of several sequences. `tokens` stays empty: the native generator has the sequences."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rows = int(self._option("batch_size", 1))

    def repeat(self, log: Sequence[tuple[Sequence[int], int]], stop: StopSignal) -> None:
        """Repeat the operations of an earlier generator: prompts, and the number of tokens generated after each."""
        # With sampling, only prompts may be repeated, because they draw no random numbers.
        if self._option("do_sample", False) and any(count for _, count in log):
            raise StateLost(
                "The generation of several sequences cannot be resumed, because its random numbers cannot be "
                "repeated.",
                cause="The host has ended, or a call of this generation was interrupted.",
                fix="Generate again. Greedy search, beams and single sequences can be resumed.",
            )
        self.repairs.replays += 1
        self._native, self.done = None, False  # drop the result of an earlier attempt that failed halfway
        for tokens, count in log:
            self.append(tokens, stop)
            while count and not self.done:
                if stop.stopped:
                    raise Cancelled("The call was cancelled.")
                self._one(stop)
                count -= 1

    def append(self, tokens: Sequence[int], stop: StopSignal) -> None:
        self._check_prompt(tokens)
        tokens = self._with_fillers(tokens)
        if self._native is None:
            self._native = self._make(0, again=False)
        with self._model.turns.prompt():
            self._call("OgaGenerator_AppendTokens", token_array(tokens), len(tokens))
        self._has_logits = True
        self.done = self._is_done()

    def generate(self, count: int, stop: StopSignal, emit: Callable[[list[int]], None] | None) -> list[Any]:
        made: list[list[int]] = []
        while len(made) < count and not self.done and not stop.stopped:
            made.append(self._one(stop))
        return made

    def sequence(self, index: int) -> list[int]:
        """Return all tokens of one sequence. The best beams are available after the end of the search."""
        # genai does not check the index, and would read memory outside of the sequences.
        count = self.rows * max(1, int(self._option("num_return_sequences", 1)))
        if not 0 <= index < count:
            raise OptionError(f"There is no sequence {index}: the generator has {count} sequences, counted from 0.")
        if self._native is None:
            return []
        native, handle = self._model.library, self._native.handle
        count = native.get("OgaGenerator_GetSequenceCount", handle, index)
        found: list[int] = native.get("OgaGenerator_GetSequenceData", handle, index)[:count]
        return self._with_pads(found)

    def _with_fillers(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens with the pads at both ends of each row replaced by `filler`, genai's padding."""
        pad, filler = self._model.folder.pad, self._model.filler
        given = list(tokens)
        if pad == filler or filler is None or self.rows < 2:
            return given
        size = len(given) // self.rows
        for start in range(0, len(given), size or 1):
            # Replace pads from each end up to the first other token: a pad in the middle is an ordinary token.
            for way in (range(start, start + size), range(start + size - 1, start - 1, -1)):
                for at in way:
                    if given[at] != pad:
                        break
                    given[at] = filler
        return given

    def _with_pads(self, tokens: list[int]) -> list[int]:
        pad, filler = self._model.folder.pad, self._model.filler
        return tokens if pad == filler or pad is None else [pad if one == filler else one for one in tokens]

    def _ready(self, stop: StopSignal) -> None:
        if self._native is None:
            super()._ready(stop)

    def _one(self, stop: StopSignal) -> list[int]:
        self._generate_next()
        self.done = self._is_done()
        return self._with_pads(self._model.library.ints("OgaGenerator_GetNextTokens", self._handle))


_WIDE = ("num_beams", "batch_size", "num_return_sequences")

# --- models ---


def _load(call: ObjectCall) -> GenaiModel:
    names = list(call.arguments.get("data") or ())
    data = {str(name): bytes(memoryview(value)) for name, value in zip(names, call.values, strict=True)}

    def declare(folder: GenaiFolder) -> None:
        # Set the blame before the phase is declared, so that a crash from now on is attributed to this model.
        call.request.blame = {"fingerprint": folder.fingerprint, "label": folder.label}
        call.enter("creating")

    def probe(spec: SessionSpec) -> Placement:
        session = call.sessions.create(call.request, call.enter, spec, None, {})
        try:
            placement: Placement = session.info.placement
            return placement
        finally:
            # Close the session before genai loads the stage itself: two copies may not fit into the NPU.
            session.close()

    def work(folder: GenaiFolder, header: Mapping[str, Any], buffers: tuple[Any, ...]) -> Mapping[str, Any]:
        if call.work is None:
            raise GenerationUnsupported("onnxruntime-genai cannot be tried: this host has no workers.")
        return call.work(call.request, folder, header, buffers, TIMEOUT_S)

    try:
        return load(ModelRequest(call.arguments, data), probe, call.sessions.engine, declare, work)
    except BridgeError as error:
        # List the sessions and objects on the NPU, because QNN only reports that memory is exhausted.
        if error.details.get("npu_memory"):
            error.evidence = (*error.evidence, *call.sessions.describe_npu_use())
        raise


def _new_tokenizer(model: GenaiModel, call: ObjectCall) -> ObjectResult:
    options = {str(k): str(v) for k, v in (call.arguments.get("options") or {}).items()}
    return ObjectResult(made=(TOKENIZER, ModelTokenizer(model, options)))


def _new_generator(model: GenaiModel, call: ObjectCall) -> ObjectResult:
    arguments = call.arguments
    search = {str(k): v if isinstance(v, bool) else float(v) for k, v in (arguments.get("search") or {}).items()}
    guidance = arguments.get("guidance")
    adapter = arguments.get("adapter")
    objects, values = list(call.objects), list(call.values)
    names = [str(name) for name in arguments.get("inputs") or ()]
    settings = GenerationSettings(
        search,
        None if guidance is None else (str(guidance[0]), str(guidance[1]), bool(guidance[2])),
        None if adapter is None else (objects.pop(0).object, str(adapter)),
        tuple((str(k), str(v)) for k, v in arguments.get("runtime") or ()),
        tuple(zip(names, _taken(values, len(names)), strict=True)),
        _prompt_inputs(arguments, values, objects),
    )
    wide = any(int(search.get(name, model.folder.search.get(name, 1)) or 1) > 1 for name in _WIDE)
    # For a model with fixed windows, `Generation` refuses several sequences and gives the reason.
    kind = BatchGeneration if wide and model.folder.window is None else Generation
    generation = kind(model, settings)
    made = (GENERATOR, generation)
    step, room = arguments.get("step"), arguments.get("kv_room")
    # Skip the first step if the generator needs more memory than its client has left: the daemon then refuses the
    # generator before the first step allocates the memory.
    if not isinstance(step, Mapping) or (room is not None and generation.kv_bytes > room):
        return ObjectResult(made=made)
    rest = call._replace(arguments=step, values=tuple(values), objects=tuple(objects))

    def first_step() -> ObjectResult:
        return ObjectResult(GENERATOR.describe(generation) | {"step": _step(generation, rest).result}, made=made)

    # Run the first step after the creation: other generators can be created while it processes the prompt.
    return ObjectResult(after=first_step)


def _taken(values: list[Any], count: int) -> list[Any]:
    """Remove the first values from the list and return them."""
    if count > len(values):
        raise desync(f"a generator with {len(values)} of {count} values")
    taken, values[:] = values[:count], values[count:]
    return taken


def _prompt_inputs(arguments: Mapping[str, Any], values: list[Any], objects: list[Any]) -> PromptInputs | None:
    """Return the inputs that accompany the prompt. Remove their values and objects from the lists."""
    given = arguments.get("named")
    if given is None:
        return None
    arrays = dict(zip(map(str, given), _taken(values, len(given)), strict=True))
    check_given(arrays)
    chosen = arguments.get("made")
    if chosen is None:
        return PromptInputs(arrays)
    if not (objects and isinstance(objects[0], ModelInputs)):
        raise desync("the request names processed inputs, but does not refer to their object")
    made = objects.pop(0)
    return PromptInputs({str(name): made.tensor(str(name)) for name in chosen} | arrays, frozenset(made.tokens))


# --- pictures and sound ---


def _new_inputs(processor: ModelProcessor, call: ObjectCall) -> ObjectResult:
    call.enter("running")
    prompts = call.arguments.get("prompts")
    if isinstance(prompts, (list, tuple)):
        prompts = [str(one) for one in prompts]
    elif prompts is not None:
        prompts = str(prompts)
    pictures, sounds = argument(call, "images", int), argument(call, "audios", int)
    contents = [bytes(memoryview(value)) for value in call.values]
    if min(pictures, sounds) < 0 or pictures + sounds != len(contents):
        raise desync(f"the request has {len(contents)} values for {pictures} pictures and {sounds} recordings")
    return ObjectResult(made=(INPUTS, processor.process(prompts, contents[:pictures], contents[pictures:])))


def _decode_with(processor: ModelProcessor, call: ObjectCall) -> ObjectResult:
    call.enter("running")
    tokens = [int(one) for one in call.values[0]] if call.values else []
    check_tokens(processor.model, tokens)
    return ObjectResult(processor.decode(tokens))


def _new_stream_with(processor: ModelProcessor, call: ObjectCall) -> ObjectResult:
    return _replayed(TokenStream(processor.model, "OgaCreateTokenizerStreamFromProcessor", processor.native), call)


# --- generators ---


def _step(generation: Generation, call: ObjectCall) -> ObjectResult:
    """Run the parts of a step that the request contains: restore, align, append, generate."""
    arguments = call.arguments
    stop = call.request.stopper = StopSignal()
    # Check again, because a cancel that arrived before `stopper` was set had no effect.
    if call.request.withdrawn:
        raise Cancelled("The call was cancelled.")
    call.enter("running")
    prompt = _ids(call.values[0]) if call.values else []
    count = argument(call, "count", int)
    with stop.calling(generation.interrupt):
        if isinstance(generation, BatchGeneration):
            if arguments.get("log"):
                generation.repeat([(list(map(int, tokens)), int(n)) for tokens, n in arguments["log"]], stop)
        else:
            length = argument(call, "length", int)
            if arguments.get("restore"):
                if len(call.values) < 2:
                    raise desync("the step restores a history, but contains no history")
                generation.restore(_ids(call.values[1]), argument(call, "base", int))
            # The application requests a step before it has received the tokens of the previous step. If that step
            # ended the answer, no token follows.
            if prompt or not generation.done or length <= len(generation.tokens):
                generation.align(length)
        if prompt:
            generation.append(prompt, stop)
        decode = _decoder(generation, call)

        def emit(tokens: list[int]) -> None:
            call.request.emit({"event": "tokens", "tokens": tokens, "texts": decode(tokens)})

        made = generation.generate(count, stop, emit if arguments.get("stream") else None)
    if stop.stopped:
        raise Cancelled("The call was cancelled.")
    repairs = generation.repairs
    done = [generation.done, repairs.replays, repairs.forced, repairs.reseeded]
    return ObjectResult([made, *done, decode(made)])


def _ids(value: Any) -> list[int]:
    """Return token ids, which the client sent as a tensor."""
    found: list[int] = np.asarray(value).astype(np.int64).reshape(-1).tolist()
    return found


def _decoder(generation: Generation, call: ObjectCall) -> Callable[[list[int]], list[str]]:
    """Return a function that decodes the latest tokens, or returns no texts if the call has no `answer_start`."""
    if "answer_start" not in call.arguments:
        generation.texts = None
        return lambda _: []
    start, tokenizer = argument(call, "answer_start", int), call.objects[-1] if call.objects else None
    if not isinstance(tokenizer, ModelTokenizer) or isinstance(generation, BatchGeneration):
        raise desync("the step requests texts of several sequences, or has no tokenizer")
    texts = generation.texts
    # Create a decoder if the answer or the tokenizer has changed. The decoder itself detects a changed history.
    if texts is None or texts.start != start or texts.tokenizer is not tokenizer:
        texts = generation.texts = AnswerTexts(tokenizer, start)
    return lambda tokens: texts.decode(generation.tokens, tokens, done=generation.done, cuts=generation.cuts)


def _tensor(generation: Generation, call: ObjectCall) -> ObjectResult:
    call.enter("running")
    which = argument(call, "which", str)
    stop = StopSignal()
    if which == "logits":
        return ObjectResult(values=[generation.logits(stop)])
    return ObjectResult(values=[generation.tensor(argument(call, "name", str), which, stop)])


def _set_logits(generation: Generation, call: ObjectCall) -> None:
    call.enter("running")
    generation.set_logits(call.values[0], StopSignal())


# --- tokenizers and adapters ---


def _encode(tokenizer: ModelTokenizer, call: ObjectCall) -> ObjectResult:
    call.enter("running")
    return ObjectResult([tokenizer.encode(str(text)) for text in argument(call, "texts", list)])


def _decode(tokenizer: ModelTokenizer, call: ObjectCall) -> ObjectResult:
    call.enter("running")
    return ObjectResult([tokenizer.decode(list(map(int, tokens))) for tokens in call.values])


def _apply_chat_template(tokenizer: ModelTokenizer, call: ObjectCall) -> ObjectResult:
    call.enter("running")
    arguments = call.arguments
    text = tokenizer.apply_chat_template(
        argument(call, "messages", str),
        arguments.get("template"),
        arguments.get("tools"),
        add_generation_prompt=bool(arguments.get("add_generation_prompt", True)),
    )
    values = []
    # Do not encode a text with a NUL character, at which genai would stop reading: the application refuses such a
    # text. After an error here, the application encodes the text itself and gets the error.
    if arguments.get("encode") and "\0" not in text:
        with contextlib.suppress(BridgeError):
            values.append(np.array(tokenizer.encode(text), np.int32))
    return ObjectResult(text, values)


def _new_stream(tokenizer: ModelTokenizer, call: ObjectCall) -> ObjectResult:
    return _replayed(tokenizer.stream(), call)


def _replayed(stream: TokenStream, call: ObjectCall) -> ObjectResult:
    if call.values:  # decode the tokens of an earlier stream again, to restore its state
        stream.decode(list(map(int, call.values[0])))
    pieces = stream.decode(list(map(int, call.arguments.get("tokens") or ())))
    return ObjectResult(pieces, made=(STREAM, stream))


def _load_adapter(adapters: ModelAdapters, call: ObjectCall) -> None:
    call.enter("running")
    adapters.load(argument(call, "path", str), argument(call, "name", str))


STREAM = ObjectKind(
    "GenaiStream",
    None,
    {"decode": lambda stream, call: ObjectResult(stream.decode(list(map(int, argument(call, "tokens", list)))))},
)
TOKENIZER = ObjectKind(
    "GenaiTokenizer",
    None,
    {
        "ids": lambda tokenizer, _: ObjectResult(tokenizer.ids()),
        "encode": _encode,
        "decode": _decode,
        "to_token_id": lambda tokenizer, call: ObjectResult(tokenizer.to_token_id(argument(call, "text", str))),
        "apply_chat_template": _apply_chat_template,
        "update_options": lambda tokenizer, call: tokenizer.update_options(
            {str(k): str(v) for k, v in argument(call, "options", dict).items()}
        ),
        "stream": _new_stream,
    },
)
ADAPTERS = ObjectKind(
    "GenaiAdapters",
    None,
    {
        "load": _load_adapter,
        "unload": lambda adapters, call: adapters.unload(argument(call, "name", str)),
    },
)
INPUTS = ObjectKind(
    "GenaiInputs",
    None,
    {"tensor": lambda inputs, call: ObjectResult(values=[inputs.tensor(argument(call, "name", str))])},
    describe=ModelInputs.describe,
)
PROCESSOR = ObjectKind(
    "GenaiProcessor",
    None,
    {"inputs": _new_inputs, "decode": _decode_with, "stream": _new_stream_with},
)
GENERATOR = ObjectKind(
    "GenaiGenerator",
    None,
    {
        "step": _step,
        "tensor": _tensor,
        "set_logits": _set_logits,
        "sequence": lambda generation, call: ObjectResult(generation.sequence(argument(call, "index", int))),
    },
    describe=lambda generation: {"kv_bytes": generation.kv_bytes},
)
MODEL = ObjectKind(
    "GenaiModel",
    _load,
    {
        "tokenizer": _new_tokenizer,
        "generator": _new_generator,
        "adapters": lambda model, _: ObjectResult(made=(ADAPTERS, ModelAdapters(model))),
        "processor": lambda model, _: ObjectResult(made=(PROCESSOR, ModelProcessor(model))),
    },
    describe=GenaiModel.describe,
)
