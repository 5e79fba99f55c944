"""Objects of the host for generation, and models among them, that every host can make again.

An application's object has a recipe, and an object of the host only in the generation in which it was used last. A
call goes through these states::

    QUARANTINE ASKED --> HOST RUNNING --> OBJECT MADE THERE --> IN THE HOST --> answered
          ^                                     |                   |
          |                                     v                   v
          +-------------------------------- DEATH EXPLAINED (not by this call, or once by it)

A death that the call may have caused is followed by one more attempt. The second one puts the prompt (or the model,
while it is loaded) into quarantine, and is raised. Any thread.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from qnnbridge._host_objects import HostObject, object_message
from qnnbridge._session.create import show_notices
from qnnbridge._supervision import retries
from qnnbridge._supervision.host_process import deadline_after
from qnnbridge._supervision.retries import CallLimits, Death
from qnnbridge._threads import Terminable, TerminateRelay
from qnnbridge._transport.channel import CallContext, Deadline
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import RLock, sleep
from qnnbridge_os.shield import TooLate, in_turn
from qnnbridge_protocol.errors import (
    BridgeError,
    Closed,
    HostCrashed,
    ModelQuarantined,
    OptionError,
    StateLost,
)
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.frames import Frame
from qnnbridge_protocol.model_records import Notice
from qnnbridge_protocol.settings import cache_settings
from qnnbridge_protocol.specs import Fallback, GenerationModelInfo

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import HostProcess, Patience


# --- calls on objects of the host that are made again when a host dies ---

T = TypeVar("T")

# Header, buffers and context of the request that makes an object in a process.
MakeRequest = Callable[["HostProcess", "float | None"], "tuple[dict[str, Any], tuple[Any, ...], CallContext]"]

# Process, number of the object there, deadline.
Complete = Callable[["HostProcess", int, "float | None"], None]

# How often a daemon's host died under a connection that stayed.
_losses: weakref.WeakKeyDictionary[Host, int] = weakref.WeakKeyDictionary()

# Deaths that one call may have caused before it is given up.
OWN_DEATHS: Final = 1


def survive(
    host: Host,
    attempt: Callable[[HostProcess], T],
    context: CallContext,
    deadline: float | None = None,
    timeout_s: float | None = None,
) -> T:
    """Run `attempt` on objects of the host as `retries.survive` does.

    context: what a death in the call counts against.
    """

    def alone(process: HostProcess, deadline: float | None) -> T:
        # Isolated by attempt: a death makes suspects, which the next attempt has to run without company.
        with host.isolate(context, deadline):
            return attempt(process)

    result = retries.survive(host.supervisor, _ObjectPolicy(host, context), alone, CallLimits(timeout_s), deadline)
    host.supervisor.good_reply(context, "running")
    return result


class _ObjectPolicy(retries.Policy):
    """The policy of a call on objects."""

    _own = 0

    def __init__(self, host: Host, context: CallContext) -> None:
        super().__init__(host, context)
        self._host = host

    def judge(self, _process: HostProcess, error: BridgeError) -> Death | bool:
        if not self._host.is_daemon or not isinstance(error, (StateLost, HostCrashed)):
            return False
        # The daemon's host died, and the daemon has explained it. The connection stays, its objects are gone.
        _losses[self._host] = _losses.get(self._host, 0) + 1
        return Death(error, isinstance(error, StateLost) or error.details.get("from_outside") is True)

    def repeats(self, death: Death, patience: Patience) -> bool:
        if isinstance(death.error, Closed):
            return False
        # Only deaths that the call may have caused count against it.
        self._own += not death.innocent
        if self._own > OWN_DEATHS or not patience.is_left():
            self.check_quarantine()
            return False
        self._supervisor.counters.retried_calls += 1
        return True


def call_object(
    process: HostProcess,
    number: int,
    operation: str,
    arguments: dict[str, Any],
    values: Sequence[Any],
    deadline: float | None,
    context: CallContext,
    stopping: Terminable | None = None,
) -> Frame:
    """Call an operation of an object, whose number is known. Raises as `Channel.call` does.

    stopping: may end it.
    """
    header, buffers = operation_request(number, operation, arguments, values)
    with TerminateRelay(stopping, process.channel) as on_sent:
        return process.channel.call(header, buffers, deadline, context, on_sent)


def operation_request(
    number: int, operation: str, arguments: dict[str, Any], values: Sequence[Any]
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """The request that calls an operation of an object: header and buffers."""
    header, buffers = object_message(arguments, values)
    return {**header, "op": "object.call", "object": number, "operation": operation, "objects": []}, buffers


# How long native code may go on after the deadline of its call.
OVERDUE_S: Final = 5.0
_LOOK_S: Final = 0.2


def end_overdue(host: Host, grace_s: float = OVERDUE_S) -> bool:
    """Wait until the host has ended the calls that were given up; replace it by a new one if it does not.

    Calls of others are finished or made again. Returns whether the host was replaced.
    """
    process, until = host.supervisor.running, time.monotonic() + grace_s
    while process is not None and process is host.supervisor.running and process.channel.requests.abandoned:
        if time.monotonic() >= until:
            host.restart()
            return True
        sleep(_LOOK_S)
        with contextlib.suppress(BridgeError):
            host.ping(_LOOK_S)  # reads the answers of calls that were given up
    return False


class Remade:
    """An object of the host that is made again in each generation. Any thread.

    kind: its name. make: gives header, buffers and context of the request that makes it in this process. complete:
    puts into a new one, by its number, what it must have before any thread uses it. Neither may refer to what owns
    this: the owner would stay until the garbage collector runs.
    """

    def __init__(
        self, host: Host, kind: str, make: MakeRequest | None = None, complete: Complete | None = None
    ) -> None:
        self.host = host
        self._kind = kind
        self._make = make
        self._complete = complete
        self._lock = renew_in_forks(RLock())  # for `in_turn`
        self._object: HostObject | None = None
        self._made_after = 0
        self.times_made = 0

    def number_in(self, process: HostProcess, deadline: float | None) -> int:
        """Its number there; makes it if need be."""
        # Read once and without the lock: another thread may replace it, and the common case must not wait for a
        # model that is being loaded.
        found = self._object
        if found is not None and self._is_in(found, process):
            return found.number

        def make() -> int:
            if self._object is None or not self._is_in(self._object, process):
                # Before the new one is made: if that fails, the object of the dead host must not be taken for
                # alive.
                self._object = None
                self._object = self._create(process, deadline)
            return self._object.number

        try:
            return in_turn(self._lock, -1 if deadline is None else max(0.0, deadline - time.monotonic()), make)
        except TooLate:
            raise Deadline("not-started") from None

    @property
    def is_loaded(self) -> bool:
        """Whether the last known host has it. Asks no host and takes no lock."""
        return self._object is not None

    def forget(self) -> None:
        """It is lost, or cannot be used: the next call makes another."""
        # Taken away before it is released: no call in another thread can still be given its number.
        found, self._object = self._object, None
        if found is not None:
            found.release()

    def _create(self, process: HostProcess, deadline: float | None) -> HostObject:
        header, buffers, context = self._request(process, deadline)
        sent: list[int] = []
        # Read before the request: a host of the daemon that dies during it makes this object count as lost.
        losses = _losses.get(self.host, 0)
        try:
            frame = process.channel.call(header, buffers, deadline, context, sent.append)
        except BaseException:
            # It may be made all the same; its number is that of the request.
            for number in sent:
                self.host.release_object_later(process.generation, number)
            raise
        self._made(frame)
        self._made_after = losses
        self.times_made += 1
        made = HostObject(self.host, process.generation, field(frame.header, "object", "int"), self._kind)
        if self._complete is not None:
            # If it fails, the object goes with its last reference, and the next call makes another.
            self._complete(process, made.number, deadline)
        return made

    def _request(self, process: HostProcess, deadline: float | None) -> Any:
        assert self._make is not None
        return self._make(process, deadline)

    def _made(self, frame: Frame) -> None:
        """Take the answer to the request that made the object."""

    def answer_of_creation(self) -> Frame | None:
        """Return the answer to the request that made the object, once, if it also answers the call."""
        return None

    def _is_in(self, found: HostObject, process: HostProcess) -> bool:
        there = found.generation == process.generation and not found.released
        # Through a daemon the generation stays the same when its host dies, so deaths are counted apart.
        return there and self._made_after == _losses.get(self.host, 0)


# --- models ---


@dataclasses.dataclass(frozen=True, slots=True)
class ModelRecipe:
    """Everything needed to load a model again."""

    folder: str
    steps: tuple[tuple[Any, ...], ...]
    data: tuple[tuple[str, bytes], ...]
    fallback: Fallback
    allow_native: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return os.path.basename(os.path.normpath(self.folder)) or self.folder

    @property
    def options_hash(self) -> str:
        """Of everything but the folder, and the permissions: they do not change a model that is loaded."""
        parts = [self.steps, self.fallback, [(name, hashlib.sha256(data).hexdigest()) for name, data in self.data]]
        return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class RunsAhead(Protocol):
    """A generation. tokens: taken by the application. ahead: further ones that have arrived."""

    tokens: list[int]
    ahead: collections.deque[int]


class RemoteModel(Remade):
    """A model in whichever host runs. Any thread."""

    def __init__(self, host: Host, recipe: ModelRecipe) -> None:
        super().__init__(host, "GenaiModel")
        self.recipe = recipe
        self.options_hash = recipe.options_hash
        self.context = CallContext("genai.load", recipe.label, "", self.options_hash)
        self.info: GenerationModelInfo | None = None
        # The generation whose tokens a `TokenizerStream` is most likely to be given next.
        self.ahead: weakref.ref[RunsAhead] | None = None

    def open(self, timeout_s: float | None) -> GenerationModelInfo:
        """Load it now."""
        deadline = deadline_after(timeout_s)
        survive(self.host, lambda process: self.number_in(process, deadline), self.context, deadline, timeout_s)
        assert self.info is not None
        return self.info

    def number_in(self, process: HostProcess, deadline: float | None) -> int:
        """Its number in this process; loads it there if need be."""
        try:
            return super().number_in(process, deadline)
        except ModelQuarantined as refusal:
            # The host knows the fingerprint of the model, the application the reports of its deaths: together they
            # make the error that names both. A daemon has done that already.
            if not self.host.is_daemon:
                self._book_on(str(refusal.details.get("fingerprint", "")))
                self.host.supervisor.check_quarantine(self.context)
            raise

    def context_of(self, label: str, arguments: Any, values: Sequence[Any] = ()) -> CallContext:
        """Return the suspect of a death in a call with these arguments: the model with them, never the model alone.

        label: of the call, as text. arguments: JSON.
        """
        import numpy as np

        model, digest = self.context, hashlib.sha256()
        text = json.dumps([model.fingerprint, arguments], sort_keys=True)
        digest.update(text.encode("utf-8", "surrogatepass"))
        for value in values:
            array = np.ascontiguousarray(getattr(value, "data", value) if hasattr(value, "element_type") else value)
            digest.update(f"\n{array.dtype} {array.shape}\n".encode())
            digest.update(array.tobytes())
        named = f"{model.model} with {label}"
        return dataclasses.replace(model, op="genai.step", model=named, fingerprint=digest.hexdigest())

    def on_object(
        self,
        remade: Remade,
        what: str,
        operation: str,
        arguments: dict[str, Any],
        values: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> Frame:
        """Call an operation of an object that the model made. what: the object with its operation, for messages.

        A death in it counts against the model with these arguments.
        """
        deadline = deadline_after(timeout)
        context = self.context_of(f"a call of {what}", [operation, arguments], values)

        def attempt(process: HostProcess) -> Frame:
            number = remade.number_in(process, deadline)
            answer = remade.answer_of_creation()
            if answer is not None:
                return answer
            return call_object(process, number, operation, arguments, values, deadline, context)

        return survive(self.host, attempt, context, deadline, timeout)

    def child(
        self,
        kind: str,
        operation: str,
        arguments: Any,
        *others: Remade,
        values: Any = None,
        complete: Complete | None = None,
    ) -> Remade:
        """An object that an operation of the model makes. arguments, values: give the request's, each time."""

        def make(process: HostProcess, deadline: float | None) -> Any:
            header, buffers = object_message(arguments(), () if values is None else values())
            numbers = [one.number_in(process, deadline) for one in others]
            header |= {"op": "object.call", "object": self.number_in(process, deadline), "operation": operation}
            return {**header, "objects": numbers}, buffers, self.context

        return Remade(self.host, kind, make, complete)

    def _request(self, _process: HostProcess, _deadline: float | None) -> Any:
        import numpy as np

        recipe, quarantine = self.recipe, self.host.quarantine
        cache = cache_settings()
        header, buffers = object_message(
            {
                "folder": recipe.folder,
                "steps": [list(step) for step in recipe.steps],
                "fallback": recipe.fallback,
                "allow_native": list(recipe.allow_native),
                "data": [name for name, _ in recipe.data],
                "cache": cache.folder if cache.enabled else None,
                # Of the first loading: a folder that has changed since is refused. Histories belong to its model.
                "fingerprint": None if self.info is None else self.info.fingerprint,
                "quarantined": [] if quarantine is None else list(quarantine.fingerprints(self.options_hash)),
            },
            [np.frombuffer(data, np.uint8) for _, data in recipe.data],
        )
        return {**header, "op": "object.create", "kind": "GenaiModel", "objects": []}, buffers, self.context

    def _made(self, frame: Frame) -> None:
        self.info = GenerationModelInfo.from_wire(field(frame.header, "result", "Mapping[str, Any]"))
        # A set: several stages with the same cure make one warning.
        took = {stage.placement.npu_memory for stage in self.info.stages} - {""}
        texts = [*self.info.notes, *(f"{self.info.label} is {words}." for words in took)]
        show_notices([Notice("once", text) for text in texts])
        self._book_on(self.info.fingerprint)

    def _book_on(self, fingerprint: str) -> None:
        # From now on a death during a call is booked on this model.
        if fingerprint != self.context.fingerprint:
            self.context = dataclasses.replace(self.context, fingerprint=fingerprint)


def tokens_of(tokens: Any) -> list[int]:
    """Token ids from whatever genai takes: an array, a list, a Tensor; of a batch one sequence after the other."""
    import numpy as np

    given = tokens.as_numpy() if hasattr(tokens, "as_numpy") else tokens
    array = np.asarray(given)
    # An empty list is one of floats in numpy.
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise OptionError(f"Token ids are integers, not {array.dtype}.", fix="Encode the text with a Tokenizer.")
    return [int(one) for one in array.reshape(-1)]


def token_values(*lists: Sequence[int]) -> list[Any]:
    """Token ids as values of the wire."""
    import numpy as np

    return [np.asarray(one, np.int64) for one in lists]
