"""Native objects for generation in the host, such as models, that can be created again in every later host.

An object of the application refers to a recipe, and to a native object in the host that ran the last call. A call
goes through these states::

    CHECK QUARANTINE --> HOST RUNNING --> CREATE OBJECT THERE --> IN THE HOST --> answered
          ^                                      |                   |
          |                                      v                   v
          +--------------------------------- HOST DIED (because of another call, or once because of this call)

After a crash that the call may have caused, the call is attempted once more. After a second such crash, the prompt
(or the model, if it was being loaded) is quarantined and the call raises an error. Safe to use from any thread.
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
from qnnbridge._transport.channel import CallContext, CallTimedOut
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
    from qnnbridge._supervision.host_process import HostProcess, RepeatWindow


# --- calls on objects in the host, which are created again after a crash of the host ---

T = TypeVar("T")

# Function that returns header, buffers and context of the request that creates an object in a process.
MakeRequest = Callable[["HostProcess", "float | None"], "tuple[dict[str, Any], tuple[Any, ...], CallContext]"]

# Function that prepares a new object. Arguments: process, number of the object in that process, deadline.
Complete = Callable[["HostProcess", int, "float | None"], None]

# For each `Host` that uses a daemon: how often the daemon has reported a crash of its NPU host.
_losses: weakref.WeakKeyDictionary[Host, int] = weakref.WeakKeyDictionary()

# A call that may have caused more crashes than this number is not repeated.
OWN_DEATHS: Final = 1


def survive(
    host: Host,
    attempt: Callable[[HostProcess], T],
    context: CallContext,
    deadline: float | None = None,
    timeout_s: float | None = None,
) -> T:
    """Run `attempt` with `retries.survive`, which repeats it in a new host after a crash, as `_ObjectPolicy`
    decides.

    context: what is blamed for a crash in the call.
    """

    def alone(process: HostProcess, deadline: float | None) -> T:
        # Isolate each attempt: after a crash, a call that may have caused the crash runs alone.
        with host.isolate(context, deadline):
            return attempt(process)

    result = retries.survive(host.supervisor, _ObjectPolicy(host, context), alone, CallLimits(timeout_s), deadline)
    host.supervisor.good_reply(context, "running")
    return result


class _ObjectPolicy(retries.Policy):
    """Retry policy of calls on objects in the host."""

    _own = 0

    def __init__(self, host: Host, context: CallContext) -> None:
        super().__init__(host, context)
        self._host = host

    def judge(self, _process: HostProcess, error: BridgeError) -> Death | bool:
        if not self._host.is_daemon or not isinstance(error, (StateLost, HostCrashed)):
            return False
        # The daemon has reported the crash of its host. The connection to the daemon stays open, but the objects
        # are lost.
        _losses[self._host] = _losses.get(self._host, 0) + 1
        return Death(error, isinstance(error, StateLost) or error.details.get("from_outside") is True)

    def repeats(self, death: Death, window: RepeatWindow) -> bool:
        if isinstance(death.error, Closed):
            return False
        # Only crashes that the call may have caused count.
        self._own += not death.innocent
        if self._own > OWN_DEATHS or not window.is_open():
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
    objects: Sequence[int] = (),
) -> Frame:
    """Call an operation of the object with this number. Raises the same errors as `Channel.call`.

    stopping: flag with which another thread can end the call.
    objects: numbers of further objects that the request refers to.
    """
    header, buffers = operation_request(number, operation, arguments, values, objects)
    with TerminateRelay(stopping, process.channel) as on_sent:
        return process.channel.call(header, buffers, deadline, context, on_sent)


def operation_request(
    number: int, operation: str, arguments: dict[str, Any], values: Sequence[Any], objects: Sequence[int] = ()
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return header and buffers of the request that calls an operation of an object."""
    header, buffers = object_message(arguments, values)
    return {
        **header,
        "op": "object.call",
        "object": number,
        "operation": operation,
        "objects": list(objects),
    }, buffers


# Seconds after a call's deadline until a host that still runs the call is replaced.
OVERDUE_S: Final = 5.0
_LOOK_S: Final = 0.2


def end_overdue(host: Host, grace_s: float = OVERDUE_S) -> bool:
    """Wait until the host has ended all calls that timed out. Replace a host that does not end them in time.

    Other calls finish, or are repeated in the new host. Return whether the host was replaced.
    """
    process, until = host.supervisor.running, time.monotonic() + grace_s
    while process is not None and process is host.supervisor.running and process.channel.requests.abandoned:
        if time.monotonic() >= until:
            host.restart()
            return True
        sleep(_LOOK_S)
        with contextlib.suppress(BridgeError):
            host.ping(_LOOK_S)  # waiting for the answer also reads late answers of timed-out calls
    return False


