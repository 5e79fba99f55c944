"""Generation: a native generator, and the history needed to create an equivalent one.

genai handles windows of a fixed size wrongly: it pads a prompt to a multiple of the window and counts the pads, so
short prompts write beyond max_length, and a second prompt in the same generator is placed after the pads. With
fixed and with dynamic shapes, genai loses the last token of an answer when a further prompt is appended. This
module keeps the real tokens, and creates a new native generator whenever the old one would be wrong:

    EMPTY -- append --> NATIVE -- generate --> NATIVE
      ^                   |
      |                   | a further prompt on a fixed window, a full window, a rewind that genai cannot do
      +-- tokens kept ----+

Prompts are prefilled in one piece. Generated tokens are fed again one by one (each choice is forced through the
logits), because the stage for prompts rounds differently from the stage for single tokens; so greedy search
continues exactly. Sampling starts a new sequence of random numbers, so with sampling the whole history is
prefilled.

Not thread-safe; the table of objects allows one call at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge_host.genai.guidance import check_guidance
from qnnbridge_host.genai.models import GenaiModel
from qnnbridge_host.genai.multimodal import named_tensors
from qnnbridge_host.genai.native import Object, make_tensor, read_tensor, token_array
from qnnbridge_host.genai.tokenizers import AnswerTexts
from qnnbridge_host.request.client import StopSignal
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    GenerationError,
    GenerationUnsupported,
    OptionError,
    PromptRefused,
)

# Seconds that a token waits for the next token, so that one frame contains both: too short to notice, but longer
# than sending a frame takes.
HOLD_S: Final = 0.002
# Logit of a forbidden token: far below any other logit, but finite.
_FORBIDDEN: Final = -1e9
_INT32_MAX: Final = 2**31
# Options for which genai allocates memory before it checks their values, so each is limited here.
_SIZES: Final = ("batch_size", "num_beams", "num_return_sequences")
_MOST_SEQUENCES: Final = 1024


@dataclasses.dataclass
class GenerationSettings:
    """Everything needed to create a generator. search: options by name. guidance: type, data, and whether
    fast-forward tokens are used."""

    search: dict[str, float | bool]
    guidance: tuple[str, str, bool] | None = None
    adapter: tuple[Object, str] | None = None
    runtime: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, Any], ...] = ()
    named: PromptInputs | None = None


@dataclasses.dataclass(frozen=True)
class PromptInputs:
    """Inputs that accompany a prompt: pictures and sound.

    tokens: token ids of the prompt. Tokens that stand for pictures and sound may be outside of the vocabulary.
    """

    arrays: dict[str, Any]
    tokens: frozenset[int] = frozenset()


@dataclasses.dataclass
class Repairs:
    """Counters of the measures that kept a generation correct.

    replays: how often a new native generator was given the history. forced: tokens that were fed again one by one.
    reseeded: whether sampling began a new sequence of random numbers.
    """

    replays: int = 0
    forced: int = 0
    reseeded: bool = False


class Generation:
    """Native generator with its real history.

    tokens: the history, without pads. base: length of the history up to the last prompt; later tokens were
        generated.
    """

    def __init__(self, model: GenaiModel, settings: GenerationSettings) -> None:
        self._model = model
        self._native: Object | None = None
        self._settings = settings
        self._seen = 0
        # Whether the native generator has more tokens than the history.
        self._is_ahead = False
        # The native generator while it processes a prompt; ``None`` at other times.
        self._prefilling: Object | None = None
        # Whether the native generator has the logits of the next token, so that it need not run the model.
        self._has_logits = False
        self.tokens: list[int] = []
        self.base = 0
        self.done = False
        self.rows = 1
        self.repairs = Repairs()
        # How often tokens of the history were dropped or replaced.
        self.cuts = 0
        # Decoder of the current answer, if the client requests text.
        self.texts: AnswerTexts | None = None
        folder = model.folder
        self._window = folder.window
        # Whether the native generator can be rewound and extended. With a stage for pictures or sound it cannot:
        # onnxruntime-genai does not change the KV cache, and reports no error.
        self._appends = self._window is None and not folder.modalities
        self.max_length = int(self._option("max_length", 0)) or folder.context_length
        self._shares = bool(self._option("past_present_share_buffer", True))
        # Whether generated tokens must be fed one by one: see the module's docstring on rounding.
        self._exact = not self._option("do_sample", False) or settings.guidance is not None
        self._check_settings()

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache with a full context, for all sequences."""
        beams = max(int(self._option(name, 1)) for name in ("num_beams", "num_return_sequences"))
        return self._model.kv_bytes * self.rows * beams

    # --- operations of the client ---

    def restore(self, tokens: Sequence[int], base: int) -> None:
        """Set the history of an earlier generator. The native generator is created later."""
        # The application keeps the history (ADR 0017), which may come from an earlier host.
        self.tokens, self.base = list(tokens), base
        self.cuts += 1
        self.done, self._is_ahead, self._native = False, False, None

    def align(self, length: int) -> None:
        """Drop the tokens after the first `length`: they were generated in advance, and the client has not taken
        them."""
        if length > len(self.tokens):
            raise GenerationError("The host's generator has fewer tokens than the application.")
        if length < len(self.tokens):
            del self.tokens[length:]
            self.cuts += 1
            self.base = min(self.base, length)
            self._is_ahead, self.done = True, False
            # A native generator with pads, without a shared cache or without tokens cannot be rewound: drop it. The
            # next call creates another native generator.
            if not self._appends or not self._shares or not length:
                self._native = None

    def append(self, tokens: Sequence[int], stop: StopSignal) -> None:
        """Append a prompt. Raise `PromptRefused` if the prompt is invalid or too long."""
        self._check_prompt(tokens)
        again = bool(self.tokens)
        appended = self._native is not None and self._append(tokens, stop)
        self.tokens += tokens
        self.base, self.done = len(self.tokens), False
        if not appended:
            self._build(stop, again=again)
        self.done = len(self.tokens) >= self.max_length

    def generate(self, count: int, stop: StopSignal, emit: Callable[[list[int]], None] | None) -> list[int]:
        """Generate up to `count` tokens. Return the tokens that were not passed to `emit`.

        emit: called with the generated tokens. Tokens are collected for up to `HOLD_S`. They are passed immediately
        if the next token is expected later, or must wait for another generation's prompt or for a replay.
        """
        made: list[int] = []
        began = before = time.monotonic()
        total = 0
        while total < count and not self.done and not stop.stopped:
            new = self._one(stop)
            total += len(new)
            made += new
            now = time.monotonic()
            # Assume that the next token takes as long as the last one.
            due = now + (now - before) - began >= HOLD_S or self._native is None or self._model.turns.has_prompt
            if emit is not None and total < count and not self.done and due:
                emit(made)
                made, began = [], now
            before = now
        return made

    def interrupt(self) -> None:
        """Stop the processing of a prompt, from another thread. ONNX Runtime stops between two nodes."""
        # Read the attribute once: the generating thread may clear it at any moment.
        native = self._prefilling
        if native is not None:
            with contextlib.suppress(BridgeError):
                self._model.library.call("OgaGenerator_SetRuntimeOption", native.handle, b"terminate_session", b"1")

    def logits(self, stop: StopSignal) -> Any:
        """Return the logits of the next token."""
        self._ready(stop)
        with self._model.turns:
            return self._tensor("OgaGenerator_GetLogits")

    def set_logits(self, logits: Any, stop: StopSignal) -> None:
        self._ready(stop)
        with self._model.turns:
            self._tensor(
                "OgaGenerator_GetLogits"
            )  # run the model first, because a later run would overwrite the logits set here
            made = make_tensor(self._model.library, np.asarray(logits, np.float32))
            self._call("OgaGenerator_SetLogits", made.handle)

    def tensor(self, name: str, which: str, stop: StopSignal) -> Any:
        """Return a tensor of the last run. which: "input" for an input, else an output."""
        self._ready(stop)
        function = "OgaGenerator_GetInput" if which == "input" else "OgaGenerator_GetOutput"
        with self._model.turns:
            return self._tensor(function, name.encode())

    # --- native steps ---

    def _append(self, tokens: Sequence[int], stop: StopSignal) -> bool:
        """Append tokens to the native generator. If this fails or is stopped, discard the native generator and
        return False.

        The last generated token is appended again: the model has not processed it, and genai loses it.
        """
        last = self.tokens[-1:] if self._is_ahead or self.base < len(self.tokens) else []
        # A rewind resets guidance to the beginning of an answer: right for a new answer, wrong within one.
        guided = not tokens and self.base < len(self.tokens) and self._settings.guidance is not None
        # genai would drop a pad token at the end of the appended tokens. `_build` feeds it like a generated token.
        filled = not tokens and last == [self._model.filler]
        if self._appends and (self._shares or not last) and not guided and not filled:
            self._prefilling = self._native
            appended = False
            try:
                with self._model.turns.prompt():
                    if last:
                        # Remove the last token, which the model has not processed. It is appended again with the
                        # new tokens.
                        self._call("OgaGenerator_RewindTo", len(self.tokens) - 1)
                    if last or tokens:
                        self._call(
                            "OgaGenerator_AppendTokens", token_array([*last, *tokens]), len(last) + len(tokens)
                        )
                        self._has_logits = True
                self._seen, self._is_ahead = self._count(), False
                appended = True
            except GenerationError:
                pass
            finally:
                self._prefilling = None
            # Check for a stop only after appending: `interrupt` may have stopped the native generator permanently.
            if appended and not stop.stopped:
                return True
        self._native = None
        return False

    def _one(self, stop: StopSignal) -> list[int]:
        self._ready(stop)
        self._generate_next()
        new = self._new_tokens()
        self.tokens += new
        if self._is_done():
            # genai counts its pads and stops at max_length. Only an end token or the real length ends the answer.
            at_end = not new or new[-1] in self._model.folder.eos or len(self.tokens) >= self.max_length
            if self._window is None or at_end:
                self.done = True
                new = self._with_end_token(new)
            else:
                self._native = None  # full only because genai counts pads; the next step creates another generator
        self.done = self.done or len(self.tokens) >= self.max_length
        return new

    def _with_end_token(self, new: list[int]) -> list[int]:
        """Return the new tokens including the end token, which is not part of the history, as in genai."""
        eos = self._model.folder.eos
        if new and new[-1] in eos:
            del self.tokens[-1]
            self._is_ahead = True
            return new
        last: list[int] = self._model.library.ints("OgaGenerator_GetNextTokens", self._handle)
        return [*new, last[0]] if last and last[0] in eos else new

    def _ready(self, stop: StopSignal) -> None:
        if not self.tokens:
            raise GenerationError("The generator has no tokens yet.", fix="Call append_tokens first.")
        if self._native is None or (self._is_ahead and not self._append((), stop)):
            self._build(stop, again=True)

    def _build(self, stop: StopSignal, *, again: bool) -> None:
        """Create a native generator with the history. again: whether this is a replay (see `Repairs`)."""
        if not self.tokens:
            raise GenerationError("The generator has no tokens yet.", fix="Call append_tokens first.")
        if again:
            self.repairs.replays += 1
            self.repairs.reseeded = self.repairs.reseeded or bool(self._option("do_sample", False))
        if not self._exact:
            self.base = len(self.tokens)
        given = self._in_one_piece()
        try:
            self._native = self._make(_pads(given, self._window.size) if self._window else 0, again=again)
            self._prefilling = self._native
            with self._model.turns.prompt():
                # `interrupt` has no effect before `_prefilling` is set, so an earlier stop is checked here.
                if not stop.stopped:
                    self._call("OgaGenerator_AppendTokens", token_array(self.tokens[:given]), given)
            self._has_logits = True
            self._seen, self._is_ahead = self._count(), False
            self._force(self.tokens[given:], stop)
        except BaseException as error:
            self._native = None
            if stop.stopped and isinstance(error, GenerationError):
                raise Cancelled("The call was cancelled.") from None
            raise
        finally:
            self._prefilling = None
        if stop.stopped:
            self._native = None
            raise Cancelled("The call was cancelled.")

    def _in_one_piece(self) -> int:
        """Return how many tokens of the history are prefilled; the others are fed one by one.

        Pad tokens that the model generated are fed one by one. In a prefill, genai ignores them as padding:
        everywhere with a fixed window, at the end with dynamic shapes.
        """
        filler, given = self._model.filler, self.base
        if self._window is None:
            while given and self.tokens[given - 1] == filler:
                given -= 1
            if not given:
                raise _has_pads(filler)
            return given
        first = self.tokens.index(filler) if filler in self.tokens else len(self.tokens)
        given = min(given, first)
        size, room = self._window.size, self._model.folder.context_length
        if len(self.tokens) + _pads(given, size) < room:
            return given
        # Padding the whole history would fill the context, so prefill only whole windows, which need no pads.
        whole = first // size * size
        while whole >= room:
            whole -= size
        if whole <= 0:
            raise _does_not_fit(len(self.tokens), size, room)
        return whole

    def _make(self, pads: int, *, again: bool) -> Object:
        native, model, settings = self._model.library, self._model.model, self._settings
        params = native.make("GeneratorParams", "OgaCreateGeneratorParams", model.handle, keeps=(model,))
        search = dict(settings.search)
        if self._window is not None:
            # Pass the whole context, because genai counts the pads. `generate` applies the real limits.
            search["max_length"] = self._model.folder.context_length
            if search.get("min_length"):
                search["min_length"] = float(search["min_length"]) + pads
        seed = int(self._option("random_seed", -1))
        if seed < 0:
            # Without a seed genai asks the processor for 624 random numbers, even for greedy search: 0.4 ms.
            search["random_seed"] = secrets.randbelow(_INT32_MAX)
        elif again and self._option("do_sample", False):
            # Use a new seed, because the seed of the first generator would repeat its random numbers. Derive the
            # new seed from the given seed, so that results are reproducible.
            search["random_seed"] = (seed + len(self.tokens)) % _INT32_MAX
        for name, value in search.items():
            kind = "Bool" if isinstance(value, bool) else "Number"
            native.call(f"OgaGeneratorParamsSetSearch{kind}", params.handle, name.encode(), value)
        if settings.guidance is not None:
            kind, data, fast = settings.guidance
            native.call("OgaGeneratorParamsSetGuidance", params.handle, kind.encode(), data.encode(), fast)
        made = native.make(
            "Generator", "OgaCreateGenerator", model.handle, params.handle, keeps=(params, self._model)
        )
        if settings.adapter is not None:
            adapters, name = settings.adapter
            native.call("OgaSetActiveAdapter", made.handle, adapters.handle, name.encode())
            # genai refers to the adapters without owning them.
            made.keeps += (adapters,)
        for name, value in settings.inputs:
            tensor = make_tensor(native, value)
            native.call("OgaGenerator_SetModelInput", made.handle, name.encode(), tensor.handle)
            made.keeps += (tensor,)
        if settings.named is not None:
            # Set these inputs last: genai has pointers to their names, and setting further inputs would move the
            # names in memory. Create the processor first, because it registers the names of the inputs in the
            # model.
            if self._model.folder.modalities:
                self._model.processor()
            tensors = named_tensors(native, settings.named.arrays)
            with self._model.turns.prompt():  # a pipeline model processes the pictures in this call
                native.call("OgaGenerator_SetInputs", made.handle, tensors.handle)
            made.keeps += (tensors,)
        for name, text in settings.runtime:
            native.call("OgaGenerator_SetRuntimeOption", made.handle, name.encode(), text.encode())
        return made

    def _force(self, tokens: Sequence[int], stop: StopSignal) -> None:
        """Feed tokens one by one, as if the model had generated them."""
        forced: Any = None
        for token in tokens:
            if stop.stopped:
                raise Cancelled("The call was cancelled.")
            with self._model.turns:
                if self._is_done():
                    raise PromptRefused(
                        "The history does not fit into the model's windows of fixed size.",
                        cause="The generator ended the answer before it had received the rest of the history, "
                        "which is fed token by token.",
                        fix="Begin a new conversation, or shorten the history.",
                    )
                # Reading the logits runs the model, which would overwrite logits set before.
                shape = self._tensor("OgaGenerator_GetLogits").shape
                if forced is None or forced.shape != shape:
                    forced = np.full(shape, _FORBIDDEN, np.float32)
                flat = forced.reshape(-1)
                # Set one logit far above all others, so that greedy search and every temperature choose this token.
                flat[token] = -_FORBIDDEN
                made = make_tensor(self._model.library, forced)
                self._call("OgaGenerator_SetLogits", made.handle)
                self._call("OgaGenerator_GenerateNextToken")
                self._has_logits = False
                flat[token] = _FORBIDDEN
            self._new_tokens()
        self.repairs.forced += len(tokens)

    def _generate_next(self) -> None:
        """Generate a token in the native generator. Wait for the device if the model must run for the token."""
        # Processing a prompt also computes the logits of the first token, so that token need not wait for the
        # prompts of other generations. With guidance the model may run in any case, for tokens that it appends.
        without_device = self._has_logits and self._settings.guidance is None
        self._has_logits = False
        with contextlib.nullcontext() if without_device else self._model.turns:
            self._call("OgaGenerator_GenerateNextToken")

    @property
    def _handle(self) -> Any:
        assert self._native is not None
        return self._native.handle

    def _call(self, name: str, *arguments: Any) -> None:
        self._model.library.call(name, self._handle, *arguments)

    def _tensor(self, name: str, *arguments: Any) -> Any:
        native = self._model.library
        return read_tensor(native, native.make("Tensor", name, self._handle, *arguments))

    def _is_done(self) -> bool:
        return bool(self._model.library.get("OgaGenerator_IsDone", self._handle))

    def _count(self) -> int:
        return int(self._model.library.get("OgaGenerator_GetSequenceCount", self._handle, 0))

    def _new_tokens(self) -> list[int]:
        """Return the tokens that the native generator added since the last call: one, or several with guidance."""
        count = self._count()
        data = self._model.library.get("OgaGenerator_GetSequenceData", self._handle, 0)
        new: list[int] = data[self._seen : count]
        self._seen = count
        return new

    # --- checks ---

    def _option(self, name: str, otherwise: Any) -> Any:
        # An option that is null in genai_config.json counts as missing.
        value = self._settings.search.get(name, self._model.folder.search.get(name, otherwise))
        return otherwise if value is None else value

    def _check_settings(self) -> None:
        folder, guidance = self._model.folder, self._settings.guidance
        for name in _SIZES:
            size = float(self._option(name, 1))
            if not (size.is_integer() and 1 <= size <= _MOST_SEQUENCES):
                raise OptionError(
                    f"{name}={size:g} is not an integer from 1 to {_MOST_SEQUENCES}.",
                    fix=f"Give {name} a smaller positive number.",
                    details={"option": name},
                )
        if guidance is not None:
            check_guidance(*guidance[:2])
        if self.max_length > folder.context_length > 0:
            raise PromptRefused(
                f"max_length {self.max_length} exceeds the model's context of {folder.context_length} tokens.",
                fix=f"Set max_length to {folder.context_length} or less.",
                details={"max_length": self.max_length, "context_length": folder.context_length},
            )
        top_k = int(self._option("top_k", 0))
        if self._option("do_sample", False) and top_k > folder.vocab_size > 0:
            raise OptionError(
                f"top_k {top_k} exceeds the model's vocabulary of {folder.vocab_size} tokens.",
                fix=f"Set top_k to {folder.vocab_size} or less.",
                details={"option": "top_k", "vocab_size": folder.vocab_size},
            )
        if self._window is None:
            return
        for name in ("num_beams", "batch_size", "num_return_sequences"):
            if int(self._option(name, 1)) > 1:
                raise GenerationUnsupported(
                    f"{name}={int(self._option(name, 1))} does not work with {folder.label}: a pipeline generates "
                    "one sequence at a time.",
                    cause="Its stages have fixed shapes.",
                    fix=f"Set {name} to 1, or use several generators.",
                )

    def _check_prompt(self, tokens: Sequence[int]) -> None:
        folder = self._model.folder
        if not tokens:
            raise PromptRefused("The prompt has no tokens.", fix="Append at least one token.")
        # If the config does not contain the size of the vocabulary, the limit is genai's 32 bits.
        size = folder.vocab_size or _INT32_MAX
        named = self._settings.named
        marks = frozenset[int]() if named is None else named.tokens
        wrong = None
        # Comparing the smallest and the largest token with the bounds is faster than checking each token.
        if min(tokens) < 0 or max(tokens) >= size:
            wrong = next((one for one in tokens if not 0 <= one < size and one not in marks), None)
        if wrong is not None:
            raise PromptRefused(
                f"The token id {wrong} is outside of the model's vocabulary of {size}.",
                cause="The tokens come from the tokenizer of another model, or are not token ids.",
                fix="Encode the text with this model's tokenizer.",
                details={"token": wrong, "vocab_size": folder.vocab_size},
            )
        # For a batch, the list contains the rows one after the other.
        total = (len(self.tokens) + len(tokens)) // self.rows
        if total > self.max_length:
            raise PromptRefused(
                f"{total} tokens do not fit into max_length {self.max_length}.",
                cause=f"The generator has {len(self.tokens)} tokens, and the call appends {len(tokens)}.",
                fix="Shorten the prompt, or raise max_length up to the model's context of "
                f"{folder.context_length} tokens.",
                details={"tokens": total, "max_length": self.max_length, "context_length": folder.context_length},
            )
        filler = self._model.filler
        # Refuse a pad token that genai would ignore: everywhere with a fixed window, only at the end with dynamic
        # shapes. Pad tokens that the model generated are allowed: see `_in_one_piece`.
        if (
            filler is not None
            and self.rows == 1
            and (filler in tokens if self._window is not None else tokens[-1] == filler)
        ):
            raise _has_pads(filler)
        if self._window is None:
            return
        size, room = self._window.size, folder.context_length
        if total < size and total + _pads(total, size) >= room:
            raise _does_not_fit(total, size, room)


def _has_pads(filler: int | None) -> PromptRefused:
    return PromptRefused(
        f"The prompt has the model's pad token {filler}.",
        cause="genai ignores the token as padding, and would answer a different prompt.",
        fix="Remove the token from the prompt.",
        details={"token": filler},
    )


def _does_not_fit(count: int, size: int, room: int) -> PromptRefused:
    return PromptRefused(
        f"A prompt of {count} tokens is padded to {-(-count // size) * size}, which leaves no room in the context "
        f"of {room}.",
        cause=f"The model's stage for prompts takes windows of {size} tokens.",
        fix="Export the model with a smaller window or a longer context.",
        details={"tokens": count, "window": size, "context_length": room},
    )


def _pads(count: int, size: int) -> int:
    return -count % size
