"""Compare a session's results on QNN with results of the CPU: in the first call with varied inputs, and in a few
later calls.

A call "has content" if the values of its inputs vary (`has_content`). The host compares the results in a separate
process (request `model.verify`). This module chooses the calls, sends their inputs and outputs, stores the report,
and warns or raises. An error of the comparison does not fail a call, except `NumbersDiffer` for ``verify="raise"``.
Thread-safe.

Which calls are compared::

    no verdict ── the first call, then calls with content until one gives a verdict ──> agrees, differs, unknown
    agrees ────── the 2nd, 4th, 8th, 16th … call, counted over all sessions of the model ──> agrees, differs

A call whose inputs are nearly constant does not prove agreement: the results for zeros may agree although the
results for a photo differ. Later comparisons of a session take at most `FREE_S` seconds plus the fraction
`SHARE_OF_TIME` of the session's lifetime. After `FIRST_CALLS` calls, a session decides only once per
`DECISION_INTERVAL_S` whether to compare a call, so that all other calls are not slowed down.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from qnnbridge._callers import Caller, find_caller, inherit, warn_application
from qnnbridge._session import SessionRecipe, Verify
from qnnbridge._session.create import encoded
from qnnbridge._supervision.host_process import deadline_after, seconds_left
from qnnbridge._transport.channel import CallContext, CallTimedOut, ChannelFailed, ChannelRetired
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_os.shield import start_thread
from qnnbridge_protocol.errors import BridgeError, NumbersDiffer, OptionError, ProtocolDesync, UnknownOperation
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.model_records import BEING_COMPARED, MADE_UP, NumbersReport
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._session.remote_session import RemoteSession
    from qnnbridge._values.feeds import Counted
    from qnnbridge_protocol.specs import NodeInfo, SessionSpec


_log = log_of("qnnbridge.numbers")

VERIFY_VARIABLE: Final = "QNNBRIDGE_VERIFY"
# Time limit in seconds of a comparison in the background. When it expires, the host ends the process that runs the
# model on the CPU.
BACKGROUND_TIMEOUT_S: Final = 300.0
# Additional seconds to wait for the response after the time limit that the host applies.
ANSWER_S: Final = 5.0
NOT_RUN: Final = "the session has not run yet"
# Maximum total size of inputs and outputs of a compared call, because they are copied.
MAX_BYTES: Final = 256 * 2**20
# Maximum fraction of a session's lifetime for later comparisons. A comparison starts a process (0.3 s), and loads
# and runs the model on the CPU there.
SHARE_OF_TIME: Final = 0.01
# Seconds that later comparisons may take in addition to `SHARE_OF_TIME`, so that some happen soon after the start.
FREE_S: Final = 5.0
# Minimum seconds between two decisions whether to compare a call.
DECISION_INTERVAL_S: Final = 1.0
# Number of calls after which `DECISION_INTERVAL_S` applies. All earlier calls are considered, because the calls of
# a program differ most at its start.
FIRST_CALLS: Final = 32
# Base of the schedule for calls without content: calls number 1, 4, 16 and so on are compared. Such a comparison
# can show a difference, but cannot prove agreement.
_CONSTANT_BASE: Final = 4

# Minimum number of values of an input with content. Smaller inputs are usually sizes or flags.
MIN_VALUES: Final = 8
# Number of values that are sampled from an input.
SAMPLE_SIZE: Final = 4096
# An input counts as constant if the ratio of its standard deviation to its largest value is below this limit, as in
# an empty picture with sensor noise.
NEARLY_CONSTANT: Final = 0.02

_WORDS: Final[Mapping[object, Verify]] = {
    **dict.fromkeys((False, "off", "0", "no", "false"), "off"),
    "warn": "warn",
    **dict.fromkeys((True, "raise", "1", "yes", "true"), "raise"),
}


class NumbersWarning(UserWarning):
    """Warning that a session's results on QNN differ from the CPU's."""


def verify_mode(given: object) -> Verify:
    """Return the mode that `verify=` or the environment variable selects. Raise `OptionError` for an unknown
    value."""
    word: object = os.environ.get(VERIFY_VARIABLE, "").strip().lower() or "warn" if given is None else given
    try:
        return _WORDS[word]
    except (LookupError, TypeError):
        where = f"{VERIFY_VARIABLE}={word!r}" if given is None else f"verify={given!r:.100}"
        raise OptionError(f"{where} is not a valid value.", fix="Give 'warn', 'raise' or False ('off').") from None


# Kind of the inputs of a compared call: "content" if `has_content` is true, else "constant"; "" if no call is being
# compared.
Kind = Literal["", "constant", "content"]


class HasCalls(Protocol):
    """Interface of an object whose attribute `calls` is the number of calls so far."""

    calls: int


@dataclasses.dataclass(frozen=True, slots=True)
class WholeCalls:
    """Calls whose outputs are joined from the outputs of several runs. The comparison uses the joined outputs.

    Args:
        spec: specification of the session without the sizes of a variant.
        parts: description of how a call is divided into runs. Each division has a separate verdict in the cache.
        constants: values of the inputs that the application does not feed.
        counter: the object that counts the calls.
    """

    spec: SessionSpec
    parts: str
    constants: Mapping[str, Any]
    counter: HasCalls


class NumbersCheck:
    """Compare a session's results on QNN with results of the CPU.

    Args:
        remote: the session, which must have been created.
        mode: "warn" compares in the background; "raise" compares before the call returns.
        whole: description of the calls, if their outputs are joined from several runs.
        ignore_kept: whether to ignore the verdicts of earlier sessions.
    """

    def __init__(
        self, remote: RemoteSession, mode: Verify, whole: WholeCalls | None = None, *, ignore_kept: bool = False
    ) -> None:
        self._ignore_kept = ignore_kept
        self._remote = remote
        self._mode = mode
        self._whole = whole
        self._counter: HasCalls = remote if whole is None else whole.counter
        self._lock = Lock()
        # Whether calls of this session are compared.
        self._compares = False
        # Time before which `wants` returns False.
        self._next_decision = 0.0
        # Kind of the call that is being compared. While a call without content is compared, a call with content may
        # be compared, too.
        self._busy: Kind = ""
        # Number of this session's comparisons without a verdict, by kind of call.
        self._unsettled = {"constant": 0, "content": 0}
        # Seconds spent on comparisons, and the time since which they are counted.
        self._spent_s, self._since = 0.0, time.monotonic()
        # Number of this session's calls that the report already counts.
        self._counted = 0
        renew_in_forks(self)
        placement = remote.info.placement
        if mode == "off":
            self._report = NumbersReport("off", reason="verify='off'")
        elif remote.recipe.without_qnn or (placement.known and not placement.qnn_nodes):
            self._report = NumbersReport("off", reason="no node of the model runs on QNN")
        elif remote.numbers is not None and whole is None and not ignore_kept:
            kept = remote.numbers
            # Add 1 call, because the host has counted the creation of the session as a call.
            self._report, self._counted = dataclasses.replace(kept, calls=kept.calls + 1), 1
            # Later calls are compared only if the earlier verdict is "agrees". The CPU cannot run a compiled model.
            self._compares = kept.state == "agrees" and not remote.recipe.compiled
            age_s = abs(time.time() - kept.when)
            self._spent_s = max(0.0, kept.seconds - SHARE_OF_TIME * age_s)
        else:
            self._report, self._compares = NumbersReport("pending", reason=NOT_RUN), True

    def _at_fork_reinit(self) -> None:
        """Discard a comparison that was running at the fork: its thread does not exist in the child."""
        self._lock = Lock()
        self._busy = ""

    @property
    def report(self) -> NumbersReport:
        """Latest report, including the number of calls so far."""
        report, more = self._report, self._counter.calls - self._counted
        return dataclasses.replace(report, calls=report.calls + more) if report.compared and more else report

    @property
    def is_open(self) -> bool:
        """Whether no comparison has led to a verdict yet."""
        return self._compares and self._report.state != "agrees"

    def report_earlier_difference(self) -> None:
        """If an earlier session found a difference, warn or raise `NumbersDiffer`."""
        if self._mode != "off" and self._report.state == "differs":
            self._warn_or_raise(self._report)

    def wants(self, values: Iterable[Any]) -> bool:
        """Return whether to compare the next call, whose inputs are `values`."""
        if not self._compares:
            return False
        number, now = self._counter.calls + 1, time.monotonic()
        early = number < FIRST_CALLS
        if early:
            # Make the fast path call this method again at the next call, not only once a second.
            self._remote.next_upkeep = 0.0
        if self._busy == "content" or now < self._next_decision:
            return False
        if self._is_due(number, values, now):
            return True
        if not early:
            self._next_decision = now + DECISION_INTERVAL_S
        return False

    def _is_due(self, number: int, values: Iterable[Any], now: float) -> bool:
        report = self._report
        if not self.is_open:
            due = report.calls + number - self._counted >= report.next_call
            return due and self._has_time(now) and has_content(values)
        content = has_content(values)
        if self._busy and not content:
            return False
        # Compare the first call even without content, because the comparison can show a difference.
        tried = self._unsettled["content" if content else "constant"]
        due = number >= (2 if content else _CONSTANT_BASE) ** tried
        return due and (not tried or self._has_time(now))

    def _has_time(self, now: float) -> bool:
        """Return whether the time budget of comparisons is sufficient for another comparison."""
        return self._spent_s + self._report.seconds <= FREE_S + SHARE_OF_TIME * (now - self._since)

    def compare_call(
        self,
        names: Sequence[str],
        feeds: Sequence[tuple[str, Any, Any]],
        results: list[Any],
        *,
        ahead: bool = False,
        counted: Counted | None = None,
    ) -> None:
        """Compare a call with the CPU. The call has succeeded and been counted, and `wants` returned true for it.

        Args:
            ahead: whether the call was made only for the comparison, with generated inputs. The caller waits for
                the result.
            counted: function that selects the part of the outputs to compare; see `RemoteRunner.run_values`.

        Raises:
            NumbersDiffer: the results differ, and the mode is "raise".
        """
        kind: Kind = "content" if has_content(value for _, value, _ in feeds) else "constant"
        with self._lock:
            # Skip this call, because a call of another thread is being compared.
            if not self._compares or self._busy in ("content", kind):
                return
            self._busy = kind
        background = self._mode == "warn" and not ahead
        try:
            header, buffers = self._message(names, feeds, results, counted)
        except BridgeError as error:
            self._take(NumbersReport("unknown", reason=f"its values cannot be compared: {error.message}"), 0, kind)
            return
        calls = header["calls"]
        if sum(memoryview(buffer).nbytes for buffer in buffers) > MAX_BYTES:
            reason = f"inputs and outputs have more than {MAX_BYTES >> 20} MiB; verify(feeds) compares them"
            self._take(NumbersReport("unknown", reason=reason), 0, kind)
            return
        header |= {"constant": kind == "constant", "again": self._ignore_kept}
        if background:
            header |= {"patient": True, "budget_s": BACKGROUND_TIMEOUT_S}
            # Copy the values: the application may change its arrays during the comparison.
            copies = tuple(bytes(buffer) for buffer in buffers)
            if self._report.state != "agrees":
                self._report = NumbersReport("pending", reason=BEING_COMPARED)
            start_thread("qnnbridge verify", self._compare_in_background, header, copies, kind, find_caller())
            return
        if ahead:
            header["of"] = MADE_UP
        report = self._ask(header, buffers, BACKGROUND_TIMEOUT_S if ahead else self._remote.timeout_s)
        if self._take(report, calls, kind):
            self._warn_or_raise(self._report)

    def compare(
        self,
        names: Sequence[str],
        feeds: Sequence[tuple[str, Any, Any]],
        results: list[Any],
        timeout_s: float | None,
        inputs: str,
        counted: Counted | None = None,
    ) -> NumbersReport:
        """Compare a call because the application requested it, even if a report exists.

        The new report replaces the stored report, unless it shows agreement for inputs without content, which
        proves nothing.
        """
        header, buffers = self._message(names, feeds, results, counted)
        constant = not has_content(value for _, value, _ in feeds)
        header |= {"again": True, "of": inputs, "constant": constant}
        report = self._ask(header, buffers, timeout_s)
        if not (constant and report.state == "agrees"):
            self._take(report, header["calls"], "")
        return dataclasses.replace(report, calls=0, compared=0)

    def _take(self, report: NumbersReport, calls: int, kind: Kind) -> bool:
        """Merge the report of a comparison into the stored report. Return whether this is the first report of a
        difference.

        Args:
            calls: number of this session's calls that the request of the comparison reported to the host.
            kind: kind of the compared call; "" for a comparison that the application requested.
        """
        with self._lock:
            before = self._report
            if self._busy == kind:
                self._busy = ""
            self._spent_s += 0.0 if report.kept else report.seconds
            # Add the calls to the counts of a report with a verdict, because without a cache the host does not
            # count calls.
            if report.state != "unknown":
                report = dataclasses.replace(
                    report,
                    calls=max(report.calls, before.calls + calls),
                    compared=max(report.compared, before.compared + (not report.kept)),
                )
                self._counted += calls
            settled = before.state in ("agrees", "differs")
            self._report = report.after(before) if settled else report
            if report.state == "unknown" and kind:
                self._unsettled[kind] += 1
            # If this comparison led to no verdict, compare further calls. Without a report on outputs the results
            # cannot be compared at all, so compare no further calls.
            shows_nothing = self._report.state == "unknown" and bool(self._report.outputs)
            self._compares = self._mode != "off" and (self._report.state == "agrees" or shows_nothing)
            return self._report.state == "differs" and before.state != "differs"

    def samples(self, timeout_s: float | None) -> dict[str, Any]:
        """Return generated values for the inputs. Raise `OptionError` if the host cannot generate them."""
        remote = self._remote
        return made_up(remote.host, remote.recipe.label, remote.info.inputs, deadline_after(timeout_s))

    # --- requests to the host ---

    def _message(
        self,
        names: Sequence[str],
        feeds: Sequence[tuple[str, Any, Any]],
        results: list[Any],
        counted: Counted | None,
    ) -> tuple[dict[str, Any], tuple[Any, ...]]:
        from qnnbridge_protocol.values import Encoder

        recipe, whole = self._remote.recipe, self._whole
        spec = recipe.spec if whole is None else whole.spec
        # The session runs a rewritten model, so the CPU must run the model with the same rewrites.
        if self._remote.fix is not None and whole is None:
            spec = dataclasses.replace(spec, fix=self._remote.fix)
        if whole is not None:
            feeds = [*feeds, *((name, value, None) for name, value in whole.constants.items())]
        spec = dataclasses.replace(
            spec, disabled_optimizers=(*spec.disabled_optimizers, *self._remote.disabled_optimizers)
        )
        described, buffers = encoded(recipe.initializers)
        encoder = Encoder()
        inputs = [[name, encoder.add(value, kind)] for name, value, kind in feeds]
        outputs = [encoder.add(value) for value in (results if counted is None else counted(names, results))]
        header = {
            "op": "model.verify",
            "spec": spec.to_wire(),
            "folder": recipe.folder,
            "cache": recipe.cache_settings().to_wire(),
            "initializers": described,
            "inputs": inputs,
            "outputs": list(names),
            "results": outputs,
            "leading": counted is not None,
            "calls": max(0, self._counter.calls - self._counted),
            "compared": self._report.compared,
        }
        if self._remote.live is not None:
            header["session"] = self._remote.live.session
        if whole is not None:
            header |= {"parts": whole.parts, "of": "the inputs of a call that ran in several parts"}
        # Send fingerprint and files, so that the host notices a file that has changed since the creation.
        if recipe.identity is not None:
            header |= {"fingerprint": recipe.fingerprint, "files": [list(file) for file in recipe.identity.files]}
        buffers += tuple(encoder.buffers)
        if recipe.spec.model_path is None:
            buffers += (recipe.data or b"",)
        return header, buffers

    def _ask(self, header: dict[str, Any], buffers: tuple[Any, ...], timeout_s: float | None) -> NumbersReport:
        """Send the request to the session's host, only once. If that host dies, the session's own calls report the
        death."""
        live = self._remote.live
        if live is None:
            return NumbersReport("unknown", reason="the host in which the session ran has ended")
        if timeout_s is not None:
            header["budget_s"] = timeout_s
        wait_s = header.get("budget_s")
        try:
            deadline = None if wait_s is None else deadline_after(float(wait_s) + ANSWER_S)
            frame = live.process.channel.call(header, buffers, deadline, CallContext("model.verify"))
            return NumbersReport.from_wire(frame.header["numbers"])
        except UnknownOperation:
            reason = "the host's version of qnnbridge cannot compare; upgrade it"
        except (ProtocolDesync, LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"the host's answer is invalid ({error})"
        except BridgeError as error:
            reason = error.message.rstrip(".")
        except CallTimedOut:
            reason = "the comparison took too long"
        except (ChannelFailed, ChannelRetired):
            reason = "the host ended before the comparison did"
        return NumbersReport("unknown", reason=reason, when=time.time())

    def _compare_in_background(
        self, header: dict[str, Any], buffers: tuple[Any, ...], kind: Kind, caller: Caller | None
    ) -> None:
        """Compare in a background thread. A warning refers to the line of the application that made the call."""
        inherit(caller)
        report = self._ask(header, buffers, None)
        if self._take(report, header["calls"], kind):
            # The application may have turned warnings into errors, which no code would handle in this thread.
            with contextlib.suppress(Warning):
                self._warn_or_raise(self._report)

    # --- reports ---

    def _warn_or_raise(self, report: NumbersReport) -> None:
        """If the report shows a difference, warn or raise `NumbersDiffer`."""
        recipe = self._remote.recipe
        if report.state != "differs":
            _log.debug("%s: numbers: %s", recipe.label, report)
            return
        error = numbers_differ(recipe, report)
        if self._mode == "raise":
            raise error
        warn_application(f"{error.message} {error.cause} {error.fix}", NumbersWarning, _log)


def has_content(values: Iterable[Any]) -> bool:
    """Return whether the inputs of a call vary enough for a comparison to be meaningful. Inputs with few values,
    such as flags and sizes, are ignored. Return ``True`` if all inputs have few values."""
    import numpy as np

    arrays = [value for value in values if isinstance(value, np.ndarray) and value.dtype.kind in "biuf"]
    arrays = [array for array in arrays if array.size >= MIN_VALUES]
    return not arrays or any(map(_varies, arrays))


def _varies(array: Any) -> bool:
    import numpy as np

    # A sample is sufficient, and takes the same time for inputs of any size.
    flat = array.reshape(-1)
    some = flat[:: max(1, flat.size // SAMPLE_SIZE)]
    if array.dtype.kind == "b":
        return False
    values = some.astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return False
    low, high = float(values.min()), float(values.max())
    if array.dtype.kind in "iu" and high - low < 2:
        return False  # integers that differ by at most 1 are usually a mask or the ids of padding tokens
    return float(values.std()) > NEARLY_CONSTANT * max(abs(low), abs(high))


def made_up(host: Host, label: str, inputs: Sequence[NodeInfo], deadline: float | None) -> dict[str, Any]:
    """Return values that the host generates for inputs with fixed sizes. Raise `OptionError` if it cannot generate
    them."""
    from qnnbridge_protocol.values import decode_all

    header = {"op": "model.samples", "inputs": [node.to_wire() for node in inputs]}
    frame = host.call(header, seconds_left(deadline))
    if frame.header.get("inputs") is None:
        raise OptionError(
            f"{label} cannot be verified with generated inputs.",
            cause=f"{frame.header.get('reason')}.",
            fix="Give inputs: session.verify(feeds).",
        )
    found = field(frame.header, "inputs", "tuple[tuple[str, Any], ...]")
    values = decode_all((item for _, item in found), frame.buffers)
    return {name: value for (name, _), value in zip(found, values, strict=True)}


# If ONNX Runtime's optimizer, not QNN, changed the results, the cause in the host's report begins with this text.
OPTIMIZER: Final = "ONNX Runtime's optimizer"


def numbers_differ(recipe: SessionRecipe, report: NumbersReport) -> NumbersDiffer:
    """Return the error for a report with the state "differs". `recipe` is the recipe of the compared session."""
    worst, label, command = report.worst, recipe.label, recipe.command("verify")
    fix = (
        f"Find the node with `{command}`."
        if command
        else "Save the model to a file and find the node with `qnnbridge verify`."
    )
    if "qnnbridge fix" in report.cause and recipe.spec.fix is not None and recipe.spec.fix.when == "never":
        fix += " Or create the session without fix=False: it then uses a rewritten copy of the model."
    if report.cause.startswith(OPTIMIZER):
        # QNN is not the cause: ONNX Runtime's optimizer changed the graph before QNN compiled it.
        fix = "Create the session again: the new session does not use this optimizer."
    return NumbersDiffer(
        f"{label} computes different results on QNN than on the CPU.",
        cause=f"Output {worst or report.reason}." + (f" {report.cause}" if report.cause else ""),
        fix=f"{fix} To disable this check, use verify=False.",
        evidence=[str(one) for one in report.outputs[1:4]],
        details={"numbers": report.to_wire()},
    )
