"""Generations in the host, which survive its crashes.

This process keeps the history (all tokens), so the host's generator can be created again at any time. Tokens are
generated in steps: one request is for several tokens, which the host sends as it generates them. The first step has
one token and each further step twice as many, so the host runs a little ahead of the application. The next step is
requested in the middle of the current one, so that the host never waits for a request. When the application does
anything but read the next token, the tokens generated ahead are dropped, and the next request contains the number
of tokens that are still valid.

Not thread-safe.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qnnbridge._host_objects import object_message
from qnnbridge._supervision.host_process import deadline_after
from qnnbridge._threads import TerminateFlag, TerminateRelay
from qnnbridge._transport.channel import MAX_STREAMS, CallContext, ChannelFailed, ReplyStream
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
    PromptRefused,
    desync,
)
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.shown import counted

if TYPE_CHECKING:
    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge.genai._tensors import NamedTensors
    from qnnbridge_protocol.frames import Frame


# Maximum number of tokens of a step. With a daemon, steps are shorter, because other applications wait for the end
# of a step: at most `FIRST_STEPS_OF_DAEMON` tokens until the time per token is known.
LONGEST_STEP: Final = 32
# Number of tokens of an answer's second step if the application will probably read many tokens.
FIRST_OF_ANSWER: Final = 8
# Request a step ahead only while the connection has fewer open streams than this number, so that other generations
# also get streams.
STREAMS_AHEAD: Final = MAX_STREAMS // 2
FIRST_STEPS_OF_DAEMON: Final = 8
# Target duration of a step with a daemon, in seconds. The number of tokens is derived from the time of earlier
# steps; a single token may take longer.
STEP_OF_DAEMON_S: Final = 0.1


class _Step(NamedTuple):
    """Contents of a request that generates a step of tokens.

    arguments, values: contents of the request. others: further objects in the host that the request refers to.
    context: what is blamed for a crash in the step.
    """

    arguments: dict[str, Any]
    values: list[Any]
    others: tuple[Remade, ...]
    context: CallContext


@dataclasses.dataclass(slots=True)
class _OpenStep:
    """Step whose tokens are arriving.

    count: number of requested tokens. left: number of tokens that have not arrived. began: time of the
    request, or the end of the previous step if that is later.
    """

    stream: ReplyStream
    count: int
    left: int
    began: float


class _RemoteGenerator(Remade):
    """Native generator in the current host. The request that creates it also runs its first step.

    stopping: flag with which another thread can end the first step.
    """

    def __init__(self, model: RemoteModel, recipe: GenerationRecipe, stopping: TerminateFlag) -> None:
        super().__init__(model.host, "GenaiGenerator")
        self._model = model
        self._recipe = recipe
        self._stopping = stopping
        # The first step of the next generator that is created. This step contains the whole history.
        self.first: _Step | None = None
        self._answer: Frame | None = None

    def answer_of_creation(self) -> Frame | None:
        answer, self._answer = self._answer, None
        return answer

    def _request(self, process: HostProcess, deadline: float | None) -> Any:
        step, recipe = self.first, self._recipe
        assert step is not None
        arguments = {**recipe.arguments(), "step": step.arguments}
        header, buffers = object_message(arguments, [*recipe.values(), *step.values])
        numbers = [one.number_in(process, deadline) for one in (*recipe.objects(), *step.others)]
        number = self._model.number_in(process, deadline)
        header |= {"op": "object.call", "object": number, "operation": "generator", "objects": numbers}
        return header, buffers, step.context

    def _made(self, frame: Frame) -> None:
        result = field(frame.header, "result", "Mapping[str, Any]")
        if "step" in result:
            self._answer = frame._replace(header={**frame.header, "result": result["step"]})


class RemoteGeneration:
    """Generation in the host, with the history that is needed to create the host's generator again.

    Attributes:
        tokens: the history: prompts and answers.
        base: length of the history at the end of the last prompt.
        text: the text that the last token added, if `decode_with` was called.
    """

    def __init__(self, model: RemoteModel, recipe: GenerationRecipe) -> None:
        self.model = model
        self.recipe = recipe
        self.tokens: list[int] = []
        self.base = 0
        self.done = False
        self.stats = GenerationStats()
        # Length of the history at which the application stops. The host generates no tokens beyond it.
        self.most: int | None = None
        # Flag that any thread may set to end the running prompt or step.
        self.stopping = TerminateFlag()
        # Seconds that one call may take. ``None``: no limit.
        self.timeout_s: float | None = None
        # Tokens that arrived before the application asked for them.
        self.ahead: collections.deque[int] = collections.deque()
        # Whether the host has finished. The application may not have taken all tokens of `ahead` yet.
        self._done_after_ahead = False
        self._step = 1
        # Seconds that the request for the last prompt took.
        self._prompt_s = 0.0
        self._longest = LONGEST_STEP
        self._in_turn = FIRST_STEPS_OF_DAEMON if model.host.is_daemon else LONGEST_STEP
        # The step whose tokens are arriving, and the next one if it was requested ahead.
        self._steps: collections.deque[_OpenStep] = collections.deque()
        self._process: HostProcess | None = None
        self._context = dataclasses.replace(model.context, op="genai.step")
        self.text = ""
        # Texts of the tokens in `ahead`. The host decodes the tokens with `_tokenizer` (see `decode_with`).
        self._texts: collections.deque[str] = collections.deque()
        self._tokenizer: Remade | None = None
        self._answer_start = 0
        # Statistics of the native generators that this generation used before the current one.
        self._earlier = GenerationStats()
        self.remade = self._new_object()

    # --- operations of the application ---

    def append(self, prompt: Sequence[int], count: int = 0) -> None:
        """Append a prompt.

        Args:
            prompt: token ids.
            count: number of tokens to generate in the same request. 0 lets the application read or change the
                logits of the first token.
        """
        if not prompt:
            raise PromptRefused("The prompt has no tokens.", fix="Append at least one token.")
        self.settle()
        # Check the flag here: a cancellation sent with the request may arrive after a short prompt was processed.
        self._refuse_terminated()
        context, began, deadline = self._context_of([*self.tokens, *prompt]), time.monotonic(), self._deadline

        def attempt(process: HostProcess) -> Frame:
            return self._run_step(process, prompt, count, deadline, context)

        frame = self._with_replay(attempt, context, deadline)
        # Extend the history only after the host has accepted the prompt.
        self.tokens += prompt
        self.base, self._context = len(self.tokens), context
        self._take(frame)
        self.done = self._done_after_ahead and not self.ahead
        # The first token comes alone, so that the time to the first token does not include further tokens.
        self._step = min(FIRST_OF_ANSWER if count else 1, self._longest)
        self.stats.steps += count > 0
        self.stats.first_token_s, self._prompt_s = None, time.monotonic() - began

    def begin(self, inputs: NamedTensors) -> None:
        """Use these inputs of the model, and append the prompt if they contain one."""
        if self.tokens:
            raise GenerationUnsupported(
                "Only the first prompt of a generator can contain pictures and sound.",
                cause=f"The generator has {counted(len(self.tokens), 'token')} already, so onnxruntime-genai would "
                "ignore new inputs.",
                fix="Create a new Generator, and pass all messages with their pictures and sound.",
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

    def decode_with(self, tokenizer: Remade | None, start: int = 0) -> None:
        """Make the host decode each token in the step that generates it, and store the result in `text`.

        Args:
            tokenizer: tokenizer that decodes the tokens. ``None``: stop decoding.
            start: length of the history before the answer.
        """
        self.settle()
        self._tokenizer, self._answer_start, self.text = tokenizer, start, ""

    def next(self) -> int:
        """Return the next token."""
        if self.done:
            raise GenerationError("The generation is done.", fix="Check is_done() first, or append more tokens.")
        if not self.tokens:
            raise PromptRefused("There is no prompt.", fix="Call append_tokens first.")
        self._refuse_terminated()
        began = time.monotonic()
        # Store a weak reference, so that the model does not keep the generation alive.
        self.model.ahead = self._myself()
        # A frame may contain no token (after a crash of the host, or at the end).
        while not self.ahead and not self._done_after_ahead:
            self._fetch()
        if not self.ahead:
            self.done = True
            raise GenerationError("The generation is done.", fix="Check is_done() first, or append more tokens.")
        token = self.ahead.popleft()
        if self._tokenizer is not None:
            self.text = self._texts.popleft()
        self.done = self._done_after_ahead and not self.ahead
        # The end token is not part of the sequence, as in genai.
        if not (self.done and self.model.info is not None and token in self.model.info.eos):
            self.tokens.append(token)
        if self.stats.first_token_s is None:
            self.stats.first_token_s = self._prompt_s + time.monotonic() - began
        return token

    def rewind(self, length: int) -> None:
        """Drop all tokens after the first `length`."""
        if not 0 <= length <= len(self.tokens):
            raise GenerationError(
                f"Cannot rewind to {length}: the generator has {len(self.tokens)} tokens.",
                fix="Pass a number from 0 to token_count().",
            )
        if length == len(self.tokens):
            return  # a finished generation stays finished
        self.settle()
        # The next request contains the smaller `length`, so the host then rewinds its generator.
        del self.tokens[length:]
        self.base, self.done, self._step = min(self.base, length), False, 1

    def begin_again(self, length: int) -> None:
        """Keep the first `length` tokens for another prompt, and reset the statistics."""
        self.rewind(length)
        # The host's counters cover the whole lifetime of its generator, so earlier counts are subtracted.
        old, earlier = self.stats, self._earlier
        self.stats = GenerationStats()
        self._earlier = GenerationStats(earlier.replays - old.replays, earlier.forced - old.forced)

    def call_on_state(self, operation: str, arguments: dict[str, Any], values: Sequence[Any] = ()) -> Frame:
        """Call an operation on the state after the last token that the application has read. After this call the
        host generates one token at a time."""
        self.settle()
        # Generate one token at a time, because a program that reads logits between tokens discards tokens generated
        # ahead.
        self._longest = 1
        deadline = self._deadline

        def attempt(process: HostProcess) -> Frame:
            # First run a step without tokens: it rewinds the host's generator to the application's last token, or
            # sends the history to a new generator. The request for the operation alone would do neither.
            self._run_step(process, (), 0, deadline, self._context)
            number = self.remade.number_in(process, deadline)
            return call_object(process, number, operation, arguments, values, deadline, self._context)

        # Send both requests in each attempt: if the host dies between them, the next host needs the history again.
        frame: Frame = self._with_replay(attempt, self._context, deadline)
        return frame

    def settle(self) -> None:
        """Stop generating ahead, and drop the tokens generated ahead."""
        # Close the oldest stream first: the host begins a step only when the step before it has ended.
        while self._steps:
            self._steps.popleft().stream.close()
        self.ahead.clear()
        self._texts.clear()
        self._done_after_ahead = False

    def change(self) -> None:
        """Discard the host's generator after a change of the recipe. The next call creates a new one."""
        self.settle()
        self._keep_stats()
        self.remade.forget()
        self.remade = self._new_object()
        if self.tokens:
            self._context = self._context_of(self.tokens)

    def close(self) -> None:
        """Free the host's generator."""
        self.settle()
        self.remade.forget()

    # --- steps ---

    def _refuse_terminated(self) -> None:
        if self.stopping.terminate:
            self.settle()
            raise Cancelled("The generation was terminated.", fix='Set "terminate_session" to "0" to go on.')

    def _fetch(self) -> None:
        """Wait for tokens, or for the end of the generation."""
        # Use one deadline for all attempts, so that a crash of the host does not extend the time of the call.
        context, deadline = self._context, self._deadline

        def attempt(process: HostProcess) -> None:
            steps = self._steps
            # Drop the streams of a host that has ended, because the new process needs a new request.
            if self._process is not process:
                _abandon(steps)
            if not steps and self._begin_step(process, deadline):
                return
            self._request_ahead(process, deadline)
            step = steps[0]
            try:
                with TerminateRelay(self.stopping, process.channel) as stoppable:
                    # The request was sent before the `TerminateRelay` existed, so register the request's id here.
                    if stoppable is not None:
                        stoppable(step.stream.request_id)
                    frame = step.stream.next(deadline)
            # Do not catch `CallTimedOut`: after a timeout the next call continues to read the stream.
            except ChannelFailed:
                steps.clear()
                raise
            except BridgeError:
                self.settle()
                raise
            if frame.header.get("event") == "tokens":
                tokens = field(frame.header, "tokens", "tuple[Any, ...]")
                step.left -= len(tokens)
                self._take_tokens(tokens, field(frame.header, "texts", "tuple[str, ...]"))
            elif "result" in frame.header:
                steps.popleft()
                self._take(frame)
                self._adapt_turn(step.began, step.count)
                if steps:
                    steps[0].began = time.monotonic()

        self._with_replay(attempt, context, deadline)

    def _begin_step(self, process: HostProcess, deadline: float | None) -> bool:
        """Request the next tokens. Return whether they have arrived; else a stream in `_steps` delivers them."""
        count, is_new = self._next_count(len(self.tokens)), not self.remade.is_in(process)
        self._process = process
        # A step of one token needs no stream. After a crash the suspected calls run one at a time, which an open
        # stream would prevent.
        if count > 1 and not is_new and not self.model.host.blame.active:
            self._open_step(process, len(self.tokens), count, deadline)
        if self._steps:
            return False
        # The host answers a request that creates a generator only after the whole step, so that step has one token.
        self._grow()
        began = time.monotonic()
        self._take(self._run_step(process, (), 1 if is_new else count, deadline, self._context))
        if not is_new:
            self._adapt_turn(began, count)
        return True

    def _request_ahead(self, process: HostProcess, deadline: float | None) -> None:
        """Request the next step in the middle of the current one, so that the host does not wait."""
        step = self._steps[0]
        at = len(self.tokens) + step.left
        if len(self._steps) > 1 or 2 * step.left > step.count or (self.most is not None and at >= self.most):
            return
        # With fast-forward tokens, a step may append more tokens than requested, so its final length is unknown.
        fast_forward = self.recipe.guidance is not None and self.recipe.guidance[2]
        crowded = len(process.channel.requests.streams) >= STREAMS_AHEAD
        if not (fast_forward or crowded or self.model.host.blame.active):
            self._open_step(process, at, self._next_count(at), deadline)

    def _next_count(self, length: int) -> int:
        """Return the number of tokens of the next step. length: length of the history before that step."""
        return self._step if self.most is None else max(1, min(self._step, self.most - length))

    def _open_step(self, process: HostProcess, length: int, count: int, deadline: float | None) -> None:
        """Request a step whose tokens come through `_steps`, if the connection has room for another stream.

        length: length of the history at the beginning of the step.
        """
        step = self._request((), count, self._context, is_new=False)
        arguments = {**step.arguments, "length": length, "stream": True}
        number, others = self._numbers_in(process, step, deadline)
        header, buffers = operation_request(number, "step", arguments, step.values, others)
        stream = ReplyStream.open(process.channel, header, buffers, deadline, self._context)
        if stream is not None:
            self._steps.append(_OpenStep(stream, count, count, time.monotonic()))
            self._grow()

    def _grow(self) -> None:
        self.stats.steps += 1
        # With lengths of 1, 2, 4, 8 ..., a program that stops early wastes at most about as many tokens as it used.
        self._step = min(2 * self._step, self._longest, self._in_turn)

    def _adapt_turn(self, began: float, count: int) -> None:
        """Adapt the length of later steps to the time of the last step, including the wait for other clients."""
        if self.model.host.is_daemon:
            each_s = max(1e-6, time.monotonic() - began) / count
            self._in_turn = max(1, min(LONGEST_STEP, int(STEP_OF_DAEMON_S / each_s)))
            self._step = min(self._step, self._in_turn)

    def _run_step(
        self,
        process: HostProcess,
        prompt: Sequence[int],
        count: int,
        deadline: float | None,
        context: CallContext,
    ) -> Frame:
        """Run a step. If the process has no generator, the request that creates it also runs the step."""
        self._process, remade = process, self.remade
        is_new = not remade.is_in(process)
        step = self._request(prompt, count, context, is_new=is_new)
        if is_new:
            made_before, remade.first = remade.times_made, step
            try:
                remade.number_in(process, deadline)
            finally:
                remade.first = None
            # The new generator counts from 0: `_take` adds the counts of the earlier generators.
            self._keep_stats()
            # Count created objects, not processes, because the connection to a daemon survives a crash of the host.
            # The first object is not a restart.
            self.stats.restarts += made_before > 0
            answer = remade.answer_of_creation()
            if answer is not None:
                return answer
        # The generator existed already, or its creation did not run the step, because a daemon had to free another
        # generator first.
        try:
            number, others = self._numbers_in(process, step, deadline)
            return call_object(
                process, number, "step", step.arguments, step.values, deadline, context, self.stopping, others
            )
        except BaseException:
            if is_new:
                # Discard the new generator, because it does not contain the history.
                remade.forget()
            raise

    def _request(self, prompt: Sequence[int], count: int, context: CallContext, *, is_new: bool) -> _Step:
        """Return the request for a step after the last token that the application has read. is_new: whether the
        request creates the generator and must therefore contain the history."""
        arguments = {"length": len(self.tokens), "base": self.base, "count": count}
        values = token_values(prompt) if prompt else []
        if is_new and self.tokens:
            arguments["restore"] = True
            values = token_values(prompt, self.tokens)
        if self._tokenizer is None:
            return _Step(arguments, values, (), context)
        return _Step({**arguments, "answer_start": self._answer_start}, values, (self._tokenizer,), context)

    def _numbers_in(self, process: HostProcess, step: _Step, deadline: float | None) -> tuple[int, list[int]]:
        """Return the ids that the generator and the step's other objects have in the process."""
        return self.remade.number_in(process, deadline), [one.number_in(process, deadline) for one in step.others]

    def _take(self, frame: Frame) -> None:
        result = field(frame.header, "result", "tuple[tuple[Any, ...], bool, int, int, bool, tuple[str, ...]]")
        tokens, done, replays, forced, reseeded, texts = result
        self._take_tokens(tokens, texts)
        self._done_after_ahead = bool(done)
        self.stats.replays = self._earlier.replays + int(replays)
        self.stats.forced = self._earlier.forced + int(forced)
        self.stats.reseeded = self._earlier.reseeded or bool(reseeded)

    def _take_tokens(self, tokens: Sequence[Any], texts: Sequence[str]) -> None:
        if self._tokenizer is not None and len(texts) != len(tokens):
            raise desync(f"{len(texts)} texts for {len(tokens)} tokens")
        self.ahead.extend(tokens)
        self._texts.extend(texts)

    def _keep_stats(self) -> None:
        stats = self.stats
        self._earlier = GenerationStats(stats.replays, stats.forced, stats.reseeded)

    @property
    def _deadline(self) -> float | None:
        return deadline_after(self.timeout_s)

    def _with_replay(self, attempt: Any, context: CallContext, deadline: float | None = None) -> Any:
        return survive(self.model.host, attempt, context, deadline or self._deadline, self.timeout_s)

    def _context_of(self, prompt: Sequence[int]) -> CallContext:
        """Return the context that is blamed for a crash in the call: the model with this prompt and these
        parameters.

        A prompt that crashes the host twice is refused. The model still accepts other prompts, and the same prompt
        with different guidance or without guidance.
        """
        recipe = self.recipe
        guided = "" if recipe.guidance is None else f" and guidance ({recipe.guidance[0]})"
        label = f"a prompt of {len(prompt)} tokens{guided}"
        made = None if recipe.named is None else recipe.named.made
        digest = "" if made is None else made.digest
        return self.model.context_of(label, [recipe.arguments(), list(prompt), digest], recipe.values())

    def _new_object(self) -> _RemoteGenerator:
        return _RemoteGenerator(self.model, self.recipe, self.stopping)

    def _myself(self) -> weakref.ref[RunsAhead]:
        return weakref.ref(self)

    def __del__(self) -> None:
        # Do not call `settle`, which writes to the connection: a finalizer may run between any two instructions.
        _abandon(getattr(self, "_steps", collections.deque()))


