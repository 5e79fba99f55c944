"""The variants of a session with buckets, and their status.

A variant is an ordinary session with the sizes of one bucket. It is created by the first call that needs it, or by
`warm`.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from qnnbridge._buckets import sizes_text
from qnnbridge._buckets.plan import BucketPlan, Sizes
from qnnbridge._options.providers import CPU
from qnnbridge._session.remote_runner import RemoteRunner, Warn
from qnnbridge._supervision.host_process import seconds_left
from qnnbridge._supervision.retries import CallLimits
from qnnbridge._threads import Background
from qnnbridge._transport.open_requests import remaining
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock, RLock
from qnnbridge_os.shield import TooLate, in_turn
from qnnbridge_protocol.errors import BridgeError, Closed, DeadlineExceeded, OptionError
from qnnbridge_protocol.model_records import CacheStatus, NumbersReport
from qnnbridge_protocol.shown import Shown, more
from qnnbridge_protocol.specs import Placement, ProviderSpec
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._session import SessionRecipe
    from qnnbridge._supervision.host_process import OnDeadline
    from qnnbridge_protocol.shown import Fact

WEIGHTS: Final = (
    "Each variant has its own copy of the weights. QNN can share the weights of several variants in one context "
    "binary, but its HTP simulator cannot load such a binary, so sharing could not be tested in sessions."
)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class VariantStatus(Shown):
    """Status of one variant.

    Attributes:
        made: whether the session of the variant has been created.
        made_at_call: whether a call, and not ``warm()``, created the session and waited for it.
        seconds: duration of the creation, including compilation or loading from the cache.
        runs: number of calls, and parts of calls, that ran in the variant. verified: report of the comparison of
            the variant's results with the CPU's.
    """

    sizes: Mapping[str, int]
    made: bool
    made_at_call: bool
    seconds: float
    runs: int
    placement: Placement | None
    cache: CacheStatus | None
    verified: NumbersReport | None = None

    def __str__(self) -> str:
        text = sizes_text(self.sizes)
        if self.placement is None:
            return f"{text}: not created yet"
        where = self.placement.nodes_text()
        ahead = ", created during a call" if self.made_at_call else ""
        numbers = (
            "" if self.verified is None or self.verified.state == "off" else f", numbers: {self.verified.state}"
        )
        return f"{text}: {where}, created in {self.seconds:.2f} s{ahead}, {self.runs} runs{numbers}"

    def _shown_name(self) -> str:
        return sizes_text(self.sizes)

    def _shown_facts(self) -> Iterator[Fact]:
        if self.placement is None:
            yield "not created yet", ""
            return
        yield from self.placement._shown_facts()
        yield f"{self.runs} {'run' if self.runs == 1 else 'runs'}", ""
        for one in (self.cache, self.verified):
            if one is not None and one.state != "off":
                yield from one._shown_facts()


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class BucketStatus(Shown):
    """Status of all variants, the smallest first, and statistics of calls.

    Attributes:
        calls: number of all calls.
        padded: calls, and parts of calls, whose inputs were padded.
        split: calls that ran in several parts.
        on_cpu: calls that fit into no bucket and ran on the CPU (``overflow="cpu"``).
        cut: for each output, the relation of each dimension to the input sizes; ``None`` for a dimension that is
            not cut.
        uncut: for each output that is not cut, the reason.
        weights: description of whether variants share their weights.
        chunked: calls that ran in overlapping windows.
        ruled_out: combinations of sizes that `warm` skipped because the model refuses them, each with the reason.
        decided: the ``pad=`` or ``chunk=`` that the session chose because the application did not specify padding.
        padding: description of how the application's ``pad=`` changes results in a trial on the CPU; '' if no
            change was found.
    """

    variants: tuple[VariantStatus, ...]
    calls: int
    padded: int
    split: int
    on_cpu: int
    cut: Mapping[str, tuple[str | None, ...]]
    uncut: Mapping[str, str]
    weights: str = WEIGHTS
    chunked: int = 0
    ruled_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    decided: str = ""
    padding: str = ""

    def __str__(self) -> str:
        lines = [str(variant) for variant in self.variants]
        lines.append(
            f"{self.calls} calls, {self.split} in several parts, {self.on_cpu} on the CPU because they were too "
            f"large; {self.padded} runs with padding"
        )
        if self.decided:
            lines.append(f"{self.decided} was chosen by trials on the CPU, in which it changed no result")
        if self.padding:
            lines.append(f"the requested padding changes results: {self.padding}")
        if self.chunked:
            lines.append(f"{self.chunked} calls in overlapping windows")
        lines += [f"{sizes}: skipped, {reason}" for sizes, reason in self.ruled_out.items()]
        lines += [f"output {name!r} is not cut: {reason}" for name, reason in self.uncut.items()]
        return "\n".join(lines)

    def _shown_facts(self) -> Iterator[Fact]:
        made = sum(variant.made for variant in self.variants)
        yield f"{made} of {len(self.variants)} buckets created", ""
        yield f"{self.calls} {'call' if self.calls == 1 else 'calls'}", ""
        if self.on_cpu:
            yield f"{self.on_cpu} on the CPU", "problem"
        if self.padding:
            yield f"padding changes results: {self.padding}", "problem"
        yield from more(str(self).split("\n"))


_log = log_of("qnnbridge.buckets")

MadeBy = Literal["open", "warm", "call"]
# Function that creates the runner of a variant from its recipe, within the given number of seconds.
Open = Callable[["SessionRecipe", "float | None", "OnDeadline"], "RemoteRunner"]

# Prefixes of configuration entries that have no effect for a session on the CPU, or that forbid the CPU.
_FOR_QNN: Final = ("ep.", "session.disable_cpu_ep_fallback")

# Key of the model with free sizes, which runs on the CPU.
FREE: Final[Sizes] = ()


@dataclasses.dataclass(slots=True)
class Variant:
    """State of one variant. `runner` runs its calls; ``None`` before the session is created.

    Attributes:
        lock: held during the creation of the session.
        made_by: reason for the creation, such as "call" or "warm".
        runs: number of calls, and parts of calls, that ran in this variant.
    """

    sizes: Sizes
    lock: RLock = dataclasses.field(default_factory=RLock)
    runner: RemoteRunner | None = None
    made_by: MadeBy | None = None
    seconds: float = 0.0
    runs: int = 0


class Variants:
    """The variants of a session with buckets, by their sizes."""

    def __init__(self, plan: BucketPlan, recipe: SessionRecipe, open_runner: Open) -> None:
        self.plan = plan
        self.recipe = recipe
        self._open_runner = open_runner
        # Entries are only added, never removed, so readers need no lock, but must iterate over a copy.
        self._variants = {sizes: Variant(sizes) for sizes in (*plan.variants(), FREE)}
        self._counting = renew_in_forks(Lock())
        self._dynamic: dict[str, str] = {}
        self._closed = False

    def get(
        self, sizes: Sizes, made_by: MadeBy, deadline: float | None = None, on_deadline: OnDeadline = "raise"
    ) -> RemoteRunner:
        """Return the runner of a variant. Create the runner if needed.

        Raises:
            DeadlineExceeded: another thread was still creating the runner at the deadline.
            BridgeError: the creation failed.
        """
        variant = self._variants[sizes]
        runner = variant.runner
        # Fast path: nearly every call returns here and needs no lock.
        if runner is not None and not self._closed:
            return runner

        def made() -> RemoteRunner:
            if self._closed:
                raise Closed("The session is closed.", fix="Create a new session.")
            if variant.runner is None:
                self._make(variant, made_by, deadline, on_deadline)
            assert variant.runner is not None
            return variant.runner

        try:
            # Each variant has its own lock, so that two sizes can be compiled at the same time, while two callers
            # with the same size wait for one session.
            return in_turn(variant.lock, remaining(deadline), made)
        except TooLate:
            raise DeadlineExceeded(
                f"The time limit expired while another thread was creating the variant for {self.text(sizes)}.",
                fix="Create the variant in advance with warm(), or increase the call's timeout=.",
                details={"state": "not-started"},
            ) from None

    def add(self, sizes: Sizes) -> None:
        """Add a variant with these sizes, unless it exists."""
        if sizes not in self._variants:
            _log.info(
                "%s: %s is not a bucket; a separate variant is created for it", self.recipe.label, self.text(sizes)
            )
            with self._counting:
                self._variants.setdefault(sizes, Variant(sizes))

    def free(self, deadline: float | None = None, on_deadline: OnDeadline = "raise") -> RemoteRunner:
        """Return the runner of the model with free sizes, on the CPU."""
        return self.get(FREE, "call", deadline, on_deadline)

    def count(self, sizes: Sizes) -> None:
        """Count a run in a variant."""
        with self._counting:
            self._variants[sizes].runs += 1

    def text(self, sizes: Sizes) -> str:
        return self.plan.text(sizes) if sizes != FREE else "free sizes on the CPU"

    def __iter__(self) -> Iterator[Variant]:
        """Iterate over all variants except the model with free sizes, the smallest first."""
        return (variant for sizes, variant in list(self._variants.items()) if sizes != FREE)

    def made(self) -> list[RemoteRunner]:
        return [variant.runner for variant in list(self._variants.values()) if variant.runner is not None]

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Set options in all existing variants, and in those that are created later."""
        # Store the options before the loop, so that a variant that another thread is creating also gets them.
        self._dynamic |= options
        for variant in self:
            if variant.runner is not None:
                variant.runner.set_ep_dynamic_options(options)

    def close(self) -> None:
        """Close all sessions. Idempotent. If a thread is creating a session, that thread closes the session."""
        self._closed = True
        for runner in self.made():
            runner.close()

    def _make(self, variant: Variant, made_by: MadeBy, deadline: float | None, on_deadline: OnDeadline) -> None:
        label = self.recipe.label
        if made_by == "call":
            _log.info("%s: creating the variant for %s at its first call", label, self.text(variant.sizes))
        begun = time.monotonic()
        try:
            runner = self._open_runner(self._recipe_of(variant.sizes), seconds_left(deadline), on_deadline)
            if self._dynamic and variant.sizes != FREE:
                runner.set_ep_dynamic_options(self._dynamic)
        except BridgeError as error:
            error.evidence = (*error.evidence, f"The variant for {self.text(variant.sizes)} was being created.")
            raise
        variant.seconds, variant.made_by = time.monotonic() - begun, made_by
        # Set the runner last: a thread that sees the runner reads time and reason without taking the lock.
        variant.runner = runner
        # `close` ran before this runner was set, so this thread closes the runner.
        if self._closed:
            runner.close()
            raise Closed("The session is closed.", fix="Create a new session.")

    def _recipe_of(self, sizes: Sizes) -> SessionRecipe:
        recipe = self.recipe
        if sizes == FREE:
            entries = recipe.spec.config_entries
            spec = dataclasses.replace(
                recipe.spec,
                providers=(ProviderSpec(CPU),),
                fallback="cpu",
                fix=None,
                config_entries={key: text for key, text in entries.items() if not key.startswith(_FOR_QNN)},
            )
            return dataclasses.replace(recipe, spec=spec, cache=False)
        # A variant differs only in free_dimension_overrides, so the cache treats it like any session with these
        # sizes.
        fixed = {**recipe.spec.free_dimensions_by_name, **self.plan.named(sizes)}
        spec = dataclasses.replace(recipe.spec, free_dimensions_by_name=fixed)
        return dataclasses.replace(recipe, spec=spec)


