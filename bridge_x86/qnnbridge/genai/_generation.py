"""A generation that outlives hosts: its history is here, the host's generator can be made from it at any time.

Tokens come in steps: one request, several tokens, in frames as they are made. The first step has one token, each
further one twice as many, so the host runs a little ahead of the application. When the application does anything
but ask for the next token, what was made ahead is dropped, and the next request says how many tokens are true.

One thread at a time.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._supervision.host_process import deadline_after
from qnnbridge._threads import TerminateFlag, TerminateRelay
from qnnbridge._transport.channel import CallContext, ChannelFailed, ReplyStream
from qnnbridge.genai._model import (
    Adapters,
    Remade,
    RemoteModel,
    RunsAhead,
    call_object,
    operation_request,
    survive,
    token_values,
)
from qnnbridge_protocol.errors import BridgeError, Cancelled, GenerationError, PromptRefused
from qnnbridge_protocol.field_types import field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge_protocol.frames import Frame

# Tokens of the longest step. Through a daemon a step holds the application's turn.
LONGEST_STEP: Final = 32
LONGEST_STEP_OF_DAEMON: Final = 8


@dataclasses.dataclass
class GenerationStats:
    """What was done to keep a generation right.

    replays: how often a new native generator took the history over (a further prompt on a fixed window, a full
    window, a rewind, a new host). forced: tokens that were fed again one by one for it. reseeded: whether sampling
    began a new sequence of random numbers. restarts: how often a new host went on with it. steps: requests for
    tokens. first_token_s: from the first request after a prompt to its token.
    """

    replays: int = 0
    forced: int = 0
    reseeded: bool = False
    restarts: int = 0
    steps: int = 0
    first_token_s: float | None = None


@dataclasses.dataclass
class GenerationRecipe:
    """What a generator is made from. search: options by name. guidance: type, data, whether to use ff tokens."""

    search: dict[str, Any] = dataclasses.field(default_factory=dict)
    guidance: tuple[str, str, bool] | None = None
    adapter: tuple[Adapters, str] | None = None
    runtime: dict[str, str] = dataclasses.field(default_factory=dict)
    inputs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        return {
            "search": self.search,
            "guidance": None if self.guidance is None else list(self.guidance),
            "adapter": None if self.adapter is None else self.adapter[1],
            "runtime": [list(pair) for pair in self.runtime.items()],
            "inputs": list(self.inputs),
        }


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
        # Assigned by any thread: ends the prompt, or the step, that is under way.
        self.stopping = TerminateFlag()
        # Seconds that one call may take; ``None`` for ever.
        self.timeout_s: float | None = None
        # Tokens that came before they were asked for.
        self.ahead: collections.deque[int] = collections.deque()
        # The host has finished; the application still has the tokens of `ahead` to take.
        self._done_after_ahead = False
        self._step = 1
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

    def append(self, prompt: Sequence[int]) -> None:
        """Add a prompt, or a further one."""
        if not prompt:
            raise PromptRefused("The prompt has no tokens.", fix="Append at least one token.")
        self.settle()
        context = self._context_of([*self.tokens, *prompt])

        def attempt(process: HostProcess) -> Frame:
            # A count of 0: the prompt is processed and no token made. The next call asks for the first.
            number, values, arguments = self._prepared(process, prompt, 0)
            return call_object(process, number, "step", arguments, values, self._deadline, context, self.stopping)

        frame = self._with_replay(attempt, context)
        # Only now that the host has taken it: a prompt that is refused leaves the history as it was.
        self.tokens += prompt
        self.base, self._context = len(self.tokens), context
        self._take(frame)
        self.done = self._done_after_ahead
        # The first token comes alone, so that the time to it is not that of several.
        self._step = 1
        self.stats.first_token_s = None

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
            self.stats.first_token_s = time.monotonic() - began
        return token

    def rewind(self, length: int) -> None:
        """Forget all tokens from this number on."""
        if not 0 <= length <= len(self.tokens):
            raise GenerationError(
                f"Cannot rewind to {length}: the generator has {len(self.tokens)} tokens.",
                fix="Give a number from 0 to token_count().",
            )
        self.settle()
        # The host learns of it with the next request, whose `length` is smaller than what it has.
        del self.tokens[length:]
        self.base, self.done, self._step = min(self.base, length), False, 1

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
        number, values, arguments = self._prepared(process, (), self._step)
        self.stats.steps += 1
        self._process = process
        # A step of one token has no parts; and suspects of a crash run alone, which an open stream would not.
        if self._step > 1 and not host.blame.active:
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
        """A death in the call counts against the model with this prompt."""
        model = self.model.context
        # The prompt is a part of the suspect: one that kills twice is refused, and others go on with the same
        # model.
        text = f"{model.fingerprint}\n{' '.join(map(str, prompt))}"
        fingerprint = hashlib.sha256(text.encode()).hexdigest()
        label = f"{model.model} with a prompt of {len(prompt)} tokens"
        return dataclasses.replace(model, op="genai.step", model=label, fingerprint=fingerprint)

    def _new_object(self) -> Remade:
        # A local name: the function below must not refer to this generation, which owns the object (see `Remade`).
        recipe = self.recipe
        others = () if recipe.adapter is None else (recipe.adapter[0],)
        return self.model.child(
            "GenaiGenerator", "generator", recipe.arguments, *others, values=lambda: list(recipe.inputs.values())
        )

    def _myself(self) -> weakref.ref[RunsAhead]:
        return weakref.ref(self)

    def __del__(self) -> None:
        stream, self._stream = getattr(self, "_stream", None), None
        if stream is not None:
            # No message from a finalizer: `close` would write to the connection in the middle of any other
            # line.
            stream.abandon()