def _abandon(steps: collections.deque[_OpenStep]) -> None:
    """Drop the steps without a message to the host."""
    while steps:
        steps.popleft().stream.abandon()


# --- several sequences at once (batches, beams) from one generator ---


class RemoteBatch(RemoteGeneration):
    """Generation of several sequences. `tokens` contains only the prompts; the sequences are in the host."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # No tokens are generated ahead: the host can drop tokens of a single sequence only (`align`).
        self._longest = 1
        # Each prompt with the number of steps after it. A new host repeats them to get the same sequences.
        self._log: list[tuple[list[int], int]] = []
        config = {} if self.model.info is None else self.model.info.search
        sizes = [self.recipe.search.get(name, config.get(name)) for name in ("batch_size", "num_return_sequences")]
        # Number of sequences that can be read. For beam search, only the returned beams count.
        self.rows = math.prod(max(1, int(size or 1)) for size in sizes)

    def append(self, prompt: Sequence[int], count: int = 0) -> None:
        # Extend the log after the request: a request that creates a new generator contains the log, and would
        # contain the prompt twice. Generate no token in the same request, because the log counts a token only when
        # the application reads it.
        super().append(prompt)
        self._log.append((list(prompt), 0))

    @property
    def steps_taken(self) -> int:
        return sum(count for _, count in self._log)

    def next_of_all(self) -> list[int]:
        """Return the next token of each sequence."""
        if self.done:
            raise GenerationError("The generation is done.", fix="Check is_done() first, or append more tokens.")
        while not self.ahead and not self._done_after_ahead:
            self._fetch()
        found: Any = self.ahead.popleft()
        self.done = self._done_after_ahead
        prompt, count = self._log[-1]
        # Count a step only when the application reads its tokens.
        self._log[-1] = (prompt, count + 1)
        return list(found)

    def sequence(self, index: int) -> list[int]:
        """Return all tokens of one sequence."""
        return list(field(self.call_on_state("sequence", {"index": index}).header, "result", "tuple[int, ...]"))

    def rewind(self, length: int) -> None:
        if length:
            raise GenerationUnsupported(
                "A generation of several sequences can only be rewound to its start.", fix="Call rewind_to(0)."
            )
        # The host's generator still contains its old tokens; `change` discards it.
        self.tokens, self._log, self.done = [], [], False
        self.change()

    def _request(self, prompt: Sequence[int], count: int, context: CallContext, *, is_new: bool) -> _Step:
        arguments: dict[str, Any] = {"count": count, "length": 0}
        if is_new and self._log:
            arguments["log"] = [[tokens, steps] for tokens, steps in self._log]
        return _Step(arguments, token_values(prompt) if prompt else [], (), context)

    def _with_replay(self, attempt: Any, context: CallContext, deadline: float | None = None) -> Any:
        try:
            return super()._with_replay(attempt, context, deadline)
        except (Cancelled, DeadlineExceeded, KeyboardInterrupt):
            # The host may have executed the request nevertheless. Discard the generator; a new one repeats only the
            # requests that were answered.
            self.remade.forget()
            raise
