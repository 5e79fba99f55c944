"""The loop around every request: run it in a living host, and in the next one if that host dies meanwhile.

A call goes through these states::

                 quarantined
    CHECKED ------------------> refused
       |
       v
    HOST RUNNING --> attempt --> answered
       ^                |
       |                v host or worker died, or the NPU was lost
       +--------- INVESTIGATED: the policy decides whether the call is repeated
                        |
                        +--> raised, with the cause

Sessions (`_session.replay`), objects of onnxruntime-genai (`genai._model`) and operations on the host itself
(`Host.call`) each have a `Policy`. Every call either gives its result or raises the error that explains why not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from qnnbridge._supervision.host_process import OnDeadline, Patience, deadline_after, overdue
from qnnbridge._transport.channel import CallContext, CallTimedOut, ChannelFailed, ChannelRetired
from qnnbridge.errors import as_onnxruntime
from qnnbridge_protocol.errors import BridgeError, DeadlineExceeded, HostStartFailed, OptionError

if TYPE_CHECKING:
    from qnnbridge._supervision.host_process import FastCallFailed, HostProcess
    from qnnbridge._supervision.supervisor import Supervisor


T = TypeVar("T")


class CallLimits(NamedTuple):
    """How long one call may take, and how often it may be repeated.

    timeout: seconds; ``None`` for the default of the session. retry: deaths of the host that the call itself may
    have caused before it is given up; ``None`` for the default of the session, 0 to send no request twice.
    on_deadline: "kill" ends a host that still works on the call at the deadline.
    """

    timeout: float | None = None
    retry: int | None = None
    on_deadline: OnDeadline = "raise"

    def checked(self) -> CallLimits:
        """Return these limits. Raise `OptionError` for a value that would otherwise show too late."""
        deadline_after(self.timeout)
        retry = self.retry
        if retry is not None and (isinstance(retry, bool) or not isinstance(retry, int) or retry < 0):
            raise OptionError(f"retry={retry!r} is not a number of repetitions.", fix="Give 0, 1 or more.")
        if self.on_deadline not in ("raise", "kill"):
            raise OptionError(f"on_deadline={self.on_deadline!r} is not known.", fix="Give 'raise' or 'kill'.")
        return self

    def within(self, seconds: float | None, retry: int) -> CallLimits:
        """Return the limits with these defaults of a session in place of ``None``."""
        return CallLimits(
            seconds if self.timeout is None else self.timeout,
            retry if self.retry is None else self.retry,
            self.on_deadline,
        )


NO_LIMITS = CallLimits()


class Death(NamedTuple):
    """The death of a host during a call.

    innocent: the call did not cause it. lost: number of calls of the serving host that died with it.
    """

    error: BridgeError
    innocent: bool
    lost: int = 1


class RetryHost(Protocol):
    """The part of `Host` that the loop needs."""

    supervisor: Supervisor

    def settle_versions(self, process: HostProcess, deadline: float | None) -> None: ...
    def before_call(self, process: HostProcess) -> None: ...


class Policy:
    """Decide what happens to a call when a host dies under it.

    Args:
        context: what a death in the call counts against.
    """

    # Whether a request may be sent twice.
    may_repeat = True

    def __init__(self, host: RetryHost, context: CallContext) -> None:
        self._supervisor = host.supervisor
        self._settle_versions = host.settle_versions
        self.before_call = host.before_call
        self.context = context

    def check_quarantine(self) -> None:
        """Raise `ModelQuarantined` for a model that is refused."""
        self._supervisor.check_quarantine(self.context)

    def before_attempt(self, process: HostProcess, deadline: float | None) -> None:
        """Prepare a running process for the attempt. Raise `ModelQuarantined` as `check_quarantine` does."""
        # An entry of the quarantine holds for one set of versions (ONNX Runtime, QNN, driver), which only a running
        # host knows. `check_quarantine` before the start spares a refused model the start of a host.
        self._settle_versions(process, deadline)
        self.check_quarantine()
        self.before_call(process)

    def expired(self, process: HostProcess, late: CallTimedOut, limits: CallLimits) -> DeadlineExceeded:
        """Return the error for the caller; end the host if the limits ask for it."""
        return overdue(process, late, self.context, limits.timeout, limits.on_deadline)

    def excuses(self, _death: BridgeError) -> bool:
        """Return whether the call is repeated as if nothing had happened."""
        return False

    @abstractmethod
    def judge(self, process: HostProcess, error: BridgeError) -> Death | bool:
        """Return the death that an error of the host reports, or whether the call is repeated.

        ``False`` raises the error.
        """

    @abstractmethod
    def repeats(self, death: Death, patience: Patience) -> bool:
        """Return whether the call is repeated, and count the repetition. ``False`` raises the death."""


def survive(
    supervisor: Supervisor,
    policy: Policy,
    attempt: Callable[[HostProcess, float | None], T],
    limits: CallLimits,
    deadline: float | None,
    failed: FastCallFailed | None = None,
) -> T:
    """Run `attempt` in a living host, and again in the next one if that host dies meanwhile, as `policy` decides.

    Args:
        attempt: sends the request; called with the process and the deadline.
        limits: of the caller. The policy counts `retry`; `timeout` is for messages.
        deadline: on `time.monotonic`.
        failed: how the call ended on the fast path. It enters the loop as if the first attempt had failed, with the
            same blame and the same repetition.

    Raises:
        DeadlineExceeded: the time was over; its ``state`` reports whether the host still works on the call.
        BridgeError: the host's own error, or the explained death of a host.
    """
    patience = Patience(deadline)
    while True:
        if failed is None:
            policy.check_quarantine()
            try:
                process = supervisor.process(deadline)
            except HostStartFailed as error:
                # From outside: SIGKILL, SIGTERM or Ctrl+C by another program, or the kernel when memory is short.
                if error.details.get("from_outside") and policy.may_repeat and patience.is_left():
                    continue  # killed while it started
                raise
            policy.before_attempt(process, deadline)
        else:
            process = failed.process
        try:
            if failed is not None:
                before, failed = failed, None
                raise before.take()
            return attempt(process, deadline)
        # The host is being replaced by plan and does not work on the request. No death, so nothing is counted.
        except ChannelRetired:
            continue
        except ChannelFailed as failure:
            if process.retiring:
                continue  # it did not finish in time, by our own plan
            lost = supervisor.lost(process, failure, deadline)
            if policy.excuses(lost):
                continue
            innocent = not supervisor.may_be_caused_by(process, failure)
            # A caller that wants no request sent twice means also one that another call's death took along. A
            # request without an id was never written.
            innocent = innocent and (policy.may_repeat or failure.request_id is None)
            death: Death | bool | None = Death(lost, innocent)
            del lost
        except CallTimedOut as late:
            raise policy.expired(process, late, limits) from None
        except BridgeError as error:
            death = policy.judge(process, error)
            if death is False:
                raise as_onnxruntime(error) from None
        if death is True:
            continue
        try:
            assert isinstance(death, Death)
            if not policy.repeats(death, patience):
                raise as_onnxruntime(death.error) from None
        finally:
            death = None  # else it and this frame would keep each other, and the call's arrays
