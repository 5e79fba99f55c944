"""The variants of a session with buckets and their status.

A variant is one ordinary session per bucket, made when it is needed or by `warm`.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from qnnbridge._buckets import sizes_text
from qnnbridge._buckets.plan import BucketPlan, Sizes
from qnnbridge._providers import CPU
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
    "Each variant has its own copy of the weights: QNN can keep those of several variants in one context binary, "
    "but its HTP simulator cannot load such a binary, so it could not be tested in sessions."
)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class VariantStatus(Shown):
    """One compiled size.

    made: whether its session exists. made_at_call: it was made while a call waited for it, and not by ``warm()``.
    seconds: making it took, be it compiled or loaded from the cache. runs: calls, and parts of calls, in it.
    verified: whether its numbers are those of the CPU.
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
            return f"{text}: not made yet"
        where = self.placement.nodes_text()
        ahead = ", made at a call" if self.made_at_call else ""
        numbers = (
            "" if self.verified is None or self.verified.state == "off" else f", numbers: {self.verified.state}"
        )
        return f"{text}: {where}, made in {self.seconds:.2f} s{ahead}, {self.runs} runs{numbers}"

    def _shown_name(self) -> str:
        return sizes_text(self.sizes)

    def _shown_facts(self) -> Iterator[Fact]:
        if self.placement is None:
            yield "not made yet", ""
            return
        yield from self.placement._shown_facts()
        yield f"{self.runs} {'run' if self.runs == 1 else 'runs'}", ""
        for one in (self.cache, self.verified):
            if one is not None and one.state != "off":
                yield from one._shown_facts()


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class BucketStatus(Shown):
    """All variants, the smallest first, and what became of the calls.

    calls: all of them. padded: calls, and parts of calls, whose inputs were made larger. split: calls done in
    several parts. on_cpu: calls that fit into no bucket, which ran on the CPU (``overflow="cpu"``).
    cut: output -> how each dimension follows from the sizes, ``None`` for one that does not; without the outputs in
    uncut, which are not cut for the reason there. weights: whether variants share them, as text. chunked: calls
    done in overlapping windows. ruled_out: combinations of sizes that the model does not take, with the reason;
    `warm` left them out. decided: ``pad=`` or ``chunk=`` that the session chose where the application says nothing.
    padding: what the application's ``pad=`` changes, by a trial on the CPU when the model was compiled; empty where
    nothing is shown.
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
            lines.append(f"{self.decided} was decided by the model: it changes no result on the CPU")
        if self.padding:
            lines.append(f"the padding that was asked for changes results: {self.padding}")
        if self.chunked:
            lines.append(f"{self.chunked} calls in overlapping windows")
        lines += [f"{sizes}: left out, {reason}" for sizes, reason in self.ruled_out.items()]
        lines += [f"output {name!r} is not cut: {reason}" for name, reason in self.uncut.items()]
        return "\n".join(lines)

    def _shown_facts(self) -> Iterator[Fact]:
        made = sum(variant.made for variant in self.variants)
        yield f"{made} of {len(self.variants)} buckets made", ""
        yield f"{self.calls} {'call' if self.calls == 1 else 'calls'}", ""
        if self.on_cpu:
            yield f"{self.on_cpu} on the CPU", "problem"
        if self.padding:
            yield f"padding changes results: {self.padding}", "problem"
        yield from more(str(self).split("\n"))


_log = log_of("qnnbridge.buckets")

MadeBy = Literal["open", "warm", "call"]
# Makes the runner of a variant from its recipe, within this many seconds.
Open = Callable[["SessionRecipe", "float | None", "OnDeadline"], "RemoteRunner"]

# Configuration entries that say nothing to the CPU, or forbid it.
_FOR_QNN: Final = ("ep.", "session.disable_cpu_ep_fallback")

# Instead of sizes: the model with its sizes left free, on the CPU.
FREE: Final[Sizes] = ()


@dataclasses.dataclass(slots=True)
class Variant:
    """lock: around making it. made_by: what it was first needed for. runs: calls (and parts of calls) in it."""

    sizes: Sizes
    lock: RLock = dataclasses.field(default_factory=RLock)
    runner: RemoteRunner | None = None
    made_by: MadeBy | None = None
    seconds: float = 0.0
    runs: int = 0


class Variants:
    """The sessions of one session with buckets, by bucket."""

    def __init__(self, plan: BucketPlan, recipe: SessionRecipe, open_runner: Open) -> None:
        self.plan = plan
        self.recipe = recipe
        self._open_runner = open_runner
        # Entries are never removed; `add` only inserts, so readers need no lock but copy what they iterate
        # over.
        self._variants = {sizes: Variant(sizes) for sizes in (*plan.variants(), FREE)}
        self._counting = renew_in_forks(Lock())
        self._dynamic: dict[str, str] = {}
        self._closed = False

    def get(
        self, sizes: Sizes, made_by: MadeBy, deadline: float | None = None, on_deadline: OnDeadline = "raise"
    ) -> RemoteRunner:
        """The session of a variant. Raises what making it raises, and `DeadlineExceeded`."""
        variant = self._variants[sizes]
        runner = variant.runner
        # The usual call: no lock.
        if runner is not None and not self._closed:
            return runner

        def made() -> RemoteRunner:
            if self._closed:
                raise Closed("The session is closed.", fix="Create a new one.")
            if variant.runner is None:
                self._make(variant, made_by, deadline, on_deadline)
            assert variant.runner is not None
            return variant.runner

        try:
            # A lock for each variant: two sizes compile at the same time, two callers of one size wait for
            # the same session.
            return in_turn(variant.lock, remaining(deadline), made)
        except TooLate:
            raise DeadlineExceeded(
                f"The time was over while another thread was making the variant for {self.text(sizes)}.",
                fix="Compile ahead with warm(), or give the call more time (timeout=).",
                details={"state": "not-started"},
            ) from None

    def add(self, sizes: Sizes) -> None:
        """A variant of these sizes, too, if there is none yet."""
        if sizes not in self._variants:
            _log.info("%s: %s is no bucket and gets a variant of its own", self.recipe.label, self.text(sizes))
            with self._counting:
                self._variants.setdefault(sizes, Variant(sizes))

    def free(self, deadline: float | None = None, on_deadline: OnDeadline = "raise") -> RemoteRunner:
        """The model with its sizes left free, on the CPU."""
        return self.get(FREE, "call", deadline, on_deadline)

    def count(self, sizes: Sizes) -> None:
        """A run in a variant."""
        with self._counting:
            self._variants[sizes].runs += 1

    def text(self, sizes: Sizes) -> str:
        return self.plan.text(sizes) if sizes != FREE else "free sizes on the CPU"

    def __iter__(self) -> Iterator[Variant]:
        """All, the smallest first, without the one with free sizes."""
        return (variant for sizes, variant in list(self._variants.items()) if sizes != FREE)

    def made(self) -> list[RemoteRunner]:
        return [variant.runner for variant in list(self._variants.values()) if variant.runner is not None]

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """In all variants that are made, and in those that will be."""
        # Before the loop: a variant that is being made right now takes them from here.
        self._dynamic |= options
        for variant in self:
            if variant.runner is not None:
                variant.runner.set_ep_dynamic_options(options)

    def close(self) -> None:
        """Idempotent. One that is being made this moment is closed by its maker."""
        self._closed = True
        for runner in self.made():
            runner.close()

    def _make(self, variant: Variant, made_by: MadeBy, deadline: float | None, on_deadline: OnDeadline) -> None:
        label = self.recipe.label
        if made_by == "call":
            _log.info("%s: making the variant for %s at its first call", label, self.text(variant.sizes))
        begun = time.monotonic()
        try:
            runner = self._open_runner(self._recipe_of(variant.sizes), seconds_left(deadline), on_deadline)
            if self._dynamic and variant.sizes != FREE:
                runner.set_ep_dynamic_options(self._dynamic)
        except BridgeError as error:
            error.evidence = (*error.evidence, f"The variant for {self.text(variant.sizes)} was being made.")
            raise
        variant.seconds, variant.made_by = time.monotonic() - begun, made_by
        # Last: a reader without the lock sees a session with its time and its reason.
        variant.runner = runner
        # `close` has seen no runner here, so this thread closes it.
        if self._closed:
            runner.close()
            raise Closed("The session is closed.", fix="Create a new one.")

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
        # A variant is nothing but free_dimension_overrides: the cache keys it like any session of these
        # sizes.
        fixed = {**recipe.spec.free_dimensions_by_name, **self.plan.named(sizes)}
        spec = dataclasses.replace(recipe.spec, free_dimensions_by_name=fixed)
        return dataclasses.replace(recipe, spec=spec)


def opener(host: Host, retry: int, timeout: float | None, warn: Warn) -> Open:
    """Return a function that makes the runner of a variant.

    timeout: seconds, the default for calls. warn: warns the application that a variant runs on the CPU.
    """

    def open_runner(recipe: SessionRecipe, left_s: float | None, on_deadline: OnDeadline) -> RemoteRunner:
        creation = CallLimits(left_s, retry, on_deadline)
        # What the application gets is compared: without the padding, and put together from all parts.
        runner = RemoteRunner(host, recipe, retry, creation, timeout, warn, chooses_calls=False)
        runner.announce(runner)
        return runner

    return open_runner


# Called with how many variants are made, how many there are, and the sizes of the next; of the last at the end.
# With several workers from their threads, one call at a time.
Progress = Callable[[int, int, Mapping[str, int]], None]


def warm(
    variants: Variants, wanted: Sequence[Sizes], workers: int, deadline: float | None, on_progress: Progress | None
) -> None:
    """Raises the first error; variants not begun by then are left out."""
    # True is an int, and would be taken for one worker.
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise OptionError(f"workers={workers!r} is no number of workers.", fix="Give 1 or more.")
    left, done, lock = collections.deque(wanted), 0, Lock()
    failure: BaseException | None = None

    def show(sizes: Sizes) -> None:
        if on_progress is not None:
            try:
                on_progress(done, len(wanted), variants.plan.named(sizes))
            except Exception:  # noqa: BLE001 - showing progress must not decide whether the work succeeds
                _log.exception("on_progress failed")

    def go_on() -> None:
        """A worker: until nothing is left, or something failed."""
        nonlocal done, failure
        while True:
            with lock:
                # After a failure the other workers finish what they compile and begin nothing new.
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
        # Not a pool of the standard library: it would keep the interpreter from ending while one compiles.
        threads = Background("qnnbridge warm", threads=most)
        for _ in range(most):
            threads.submit(go_on)
        threads.wait(None)
    if failure is not None:
        raise failure
