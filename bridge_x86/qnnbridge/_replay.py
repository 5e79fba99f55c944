"""What keeps a session alive: its calls are done again in the next host, on the CPU, or without the cache.

Owns who is to blame if a host dies (the model, or the entry of the cache that stands for it), and whether the
session has gone to the CPU. Every call either gives its result or raises the error that explains why not.
Any thread.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from qnnbridge._daemon.session import DaemonSession
from qnnbridge._providers import CPU
from qnnbridge._recipe import SessionRecipe
from qnnbridge._supervision.deadlines import OnDeadline, deadline_after, overdue
from qnnbridge._transport.channel import CallContext, ChannelFailed, ChannelRetired, Deadline
from qnnbridge.errors import as_onnxruntime
from qnnbridge_host.cache.status import CacheStatus
from qnnbridge_protocol.errors import BridgeError, ModelQuarantined
from qnnbridge_protocol.specs import Placement, ProviderSpec

if TYPE_CHECKING:
    from qnnbridge._fastpath.failure import FastCallFailed
    from qnnbridge._fastpath.runner import FastCall
    from qnnbridge._host import Host
    from qnnbridge._transport.host_process import HostProcess
    from qnnbridge_host.cache.lookup import SessionCache

_log = logging.getLogger("qnnbridge.session")

T = TypeVar("T")


class BadEntry(Exception):
    """The compiled model of the cache could not be used, and was set aside: make the session another way."""


class ReplayingSession:
    """See the module. Base of `RemoteSession`, which makes the session and its calls."""

    def __init__(self, host: Host, manifest: SessionRecipe, *, retry: int) -> None:
        self.host = host
        self.manifest = manifest
        self.retry = retry
        source = manifest.source
        self.context = CallContext(
            "session.run", source.label, source.fingerprint, manifest.options_hash, manifest.without_qnn
        )
        """What its runs are about."""
        self._create_context = dataclasses.replace(self.context, op="session.create")
        self._lock = threading.Lock()
        self._use_cache = manifest.cache is not False and not host.is_daemon
        self._cache: SessionCache | None = None
        self._shared = DaemonSession(manifest, retry) if host.is_daemon else None
        self._moved_because: str | None = None
        self._generation = 0
        self._closed = False
        self.live: HostProcess | None = None
        """The process in which it was made last, for quick calls. It may have ended."""
        self.next_upkeep = 0.0
        """When a quick call has to look again after what every other call looks after."""
        self.fast_call: FastCall | None = None
        """For the call that was made last, once there was a quick one."""

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def generation(self) -> int:
        """Of the host in which the session lives, or last lived."""
        return self._generation

    @property
    def moved(self) -> bool:
        """Whether it went to the CPU because its model is in quarantine."""
        return self._moved_because is not None

    @property
    def cache_status(self) -> CacheStatus:
        """What the cache did for this session."""
        if self._shared is not None:
            return self._shared.cache_status
        return self._cache.status if self._cache is not None else CacheStatus("off", "cache=False")

    def with_retry(
        self,
        attempt: Callable[[HostProcess, float | None], T],
        timeout_s: float | None,
        retry: int,
        on_deadline: OnDeadline,
        context: CallContext,
        deadline: float | None = None,
        failed: FastCallFailed | None = None,
    ) -> T:
        """Do `attempt` in a living host; again in the next one if that dies meanwhile, `retry` times.

        deadline: if the time began before this.
        """
        supervisor = self.host.supervisor
        deadline = deadline_after(timeout_s) if deadline is None else deadline
        may_repeat = retry > 0
        while True:
            # Before: a known poison must not cost a start of the host. Behind: the first HELLO tells the versions.
            if failed is None:
                self._check_quarantine()
                process = supervisor.process(deadline)
                self._check_quarantine()
                self.host.before_call(process)
            else:
                process = failed.process
            on_cpu = self.manifest.on_cpu
            try:
                if failed is not None:
                    before, failed = failed, None
                    raise before.take()
                return attempt(process, deadline)
            except ChannelRetired:
                continue
            except BadEntry:
                self._after_bad_entry(context, deadline)
            except ChannelFailed as failure:
                if process.retiring:
                    continue  # it did not finish in time, by our own plan
                death: BridgeError | None = supervisor.lost(process, failure, deadline)
                assert death is not None
                if self._is_the_entrys_fault(death) and context.op == self._create_context.op:
                    # Nobody asked for this entry; the model itself has not been tried yet.
                    self._after_bad_entry(context, deadline)
                    continue
                if retry <= 0 or (death.retry == "pointless" and self._concerns_me(death)):
                    if not may_repeat or on_cpu or not self._went_to_cpu():
                        try:
                            raise as_onnxruntime(death) from None
                        finally:
                            death = None  # else it and this frame would keep each other, and the call's arrays
                    continue
                retry -= 1
                supervisor.counters.retried_calls += 1
            except Deadline as late:
                raise overdue(process, late, context, timeout_s, on_deadline) from None
            except BridgeError as error:
                if self._shared is not None or not error.details.get("host_must_restart"):
                    raise as_onnxruntime(error) from None
                supervisor.npu_lost(process, error, self.context)
                if retry <= 0:
                    raise as_onnxruntime(error) from None
                retry -= 1
                supervisor.counters.retried_calls += 1

    # --- the cache ---

    def _prepare_entry(self, deadline: float | None) -> None:
        """Find or make the compiled model to load. Raises what the model raises when it is compiled."""
        if not self._use_cache:
            return
        self._check_quarantine()
        if self._cache is None:
            # The host comes up while the cache's modules are loaded.
            self.host.supervisor.start_ahead(deadline)
            self._cache = _session_cache(self.host, self.manifest, self.retry)
        if not self.moved:
            try:
                self._cache.prepare(deadline)
            except ModelQuarantined as error:
                self._bear(error)
            except BridgeError as error:
                raise as_onnxruntime(error) from None
        if self.manifest.on_cpu:
            self._cache.close()

    def _after_bad_entry(self, context: CallContext, deadline: float | None) -> None:
        """A session that is being opened has its entry made anew; one that exists goes back to its model."""
        if context.op == "session.create":
            self._prepare_entry(deadline)

    def _is_the_entrys_fault(self, error: BridgeError) -> bool:
        """Whether a host was killed by the compiled model of the cache alone; then that is set aside."""
        suspects = {call.get("fingerprint") for call in error.details.get("suspects") or []}
        return self._cache is not None and self._cache.host_died(error, suspects)

    def _book_on(self, fingerprint: str) -> None:
        """Who is to blame if the host dies: the model, or the entry of the cache that stands for it."""
        if fingerprint != self.context.fingerprint:
            self.context = dataclasses.replace(self.context, fingerprint=fingerprint)
            self._create_context = dataclasses.replace(self._create_context, fingerprint=fingerprint)

    def _note_part_of_qnn(self, placement: Placement) -> None:
        """Whether QNN can be to blame if the host dies in a run: not if it took no node."""
        without = self.manifest.without_qnn or (placement.known and not placement.qnn_nodes)
        if without != self.context.without_qnn:
            self.context = dataclasses.replace(self.context, without_qnn=without)

    # --- quarantine ---

    def _concerns_me(self, error: BridgeError) -> bool:
        """Whether a death that a restart does not cure says anything about this model: not if another may be it."""
        suspects = {call.get("fingerprint") for call in error.details.get("suspects") or []}
        return not suspects or suspects == {self.context.fingerprint}

    def _check_quarantine(self) -> None:
        """Raises `ModelQuarantined`, or goes on with the CPU if the session allows that."""
        try:
            self.host.supervisor.check_quarantine(self.context)
        except ModelQuarantined as error:
            self._bear(error)

    def _bear(self, error: ModelQuarantined) -> None:
        """Go on with the CPU if the session allows that, else raise."""
        scan = self.manifest.source.scan
        compiled = scan is not None and scan.is_compiled  # for QNN: no other provider can read it
        if self.manifest.spec.fallback != "cpu" or self.manifest.on_cpu or compiled:
            raise error
        self._move_to_cpu(error)

    def _went_to_cpu(self) -> bool:
        """After a death: whether the model is in quarantine now, and goes on with the CPU."""
        try:
            self._check_quarantine()
        except ModelQuarantined:
            return False
        return self.manifest.on_cpu

    def _move_to_cpu(self, error: ModelQuarantined) -> None:
        """The model keeps killing hosts on QNN; there it is refused from now on, not here."""
        with self._lock:
            if self.manifest.on_cpu:
                return
            spec = dataclasses.replace(self.manifest.spec, providers=(ProviderSpec(CPU),))
            self.manifest = dataclasses.replace(self.manifest, spec=spec)
            self.context = dataclasses.replace(
                self.context, options_hash=self.manifest.options_hash, without_qnn=self.manifest.without_qnn
            )
            self._create_context = dataclasses.replace(self.context, op="session.create")
            self._moved_because = error.message
            self._generation = 0
            self.live = self.fast_call = None
        self.host.supervisor.counters.cpu_fallbacks += 1
        _log.warning("%s It runs on the CPU from now on, as fallback='cpu' allows.", error.message)


def _session_cache(host: Host, manifest: SessionRecipe, retry: int) -> SessionCache:
    from qnnbridge_host.cache.lookup import SessionCache

    return SessionCache(host, manifest, retry)
