"""The loop around every request: run the request in a host, and repeat it in the next host if the host dies.

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
(`Host.call`) each have a `Policy`. Every call either returns its result or raises an error that explains the
failure.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from qnnbridge._supervision.host_process import OnDeadline, RepeatWindow, deadline_after, overdue
from qnnbridge._transport.channel import CallContext, CallTimedOut, ChannelFailed, ChannelRetired
from qnnbridge.errors import as_onnxruntime
from qnnbridge_protocol.errors import BridgeError, DeadlineExceeded, HostStartFailed, OptionError

if TYPE_CHECKING:
    from qnnbridge._supervision.host_process import FastCallFailed, HostProcess
    from qnnbridge._supervision.supervisor import Supervisor


T = TypeVar("T")


class CallLimits(NamedTuple):
    """Time limit of a call, and the number of repetitions.

    timeout: seconds; ``None`` for the session's default. retry: number of repetitions after deaths of the host that
    the call itself may have caused; ``None`` for the session's default, 0 to never send a request twice.
    on_deadline: "kill" ends a host that still works on the call at the deadline.
    """

    timeout: float | None = None
    retry: int | None = None
    on_deadline: OnDeadline = "raise"

    def checked(self) -> CallLimits:
        """Return these limits. Raise `OptionError` for an invalid value, which would otherwise cause an error only
        during the call."""
        deadline_after(self.timeout)
        retry = self.retry
        if retry is not None and (isinstance(retry, bool) or not isinstance(retry, int) or retry < 0):
            raise OptionError(f"retry={retry!r} is not a valid number of repetitions.", fix="Give 0 or more.")
        if self.on_deadline not in ("raise", "kill"):
            raise OptionError(f"on_deadline={self.on_deadline!r} is not valid.", fix="Give 'raise' or 'kill'.")
        return self

    def within(self, seconds: float | None, retry: int) -> CallLimits:
        """Return the limits with each ``None`` replaced by the session's default."""
        return CallLimits(
            seconds if self.timeout is None else self.timeout,
            retry if self.retry is None else self.retry,
            self.on_deadline,
        )


NO_LIMITS = CallLimits()


class Death(NamedTuple):
    """The death of a host during a call. innocent: whether the call did not cause the death. lost: 1 if the call
    was lost with the host, otherwise 0."""

    error: BridgeError
    innocent: bool
    lost: int = 1


class RetryHost(Protocol):
    """Interface of `Host` that the loop uses."""

    supervisor: Supervisor

    def settle_versions(self, process: HostProcess, deadline: float | None) -> None: ...
    def before_call(self, process: HostProcess) -> None: ...


class Policy:
    """Decide what happens to a call if the host dies during the call.

    Args:
        context: the model and the operation that are blamed if the host dies during the call.
    """

    # Whether a request may be sent twice, because `retry` is not 0.
    may_repeat = True

    def __init__(self, host: RetryHost, context: CallContext) -> None:
        self._supervisor = host.supervisor
        self._settle_versions = host.settle_versions
        self.before_call = host.before_call
        self.context = context

    def check_quarantine(self) -> None:
        """Raise `ModelQuarantined` if the model of the call is in quarantine."""
        self._supervisor.check_quarantine(self.context)

    def before_attempt(self, process: HostProcess, deadline: float | None) -> None:
        """Prepare a running process for the attempt. Raise `ModelQuarantined` if the model is in quarantine."""
        # The quarantine applies to one set of versions (ONNX Runtime, QNN, driver), which are known only after a
        # host has started. The earlier check avoids starting a host for a refused model.
        self._settle_versions(process, deadline)
        self.check_quarantine()
        self.before_call(process)

    def expired(self, process: HostProcess, late: CallTimedOut, limits: CallLimits) -> DeadlineExceeded:
        """Return the error for a missed deadline. End the host if the call's limits request that."""
        return overdue(process, late, self.context, limits.timeout, limits.on_deadline)

    def excuses(self, _death: BridgeError) -> bool:
        """Return whether to repeat the call without counting this death."""
        return False

    @abstractmethod
    def judge(self, process: HostProcess, error: BridgeError) -> Death | bool:
        """Handle an error in the host's response. Return the death that the error reports, ``True`` to repeat the
        call, or ``False`` to raise the error."""

    @abstractmethod
    def repeats(self, death: Death, window: RepeatWindow) -> bool:
        """Return whether to repeat the call after this death, and count the repetition. Otherwise the loop raises
        the error of the death."""


def survive(
    supervisor: Supervisor,
    policy: Policy,
    attempt: Callable[[HostProcess, float | None], T],
    limits: CallLimits,
    deadline: float | None,
    failed: FastCallFailed | None = None,
) -> T:
    """Run `attempt` in a host. If the host dies, run it again in the next host, if `policy` allows this.

    Args:
        attempt: function that sends the request, called with the process and the deadline.
        limits: limits of the call. The policy counts `retry`; `timeout` is only shown in messages.
        deadline: deadline as a time of `time.monotonic`.
        failed: failure of the call on the fast path, which is handled like a failed first attempt.

    Raises:
        DeadlineExceeded: the deadline expired; its ``state`` reports whether the host still works on the call.
        BridgeError: the host reported an error, or died.
    """
    window = RepeatWindow(deadline)
    while True:
        if failed is None:
            policy.check_quarantine()
            try:
                process = supervisor.process(deadline)
            except HostStartFailed as error:
                # "from_outside" means SIGKILL, SIGTERM or Ctrl+C, sent by another program, or by the kernel when
                # memory is short.
                if error.details.get("from_outside") and policy.may_repeat and window.is_open():
                    continue  # the host was killed during its start, so start another one
                raise
            policy.before_attempt(process, deadline)
        else:
            process = failed.process
        try:
            if failed is not None:
                before, failed = failed, None
                raise before.take()
            return attempt(process, deadline)
        # The host ends as planned and has not started the request. Do not count its end as a death.
        except ChannelRetired:
            continue
        except ChannelFailed as failure:
            if process.retiring:
                continue  # the host ended as planned before the call finished: repeat the call in the next host
            lost = supervisor.lost(process, failure, deadline)
            if policy.excuses(lost):
                continue
            innocent = not supervisor.may_be_caused_by(process, failure)
            # With `retry=0` repeat only a request that was not sent (it has no id), even if another call caused the
            # death.
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
            if not policy.repeats(death, window):
                raise as_onnxruntime(death.error) from None
        finally:
            death = None  # break the reference cycle of error and frame, which would keep the call's arrays alive