def opener(host: Host, retry: int, timeout: float | None, warn: Warn) -> Open:
    """Return a function that creates the runner of a variant.

    Args:
        timeout: the default time limit of calls, in seconds.
        warn: function that warns the application about a variant that runs on the CPU.
    """

    def open_runner(recipe: SessionRecipe, left_s: float | None, on_deadline: OnDeadline) -> RemoteRunner:
        creation = CallLimits(left_s, retry, on_deadline)
        # `BucketedRunner` chooses the calls to compare, because only it has the cut and joined outputs.
        runner = RemoteRunner(host, recipe, retry, creation, timeout, warn, chooses_calls=False)
        runner.announce(runner)
        return runner

    return open_runner


# Function that shows progress. Arguments: number of created variants, number of all variants, and the sizes of the
# next variant (at the end, of the last variant). Several worker threads call the function, one at a time.
Progress = Callable[[int, int, Mapping[str, int]], None]


def warm(
    variants: Variants, wanted: Sequence[Sizes], workers: int, deadline: float | None, on_progress: Progress | None
) -> None:
    """Create variants before calls need them. After an error do not start further variants, and raise the first
    error."""
    # `True` is an int and would otherwise be accepted as one worker.
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise OptionError(f"workers={workers!r} is not a number of workers.", fix="Give 1 or more.")

    left, done, lock = collections.deque(wanted), 0, Lock()
    failure: BaseException | None = None

    def show(sizes: Sizes) -> None:
        if on_progress is not None:
            try:
                on_progress(done, len(wanted), variants.plan.named(sizes))
            except Exception:  # noqa: BLE001 - a failure to show progress must not fail the work
                _log.exception("on_progress failed")

    def go_on() -> None:
        """Create variants until no variant is left or a worker has failed."""
        nonlocal done, failure
        while True:
            with lock:
                # After a failure, the other workers finish their current variants and do not start new ones.
                if failure is not None or not left:
                    return
                sizes = left.popleft()
                show(sizes)
            try:
                runner = variants.get(sizes, "warm", deadline)
                if sizes != FREE:
                    runner.verify_ahead(deadline)
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                with lock:
                    failure = failure or error
                return
            with lock:
                done += 1
                if done == len(wanted):
                    show(sizes)

    most = min(workers, len(wanted))
    if most < 2:
        go_on()
    else:
        # A thread pool of the standard library would prevent the interpreter from ending during a compilation.
        threads = Background("qnnbridge warm", threads=most)
        for _ in range(most):
            threads.submit(go_on)
        threads.wait(None)
    if failure is not None:
        raise failure
