"""Record to which model or cache entry a crash of the host is attributed while a session uses the host."""

from __future__ import annotations

import dataclasses
from typing import Any

from qnnbridge._session import SessionRecipe
from qnnbridge._transport.channel import CallContext
from qnnbridge_protocol.errors import BridgeError, HostCrashed
from qnnbridge_protocol.model_records import EntryFault
from qnnbridge_protocol.specs import Placement

# After this many cache entries have crashed the host during one creation, the model itself is blamed.
MAX_BAD_ENTRIES = 3


class Suspect:
    """The suspect of a later crash: the model, or the cache entry that is loaded instead of the model.

    Attributes:
        run: context of the session's runs.
        creation: context of the session's creation.
        entry: key and id of the cache entry that native code is processing, or that was loaded last.
        entry_fault: reason why the cache entry in `entry` must not be used again; "" if there is none.
    """

    __slots__ = ("_bad_entries", "creation", "entry", "entry_fault", "run")

    def __init__(self, recipe: SessionRecipe) -> None:
        self.run = CallContext(
            "session.run", recipe.label, recipe.fingerprint, recipe.options_hash, recipe.without_qnn
        )
        self.creation = dataclasses.replace(self.run, op="session.create")
        self.entry: tuple[str, str] | None = None
        self.entry_fault = ""
        self._bad_entries = 0

    def context_of(self, op: str) -> CallContext:
        """Return the context of a call with the operation `op`."""
        return self.run if op == self.run.op else dataclasses.replace(self.run, op=op)

    def name(self, fingerprint: str, label: str, *, entry: bool = False, known: str = "") -> None:
        """Set the fingerprint and label to which a later crash is attributed.

        entry: whether they belong to a cache entry.
        known: faults of QNN that are known for this model.
        """
        # Replace the contexts instead of changing them, because running calls in other threads use the old objects.
        if (fingerprint, label, known) != (self.run.fingerprint, self.run.model, self.run.known):
            suspect: dict[str, Any] = {"fingerprint": fingerprint, "model": label, "entry": entry, "known": known}
            self.run = dataclasses.replace(self.run, **suspect)
            self.creation = dataclasses.replace(self.creation, **suspect)

    def move_to_cpu(self, recipe: SessionRecipe) -> None:
        """Attribute later crashes to the options of `recipe`, with which the model runs on the CPU."""
        self.run = dataclasses.replace(self.run, options_hash=recipe.options_hash, without_qnn=recipe.without_qnn)
        self.creation = dataclasses.replace(self.run, op="session.create")

    def record_use_of_qnn(self, recipe: SessionRecipe, placement: Placement) -> None:
        """Record whether QNN can be the cause of a crash in a run. It cannot be the cause if it runs no node of the
        model."""
        without = recipe.without_qnn or (placement.known and not placement.qnn_nodes)
        if without != self.run.without_qnn:
            self.run = dataclasses.replace(self.run, without_qnn=without)

    def is_only_suspect(self, error: BridgeError) -> bool:
        """Return whether the crash is attributed to this suspect alone."""
        return {call.get("fingerprint") for call in error.details.get("suspects") or []} == {self.run.fingerprint}

    def concerns(self, error: BridgeError) -> bool:
        """Return whether this session may have caused the crash: the error lists no other suspect."""
        return not error.details.get("suspects") or self.is_only_suspect(error)

    def blamed_entry(self, error: BridgeError) -> EntryFault | None:
        """Return the fault of the cache entry if the compiled model in it crashed the host."""
        # Blame the cache entry only if this session's call was the only call in native code. With several calls the
        # cause is uncertain.
        if self.entry is None or not self.is_only_suspect(error) or error.details.get("from_outside"):
            return None
        if self._bad_entries >= MAX_BAD_ENTRIES or not isinstance(error, HostCrashed):
            return None
        self._bad_entries += 1
        self.entry_fault = error.message
        return EntryFault(*self.entry, "crashed", error.message)
