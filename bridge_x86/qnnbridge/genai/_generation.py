"""`Generator` with the interface of onnxruntime_genai, over a generation that outlives hosts.

The history is here, and the host's generator can be made from it at any time. Tokens come in steps: one request,
several tokens, in frames as they are made. The first step has one token, each further one twice as many, so the
host runs a little ahead of the application. When the application does anything but ask for the next token, what was
made ahead is dropped, and the next request says how many tokens are true.

One thread at a time.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import operator
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._supervision.host_process import deadline_after
from qnnbridge._threads import TerminateFlag, TerminateRelay
from qnnbridge._transport.channel import CallContext, ChannelFailed, ReplyStream
from qnnbridge.genai._model import Adapters, Model
from qnnbridge.genai._recipe import GenerationRecipe, GenerationStats, NamedInputs
from qnnbridge.genai._remote import (
    Remade,
    RemoteModel,
    RunsAhead,
    call_object,
    operation_request,
    survive,
    token_values,
    tokens_of,
)
from qnnbridge.genai._tensors import INPUT_IDS
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    DeadlineExceeded,
    GenerationError,
    GenerationUnsupported,
    OptionError,
    PromptRefused,
)
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.shown import Shown, counted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge.genai._tensors import NamedTensors
    from qnnbridge_protocol.frames import Frame
    from qnnbridge_protocol.shown import Fact


# Tokens of the longest step. Through a daemon a step holds the application's turn.
LONGEST_STEP: Final = 32
LONGEST_STEP_OF_DAEMON: Final = 8


class RemoteGeneration:
    """One generation in the host, with the history to make it again.

    tokens: the history, prompts and answers. base: how many of them the last prompt ends at.
    """

    def __init__(self, model: RemoteModel, recipe: GenerationRecipe) -> None:
        self.model = model
        self.recipe = recipe
        self.tokens: list[int] = []
        self.base = 0
        self.done = False
        self.stats = GenerationStats()
        # Length of the history at which the application stops. The host computes nothing beyond.
        self.most: int | None = None
        # Assigned by any thread: ends the prompt, or the step, that is under way.
        self.stopping = TerminateFlag()
        # Seconds that one call may take; ``None`` for ever.
        self.timeout_s: float | None = None
        # Tokens that came before they were asked for.
        self.ahead: collections.deque[int] = collections.deque()
        # The host has finished; the application still has the tokens of `ahead` to take.
        self._done_after_ahead = False
        self._step = 1
        # Seconds that the request for the last prompt took.
        self._prompt_s = 0.0
        self._longest = LONGEST_STEP_OF_DAEMON if model.host.is_daemon else LONGEST_STEP
        self._stream: ReplyStream | None = None
        self._process: HostProcess | None = None
        self._context = dataclasses.replace(model.context, op="genai.step")
        # `times_made` of the object in the host that has answered a step: a later one may know nothing yet.
        # Compared with `times_made`: the history is sent again until the new object has answered once.
        self._answered = 0
        # Of native generators that are gone.
        self._earlier = GenerationStats()
        self.remade = self._new_object()

    # --- what the application does ---

    def append(self, prompt: Sequence[int], count: int = 0) -> None:
        """Add a prompt, or a further one.

        count: number of tokens to generate with the same request; 0 if the application may read or change the
        logits of the first one.
        """
        if not prompt:
            raise PromptRefused("The prompt has no tokens.", fix="Append at least one token.")
        self.settle()
        context, began = self._context_of([*self.tokens, *prompt]), time.monotonic()

        def attempt(process: HostProcess) -> Frame:
            number, values, arguments = self._prepared(process, prompt, count)
            return call_object(process, number, "step", arguments, values, self._deadline, context, self.stopping)

        frame = self._with_replay(attempt, context)
        # Only now that the host has taken it: a prompt that is refused leaves the history as it was.
        self.tokens += prompt
        self.base, self._context = len(self.tokens), context
        self._take(frame)
        self.done = self._done_after_ahead and not self.ahead
        # The first token comes alone, so that the time to it is not that of several.
        self._step = min(1 + count, self._longest)
        self.stats.steps += count > 0
        self.stats.first_token_s, self._prompt_s = None, time.monotonic() - began

    def begin(self, inputs: NamedTensors) -> None:
        """Take inputs of the model, and the prompt if it is among them."""
        if self.tokens:
            raise GenerationUnsupported(
                "Pictures and sound belong to the first prompt of a generator.",
                cause=f"It has {counted(len(self.tokens), 'token')}. onnxruntime-genai would pass over these.",
                fix="Make a new Generator, and give all messages with their pictures and sound.",
            )
        given = {name: tensor.as_numpy() for name, tensor in inputs._tensors.items()}
        prompt = given.pop(INPUT_IDS, None)
        made: Any = inputs._made
        before = self.recipe.named
        self.recipe.named = NamedInputs(given, made, tuple(inputs._remote))
        self.change()
        try:
            if prompt is not None:
                self.append(tokens_of(prompt))
        except BaseException:
            self.recipe.named = before
            self.change()
            raise

    def next(self) -> int:
        """The next token."""
        if self.done:
            raise GenerationError("The generation is done.", fix="Look at is_done() before, or append more tokens.")
        if not self.tokens:
            raise PromptRefused("There is no prompt.", fix="Call append_tokens first.")
        if self.stopping.terminate:
            self.settle()
            raise Cancelled("The generation was terminated.", fix='Set "terminate_session" to "0" to go on.')
        began = time.monotonic()
        # A weak reference: the model can stop the generation that runs ahead, and must not keep it.
        self.model.ahead = self._myself()
        # A frame may bring no token (a death was survived, or the end came): look again.
        while not self.ahead and not self._done_after_ahead:
            self._fetch()
        if not self.ahead:
            self.done = True
            raise GenerationError("The generation is done.", fix="Look at is_done() before, or append more tokens.")
        token = self.ahead.popleft()
        self.done = self._done_after_ahead and not self.ahead
        # The end token is no part of the sequence, as in genai.
        if not (self.done and self.model.info is not None and token in self.model.info.eos):
            self.tokens.append(token)
        if self.stats.first_token_s is None:
            self.stats.first_token_s = self._prompt_s + time.monotonic() - began
        return token

    def rewind(self, length: int) -> None:
        """Forget all tokens from this number on."""
        if not 0 <= length <= len(self.tokens):
            raise GenerationError(
                f"Cannot rewind to {length}: the generator has {len(self.tokens)} tokens.",
                fix="Give a number from 0 to token_count().",
            )
        if length == len(self.tokens):
            return  # nothing is dropped: a finished generation stays finished
        self.settle()
        # The host learns of it with the next request, whose `length` is smaller than what it has.
        del self.tokens[length:]
        self.base, self.done, self._step = min(self.base, length), False, 1

    def begin_again(self, length: int) -> None:
        """Keep this many tokens for another prompt, with statistics of its own."""
        self.rewind(length)
        # The host counts for the whole life of its generator.
        old, earlier = self.stats, self._earlier
        self.stats = GenerationStats()
        self._earlier = GenerationStats(earlier.replays - old.replays, earlier.forced - old.forced)

    def look(self, operation: str, arguments: dict[str, Any], values: Sequence[Any] = ()) -> Frame:
        """An operation on the state after the last token that the application has taken. The host stops running
        ahead of this generation for good."""
        self.settle()
        # A program that looks at logits between tokens would have all that is made ahead dropped each time.
        self._longest = 1

        def attempt(process: HostProcess) -> Frame:
            # A step of no tokens first: it takes the host back to the application's last token, or gives a new
            # generator the history. The operation itself carries neither.
            number, history, step = self._prepared(process, (), 0)
            call_object(process, number, "step", step, history, self._deadline, self._context)
            self._answered = self.remade.times_made
            return call_object(process, number, operation, arguments, values, self._deadline, self._context)

        # Both requests are one attempt: a host that dies between them has to be given the history again.
        frame: Frame = self._with_replay(attempt, self._context)
        return frame

    def settle(self) -> None:
        """Stop what runs ahead, and forget it."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self.ahead.clear()
        self._done_after_ahead = False

    def change(self) -> None:
        """The recipe has changed: the next call makes another generator in the host."""
        self.settle()
        self._keep_stats()
        self.remade.forget()
        self.remade, self._answered = self._new_object(), 0
        if self.tokens:
            self._context = self._context_of(self.tokens)

    def close(self) -> None:
        """Free the host's generator."""
        self.settle()
        self.remade.forget()

    # --- steps ---

    def _fetch(self) -> None:
        """Wait for tokens, or for the end."""
        # One deadline for all attempts: a death in between gives the call no new time.
        context, deadline = self._context, self._deadline

        def attempt(process: HostProcess) -> None:
            # The stream of a host that has ended is useless: the next process needs a request of its own.
            continues = self._stream is not None and self._process is process
            if not continues and self._begin_step(process, deadline):
                return
            assert self._stream is not None
            try:
                with TerminateRelay(self.stopping, process.channel) as stoppable:
                    # The stream was sent before this relay existed, so the relay is given its number by hand.
                    if stoppable is not None:
                        stoppable(self._stream.request_id)
                    frame = self._stream.next(deadline)
            # Not `Deadline`: past its time the stream stays open, and the next call goes on reading it.
            except (ChannelFailed, BridgeError):
                self._stream = None
                raise
            if frame.header.get("event") == "tokens":
                self._answered = self.remade.times_made
                self.ahead.extend(field(frame.header, "tokens", "tuple[Any, ...]"))
            elif "result" in frame.header:
                self._stream = None
                self._take(frame)

        self._with_replay(attempt, context, deadline)

    def _begin_step(self, process: HostProcess, deadline: float | None) -> bool:
        """Ask for the next tokens; whether they came already."""
        host = self.model.host
        count = self._step if self.most is None else max(1, min(self._step, self.most - len(self.tokens)))
        number, values, arguments = self._prepared(process, (), count)
        self.stats.steps += 1
        self._process = process
        # A step of one token has no parts; and suspects of a crash run alone, which an open stream would not.
        if count > 1 and not host.blame.active:
            header, buffers = operation_request(number, "step", {**arguments, "stream": True}, values)
            self._stream = ReplyStream.open(process.channel, header, buffers, deadline, self._context)
        # 1, 2, 4, 8 ...: a program that takes one token wastes at most as much as it used.
        self._step = min(2 * self._step, self._longest)
        if self._stream is not None:
            return False
        frame = call_object(process, number, "step", arguments, values, deadline, self._context, self.stopping)
        self._take(frame)
        return True

    def _prepared(
        self, process: HostProcess, prompt: Sequence[int], count: int
    ) -> tuple[int, list[Any], dict[str, Any]]:
        """The generator's number there; values and arguments of a step that begins where the application is."""
        made_before = self.remade.times_made
        number = self.remade.number_in(process, self._deadline)
        # The new generator counts from 0: what the old ones did is kept aside and added in `_take`.
        if self.remade.times_made > made_before:
            self._keep_stats()
            # Through a daemon the connection outlives the host.
            # The first making is no restart.
            self.stats.restarts += self.remade.times_made > 1
        self._process = process
        arguments = {"length": len(self.tokens), "base": self.base, "count": count}
        # Not by `times_made` alone: the first step of a new object can be lost to a full queue or a deadline.
        if self._is_blank and self.tokens:
            # The whole history travels once for each new host.
            return number, token_values(prompt, self.tokens), {**arguments, "restore": True}
        return number, token_values(prompt) if prompt else [], arguments

    @property
    def _is_blank(self) -> bool:
        """Whether the host's object has to be sent the history: the step that did may have come to nothing."""
        return self._answered != self.remade.times_made

    def _take(self, frame: Frame) -> None:
        self._answered = self.remade.times_made
        result = field(frame.header, "result", "tuple[tuple[Any, ...], bool, int, int, bool]")
        tokens, done, replays, forced, reseeded = result
        self.ahead.extend(tokens)
        self._done_after_ahead = bool(done)
        self.stats.replays = self._earlier.replays + int(replays)
        self.stats.forced = self._earlier.forced + int(forced)
        self.stats.reseeded = self._earlier.reseeded or bool(reseeded)

    def _keep_stats(self) -> None:
        stats = self.stats
        self._earlier = GenerationStats(stats.replays, stats.forced, stats.reseeded)

    @property
    def _deadline(self) -> float | None:
        return deadline_after(self.timeout_s)

    def _with_replay(self, attempt: Any, context: CallContext, deadline: float | None = None) -> Any:
        return survive(self.model.host, attempt, context, deadline or self._deadline, self.timeout_s)

    def _context_of(self, prompt: Sequence[int]) -> CallContext:
        """A death in the call counts against the model with this prompt and these parameters.

        A prompt that kills twice is refused, and others go on with the same model; so does the same prompt with
        other guidance, or with none.
        """
        recipe = self.recipe
        guided = "" if recipe.guidance is None else f" and guidance ({recipe.guidance[0]})"
        label = f"a prompt of {len(prompt)} tokens{guided}"
        made = None if recipe.named is None else recipe.named.made
        digest = "" if made is None else made.digest
        return self.model.context_of(label, [recipe.arguments(), list(prompt), digest], recipe.values())

    def _new_object(self) -> Remade:
        # A local name: the function below must not refer to this generation, which owns the object (see `Remade`).
        recipe = self.recipe
        return self.model.child(
            "GenaiGenerator", "generator", recipe.arguments, *recipe.objects(), values=recipe.values
        )

    def _myself(self) -> weakref.ref[RunsAhead]:
        return weakref.ref(self)

    def __del__(self) -> None:
        stream, self._stream = getattr(self, "_stream", None), None
        if stream is not None:
            # No message from a finalizer: `close` would write to the connection in the middle of any other
            # line.
            stream.abandon()


