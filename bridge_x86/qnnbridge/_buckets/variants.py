"""The sessions of all buckets: each is made once, when it is first needed or ahead by `warm`, and kept.

What always holds: a variant is made by one thread, others that need it wait for it as long as their time allows; a
variant that could not be made is tried again by the next call. Any thread.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal

from qnnbridge._buckets.plan import Plan, Sizes
from qnnbridge._providers import CPU
from qnnbridge_protocol.errors import BridgeError, Closed, DeadlineExceeded
from qnnbridge_protocol.specs import ProviderSpec

if TYPE_CHECKING:
    from qnnbridge._remote_session import OnDeadline, SessionRecipe
    from qnnbridge._session import InferenceSession

_log = logging.getLogger("qnnbridge.buckets")

MadeBy = Literal["open", "warm", "call"]
# Makes a session from its manifest, within so many seconds.
Open = Callable[["SessionRecipe", "float | None", "OnDeadline"], "InferenceSession"]

# Configuration entries that say nothing to the CPU, or forbid it.
_FOR_QNN: Final = ("ep.", "session.disable_cpu_ep_fallback")

# In the place of sizes: the model with its sizes left free, on the CPU.
FREE: Final[Sizes] = ()


@dataclasses.dataclass(slots=True)
class Variant:
    """lock: around making it. made_by: what it was first needed for. runs: calls (and parts of calls) in it."""

    sizes: Sizes
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    session: InferenceSession | None = None
    made_by: MadeBy | None = None
    seconds: float = 0.0
    runs: int = 0


class Variants:
    """See the module."""

    def __init__(self, plan: Plan, manifest: SessionRecipe, open_session: Open) -> None:
        self.plan = plan
        self.manifest = manifest
        self._open_session = open_session
        self._variants = {sizes: Variant(sizes) for sizes in (*plan.variants(), FREE)}
        self._counting = threading.Lock()
        self._dynamic: dict[str, str] = {}
        self._closed = False

    def get(
        self, sizes: Sizes, made_by: MadeBy, deadline: float | None = None, on_deadline: OnDeadline = "raise"
    ) -> InferenceSession:
        """The session of a variant. Raises what making it raises, and `DeadlineExceeded`."""
        variant = self._variants[sizes]
        session = variant.session
        if session is not None and not self._closed:
            return session
        if not variant.lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise DeadlineExceeded(
                f"The time was over while another thread was making the variant for {self.text(sizes)}.",
                fix="Compile ahead with warm(), or give the call more time (timeout=).",
                details={"state": "not-started"},
            )
        try:
            if self._closed:
                raise Closed("The session is closed.", fix="Create a new one.")
            if variant.session is None:
                self._make(variant, made_by, deadline, on_deadline)
            assert variant.session is not None
            return variant.session
        finally:
            variant.lock.release()

    def free(self, deadline: float | None = None, on_deadline: OnDeadline = "raise") -> InferenceSession:
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
        return (variant for sizes, variant in self._variants.items() if sizes != FREE)

    def made(self) -> list[InferenceSession]:
        return [variant.session for variant in self._variants.values() if variant.session is not None]

    @property
    def free_variant(self) -> Variant:
        return self._variants[FREE]

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """In all variants that are made, and in those that will be."""
        self._dynamic |= options
        for variant in self:
            if variant.session is not None:
                variant.session.set_ep_dynamic_options(options)

    def close(self) -> None:
        """Idempotent. One that is being made this moment is closed by whoever makes it."""
        self._closed = True
        for session in self.made():
            session.close()

    def _make(self, variant: Variant, made_by: MadeBy, deadline: float | None, on_deadline: OnDeadline) -> None:
        label = self.manifest.source.label
        if made_by == "call":
            _log.info("%s: making the variant for %s at its first call", label, self.text(variant.sizes))
        begun = time.monotonic()
        left_s = None if deadline is None else max(0.0, deadline - begun)
        try:
            session = self._open_session(self._manifest_of(variant.sizes), left_s, on_deadline)
            if self._dynamic and variant.sizes != FREE:
                session.set_ep_dynamic_options(self._dynamic)
        except BridgeError as error:
            error.evidence = (*error.evidence, f"The variant for {self.text(variant.sizes)} was being made.")
            raise
        variant.seconds, variant.made_by = time.monotonic() - begun, made_by
        variant.session = session
        if self._closed:
            session.close()
            raise Closed("The session is closed.", fix="Create a new one.")

    def _manifest_of(self, sizes: Sizes) -> SessionRecipe:
        manifest = self.manifest
        if sizes == FREE:
            entries = manifest.spec.config_entries
            spec = dataclasses.replace(
                manifest.spec,
                providers=(ProviderSpec(CPU),),
                fallback="cpu",
                config_entries={key: text for key, text in entries.items() if not key.startswith(_FOR_QNN)},
            )
            return dataclasses.replace(manifest, spec=spec, cache=False)
        fixed = {**manifest.spec.free_dimensions_by_name, **self.plan.named(sizes)}
        spec = dataclasses.replace(manifest.spec, free_dimensions_by_name=fixed)
        return dataclasses.replace(manifest, spec=spec)