class Remade:
    """Object in the host that is created again in each new host. Safe to use from any thread.

    Args:
        kind: name of the kind of object.
        make: function that returns header, buffers and context of the request that creates the object in a process.
        complete: function that prepares a new object, given its number, before any thread uses it.

    `make` and `complete` must not refer to the owner of this `Remade`: the reference cycle would delay freeing the
    owner until the garbage collector runs.
    """

    def __init__(
        self, host: Host, kind: str, make: MakeRequest | None = None, complete: Complete | None = None
    ) -> None:
        self.host = host
        self._kind = kind
        self._make = make
        self._complete = complete
        # Flag with which another thread can end a slow creation.
        self._stopping: Terminable | None = None
        self._lock = renew_in_forks(RLock())  # for `in_turn`
        self._object: HostObject | None = None
        self._made_after = 0
        self.times_made = 0

    def number_in(self, process: HostProcess, deadline: float | None) -> int:
        """Return the object's number in the process. Create the object if necessary."""
        # Read the attribute once, because another thread may replace it. Take no lock: the common case must not
        # wait for a model that is being loaded.
        found = self._object
        if found is not None and self._exists(found, process):
            return found.number

        def make() -> int:
            if self._object is None or not self._exists(self._object, process):
                # Reset the attribute before creating the new object: if the creation fails, the object of the dead
                # host must not count as existing.
                self._object = None
                self._object = self._create(process, deadline)
            return self._object.number

        try:
            return in_turn(self._lock, -1 if deadline is None else max(0.0, deadline - time.monotonic()), make)
        except TooLate:
            raise CallTimedOut("not-started") from None

    def is_in(self, process: HostProcess) -> bool:
        """Return whether the object exists in the process."""
        found = self._object
        return found is not None and self._exists(found, process)

    @property
    def is_loaded(self) -> bool:
        """Whether the object exists in the last known host, without sending a request or taking a lock."""
        return self._object is not None

    def forget(self) -> None:
        """Discard the object in the host; the next call creates a new one."""
        # Remove the object before it is released, so that no other thread gets its number afterwards.
        found, self._object = self._object, None
        if found is not None:
            found.release()

    def _create(self, process: HostProcess, deadline: float | None) -> HostObject:
        header, buffers, context = self._request(process, deadline)
        sent: list[int] = []
        # Read the count before the request: if the daemon's host dies meanwhile, the new object counts as lost.
        losses = _losses.get(self.host, 0)
        try:
            with TerminateRelay(self._stopping, process.channel) as stoppable:

                def on_sent(number: int) -> None:
                    sent.append(number)
                    if stoppable is not None:
                        stoppable(number)

                frame = process.channel.call(header, buffers, deadline, context, on_sent)
        except BaseException:
            # The host may create the object although the request failed. The object's number is the request's id.
            for number in sent:
                self.host.release_object_later(process.generation, number)
            raise
        self._made(frame)
        self._made_after = losses
        self.times_made += 1
        made = HostObject(self.host, process.generation, field(frame.header, "object", "int"), self._kind)
        if self._complete is not None:
            # If `_complete` fails, dropping `made` releases the object, and the next call creates a new object.
            self._complete(process, made.number, deadline)
        return made

    def _request(self, process: HostProcess, deadline: float | None) -> Any:
        assert self._make is not None
        return self._make(process, deadline)

    def _made(self, frame: Frame) -> None:
        """Process the answer to the request that created the object."""

    def answer_of_creation(self) -> Frame | None:
        """Return the answer to the request that created the object if that request also ran the object's first
        operation. Return ``None`` otherwise, and on each later call."""
        return None

    def _exists(self, found: HostObject, process: HostProcess) -> bool:
        there = found.generation == process.generation and not found.released
        # With a daemon, `generation` does not change when the host dies, so these deaths are counted separately.
        return there and self._made_after == _losses.get(self.host, 0)


# --- models ---

# `json.dumps` would create an encoder for each call.
_as_json = json.JSONEncoder(sort_keys=True).encode


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
        """Hash of all fields except `folder` and `allow_native`, which do not change a loaded model."""
        parts = [self.steps, self.fallback, [(name, hashlib.sha256(data).hexdigest()) for name, data in self.data]]
        return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class RunsAhead(Protocol):
    """Interface of a generation. tokens: tokens that the application has read. ahead: later tokens that have
    arrived already."""

    tokens: list[int]
    ahead: collections.deque[int]