# --- what an application sees: options and generator -----------------------------------------------------------

# Of the integers that travel as such: floats hold integers exactly up to here, and genai rejects a larger one.
_LARGEST = 2**53
_SEVERAL = ("num_beams", "batch_size", "num_return_sequences")


class GeneratorParams(Shown):
    """Search options of a generator. Defaults are those of the model's config."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._search: dict[str, Any] = {}
        self._guidance: tuple[str, str, bool] | None = None

    def _shown_name(self) -> str:
        return self._model._shown_name()

    def _shown_facts(self) -> Iterator[Fact]:
        for name, value in list(self._search.items()):
            yield f"{name}={value:g}", ""
        if self._guidance is not None:
            yield f"guidance {self._guidance[0]}", ""
        for name, value in self._model.info.search.items():
            if name not in self._search:
                yield f"{name}={value} of the model's config", "more"

    def set_search_options(self, **options: Any) -> None:
        """Set options of the search: max_length, do_sample, temperature, top_k, top_p, random_seed and others."""
        for name, value in options.items():
            if value is None:
                continue
            try:
                number = float(value)  # also a number of numpy
            except (TypeError, ValueError, OverflowError):
                raise OptionError(f"The search option {name}={value!r} is no number.") from None
            if not math.isfinite(number):  # genai would compute with it: tokens without a meaning
                raise OptionError(f"The search option {name}={number:g} is no finite number.")
            # An int stays one (a bool as well): the host tells switches from numbers by the type.
            self._search[name] = value if isinstance(value, int) and abs(number) < _LARGEST else number

    def get_search_options(self) -> dict[str, Any]:
        """The options, with those of the config."""
        return {**self._model.info.search, **self._search}

    def set_guidance(self, type: str, data: str, enable_ff_tokens: bool = False) -> None:  # noqa: A002 - genai's name
        """Restrict the answer: "json_schema", "regex" or "lark_grammar", and its text."""
        self._guidance = (str(type), str(data), bool(enable_ff_tokens))

    def set_speculative_options(self, **options: Any) -> None:
        raise GenerationUnsupported("Speculative decoding is not available through the bridge.")

    def get_speculative_options(self) -> dict[str, Any]:
        """None are set."""
        return {}


class Generator(Shown):
    """Generates tokens for a model.

    The host keeps the native generator, this object the history. A host that dies is replaced, and generation goes
    on; `stats` reports it. Where genai would compute wrong tokens or die, the native generator is made again (see
    docs/genai.md).
    """

    def __init__(self, model: Model, params: GeneratorParams) -> None:
        self._model = model
        self._params = params
        recipe = GenerationRecipe(dict(params._search), params._guidance)
        several = any(int(params.get_search_options().get(name) or 1) > 1 for name in _SEVERAL)
        # A pipeline takes one sequence. Its ordinary generation is made, so that the host refuses it.
        is_batch = several and model.info.layout == "dynamic"
        self._remote = (RemoteBatch if is_batch else RemoteGeneration)(model._remote, recipe)
        self._last: list[int] = []
        if several and not is_batch:
            self._remote.look("sequence", {"index": 0})  # the host says why it does not work

    def _shown_name(self) -> str:
        return self._model._shown_name()

    def _shown_facts(self) -> Iterator[Fact]:
        remote = self._remote
        if isinstance(remote, RemoteBatch):  # its tokens are in the host
            yield f"{counted(remote.rows, 'sequence')}, {counted(remote.steps_taken, 'step')}", ""
        else:
            yield counted(len(remote.tokens), "token"), ""
        if remote.done:
            yield "done", ""
        if remote.stats.restarts:
            yield f"continued in a new host {counted(remote.stats.restarts, 'time')}", ""

    # --- tokens ---

    def append_tokens(self, tokens: Any) -> None:
        """Add a prompt: token ids as an array, a list or a `Tensor`; for a batch two dimensions."""
        self._remote.append(tokens_of(tokens))

    def generate_next_token(self) -> None:
        """Generate the next token."""
        if isinstance(self._remote, RemoteBatch):
            self._last = self._remote.next_of_all()
        else:
            self._last = [self._remote.next()]

    def get_next_tokens(self) -> npt.NDArray[np.int32]:
        """The token that was generated last, of each sequence."""
        return _int32(self._last)

    def get_sequence(self, index: int = 0) -> npt.NDArray[np.int32]:
        """All tokens of a sequence, without pads."""
        # genai itself reads whatever memory is there for an index of none.
        count = self._remote.rows if isinstance(self._remote, RemoteBatch) else 1
        if not 0 <= operator.index(index) < count:
            raise IndexError(f"There is no sequence {index}: the generator has {count}, counted from 0.")
        if isinstance(self._remote, RemoteBatch):
            return _int32(self._remote.sequence(operator.index(index)))
        return _int32(self._remote.tokens)

    def token_count(self) -> int:
        """Number of tokens, without pads."""
        if isinstance(self._remote, RemoteBatch):
            return len(self._remote.sequence(0))
        return len(self._remote.tokens)

    def is_done(self) -> bool:
        """Whether an end token was generated, or max_length is reached."""
        return self._remote.done

    def rewind_to(self, new_length: int) -> None:
        """Forget all tokens from this number on. Works on every layout."""
        self._remote.rewind(int(new_length))

    # --- tensors ---

    def get_logits(self) -> Any:
        """Of the next token. From here on the host makes one token at a time."""
        return self._tensor({"which": "logits"})

    def set_logits(self, new_logits: Any) -> None:
        """Replace the logits that the next token is chosen by."""
        import numpy as np

        self._remote.look("set_logits", {}, [np.asarray(new_logits, np.float32)])

    def get_output(self, name: str) -> Any:
        """An output of the model's last run."""
        return self._tensor({"which": "output", "name": name})

    def get_input(self, name: str) -> Any:
        """An input of the model's last run."""
        return self._tensor({"which": "input", "name": name})

    def set_model_input(self, name: str, value: Any) -> None:
        """Give a value for a further input of the model."""
        self._remote.recipe.inputs[name] = value.as_numpy() if hasattr(value, "as_numpy") else value
        self._remote.change()

    def set_inputs(self, inputs: NamedTensors) -> None:
        """Give the prompt with its pictures and sound, as a `MultiModalProcessor` made them."""
        self._remote.begin(inputs)

    def set_active_adapter(self, adapters: Adapters, adapter_name: str) -> None:
        """Use a LoRA adapter."""
        self._remote.recipe.adapter = (adapters, str(adapter_name))
        self._remote.change()

    def set_runtime_option(self, key: str, value: str) -> None:
        """Set an option of the running model. ``terminate_session``, from any thread: "1" ends the prompt or token
        that is under way with `Cancelled`, and all later ones, until it is "0"."""
        if key == "terminate_session":
            self._remote.stopping.assign(str(value) == "1")
            return
        self._remote.recipe.runtime[str(key)] = str(value)
        self._remote.change()

    # --- qnnbridge ---

    @property
    def stats(self) -> GenerationStats:
        """What was done to keep the generation correct."""
        return self._remote.stats

    @property
    def timeout(self) -> float | None:
        """Seconds that one call may take; ``None`` (default): no limit."""
        return self._remote.timeout_s

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._remote.timeout_s = seconds

    def close(self) -> None:
        """Free the host's generator now. Without `close` it is freed with this object."""
        self._remote.close()

    def _tensor(self, arguments: dict[str, Any]) -> Any:
        from qnnbridge_protocol.values import decode_all

        frame = self._remote.look("tensor", arguments)
        return decode_all(field(frame.header, "values", "tuple[Any]"), frame.buffers)[0]


def _int32(tokens: list[int]) -> npt.NDArray[np.int32]:
    import numpy as np

    return np.asarray(tokens, np.int32)


# --- several sequences at once (batches, beams) from one generator ---


class RemoteBatch(RemoteGeneration):
    """`tokens` has only what was appended; the sequences are in the host."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Nothing is made ahead: the host forgets tokens of a single sequence (`align`), and not of several.
        self._longest = 1
        # Each prompt, and the steps behind it: the way on which a new host makes the same sequences again.
        self._log: list[tuple[list[int], int]] = []
        config = {} if self.model.info is None else self.model.info.search
        sizes = [self.recipe.search.get(name, config.get(name)) for name in ("batch_size", "num_return_sequences")]
        # Sequences that can be asked for: of beams the best ones.
        self.rows = math.prod(max(1, int(size or 1)) for size in sizes)

    def append(self, prompt: Sequence[int], count: int = 0) -> None:
        # First: the request that brings the prompt must not find it in the log as well. No token is generated with
        # it: the log counts tokens only when the application has them.
        super().append(prompt)
        self._log.append((list(prompt), 0))

    @property
    def steps_taken(self) -> int:
        return sum(count for _, count in self._log)

    def next_of_all(self) -> list[int]:
        """The next token of each sequence."""
        if self.done:
            raise GenerationError("The generation is done.", fix="Look at is_done() before, or append more tokens.")
        while not self.ahead and not self._done_after_ahead:
            self._fetch()
        found: Any = self.ahead.popleft()
        self.done = self._done_after_ahead
        prompt, count = self._log[-1]
        # Counted only now that the application has the tokens.
        self._log[-1] = (prompt, count + 1)
        return list(found)

    def sequence(self, index: int) -> list[int]:
        """All tokens of one sequence."""
        return list(field(self.look("sequence", {"index": index}).header, "result", "tuple[int, ...]"))

    def rewind(self, length: int) -> None:
        if length:
            raise GenerationUnsupported(
                "A generation of several sequences can only be rewound to its start.", fix="Call rewind_to(0)."
            )
        # The host's generator has its tokens still; `change` makes another one.
        self.tokens, self._log, self.done = [], [], False
        self.change()

    def _prepared(
        self, process: HostProcess, prompt: Sequence[int], count: int
    ) -> tuple[int, list[Any], dict[str, Any]]:
        number, _, _ = super()._prepared(process, prompt, count)
        arguments: dict[str, Any] = {"count": count, "length": 0}
        if self._is_blank and self._log:
            arguments["log"] = [[tokens, steps] for tokens, steps in self._log]
        return number, token_values(prompt) if prompt else [], arguments

    def _with_replay(self, attempt: Any, context: CallContext, deadline: float | None = None) -> Any:
        try:
            return super()._with_replay(attempt, context, deadline)
        except (Cancelled, DeadlineExceeded, KeyboardInterrupt):
            # The host may have done it all the same: what was answered is repeated in another generator.
            self.remade.forget()
            raise