class RemoteModel(Remade):
    """Model that is loaded in the current host when it is needed. Safe to use from any thread."""

    def __init__(self, host: Host, recipe: ModelRecipe) -> None:
        super().__init__(host, "GenaiModel")
        self.recipe = recipe
        self.options_hash = recipe.options_hash
        self.context = CallContext("genai.load", recipe.label, "", self.options_hash)
        self.info: GenerationModelInfo | None = None
        # The generation whose tokens the application will probably pass to a `TokenizerStream` next.
        self.ahead: weakref.ref[RunsAhead] | None = None

    def open(self, timeout_s: float | None) -> GenerationModelInfo:
        """Load the model now."""
        deadline = deadline_after(timeout_s)
        survive(self.host, lambda process: self.number_in(process, deadline), self.context, deadline, timeout_s)
        assert self.info is not None
        return self.info

    def number_in(self, process: HostProcess, deadline: float | None) -> int:
        """Return the model's number in the process. Load the model if necessary."""
        try:
            return super().number_in(process, deadline)
        except ModelQuarantined as refusal:
            # The host's error contains the fingerprint of the model, but not the crash reports, which this process
            # has. `check_quarantine` raises an error with both. A daemon's error already contains both.
            if not self.host.is_daemon:
                self._blame_model(str(refusal.details.get("fingerprint", "")))
                self.host.supervisor.check_quarantine(self.context)
            raise

    def context_of(self, label: str, arguments: Any, values: Sequence[Any] = ()) -> CallContext:
        """Return the context that is blamed for a crash in a call: the model with these arguments, never the model
        alone.

        Args:
            label: description of the call.
            arguments: JSON-serialisable arguments of the call.
            values: tensors of the call.
        """
        model, digest = self.context, hashlib.sha256()
        digest.update(_as_json([model.fingerprint, arguments]).encode("utf-8", "surrogatepass"))
        for value in values:
            import numpy as np

            array = np.ascontiguousarray(getattr(value, "data", value) if hasattr(value, "element_type") else value)
            digest.update(f"\n{array.dtype} {array.shape}\n".encode())
            digest.update(array.tobytes())
        named = f"{model.model} with {label}"
        return CallContext("genai.step", named, digest.hexdigest(), model.options_hash)

    def on_object(
        self,
        remade: Remade,
        what: str,
        operation: str,
        arguments: dict[str, Any],
        values: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> Frame:
        """Call an operation of an object that the model created.

        A crash in the call is blamed on the model with these arguments. `what` describes the object and its
        operation in messages.
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
        """Return an object that an operation of the model creates.

        Args:
            kind: name of the kind of object.
            operation: operation of the model that creates the object.
            arguments: returns the arguments of the request; called for each new host.
            others: further objects in the host that the request refers to.
            values: returns the tensors of the request; called for each new host.
            complete: see `Remade`.
        """

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
                # Fingerprint of the model that was loaded first. The host refuses a folder that has changed since,
                # because the kept tokens belong to that model.
                "fingerprint": None if self.info is None else self.info.fingerprint,
                "quarantined": [] if quarantine is None else list(quarantine.fingerprints(self.options_hash)),
            },
            [np.frombuffer(data, np.uint8) for _, data in recipe.data],
        )
        return {**header, "op": "object.create", "kind": "GenaiModel", "objects": []}, buffers, self.context

    def _made(self, frame: Frame) -> None:
        self.info = GenerationModelInfo.from_wire(field(frame.header, "result", "Mapping[str, Any]"))
        # Use a set, so that several stages with the same `npu_memory` cause only one warning.
        took = {stage.placement.npu_memory for stage in self.info.stages} - {""}
        texts = [*self.info.notes, *(f"{self.info.label} is {words}." for words in took)]
        show_notices([Notice("once", text) for text in texts])
        self._blame_model(self.info.fingerprint)

    def _blame_model(self, fingerprint: str) -> None:
        # Blame crashes during later calls on the model with this fingerprint.
        if fingerprint != self.context.fingerprint:
            self.context = dataclasses.replace(self.context, fingerprint=fingerprint)


def tokens_of(tokens: Any) -> list[int]:
    """Return token ids of an array, a list or a `Tensor` as a list; sequences of a batch one after the other."""
    if type(tokens) is list and set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < 2**63:
        return tokens[:]
    import numpy as np

    given = tokens.as_numpy() if hasattr(tokens, "as_numpy") else tokens
    array = np.asarray(given)
    # numpy converts an empty list to an array of floats.
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise OptionError(
            f"Token ids must be integers, not {array.dtype}.", fix="Encode the text with a Tokenizer."
        )
    return [int(one) for one in array.reshape(-1)]


def token_values(*lists: Sequence[int]) -> list[Any]:
    """Return lists of token ids as arrays for a request."""
    import numpy as np

    return [np.asarray(one, np.int64) for one in lists]
