"""Assertions for the tests of an application: nodes run on the NPU, and the results agree with the CPU's.

>>> from qnnbridge.testing import assert_numbers, assert_on_npu >>> assert_on_npu(session) >>>
assert_numbers(session, feeds)

`watch_sessions` checks every session that is created in a block, also by libraries. With pytest the fixtures
``npu_placement`` and ``npu_numbers`` check every session of a test. This module does not need pytest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnbridge._inference_session import InferenceSession
    from qnnbridge._runner import Runner
    from qnnbridge._session.remote_runner import RemoteRunner
    from qnnbridge_protocol.model_records import NumbersReport

__all__ = ["SessionWatch", "assert_numbers", "assert_on_npu", "watch_sessions"]


def assert_on_npu(session: InferenceSession, *, allow: Collection[str] = ()) -> None:
    """Fail if a node of the session does not run on QNN.

    Args:
        session: the session.
        allow: nodes and operators, by name, that may run on the CPU.

    Raises:
        AssertionError: a node runs elsewhere.
    """
    __tracebackhide__ = True
    problem = _placement_problem(session._runner, allow)
    if problem:
        raise AssertionError(problem)


def assert_numbers(
    session: InferenceSession,
    feeds: Mapping[str, Any] | None = None,
    *,
    min_snr_db: float | None = None,
    timeout: float | None = None,
) -> NumbersReport:
    """Run the model in the session and on the CPU. Fail if the outputs differ, or if the inputs cannot show a
    difference.

    Args:
        session: the session.
        feeds: inputs as for `run`; default: generated values, which may be untypical for the model.
        min_snr_db: also fail if the signal-to-noise ratio is lower than this. Default: the limits of sessions
            (docs/numbers.md).
        timeout: time limit in seconds; default: the session's.

    Raises:
        AssertionError: the outputs differ, or their agreement could not be shown.

    Errors of `session.verify` are also raised.
    """
    __tracebackhide__ = True
    report = session.verify(feeds, timeout=timeout)
    # The value is None for outputs without a signal-to-noise ratio, such as integers. For these, `state` is
    # sufficient.
    too_low = min_snr_db is not None and report.snr_db is not None and report.snr_db < min_snr_db
    if report.state != "agrees":
        raise AssertionError(_numbers_problem(session._runner, report))
    if too_low:
        label = session._runner.recipe.label
        raise AssertionError(f"{label}: {report.worst}; required: at least {min_snr_db:g} dB.")
    return report


class SessionWatch:
    """Sessions created since the start of the watch.

    Attributes:
        sessions: sessions that use QNN, in the order of their creation. A session with buckets counts once for each
            of its variants.
        allow: nodes and operators, by name, that may run on the CPU. A test may add more.
    """

    def __init__(self, *, placement: bool = True, numbers: bool = True, allow: Collection[str] = ()) -> None:
        self.sessions: list[InferenceSession | RemoteRunner] = []
        self.allow = set(allow)
        self._runners: list[RemoteRunner] = []
        self._placement, self._numbers = placement, numbers

    def add(self, session: InferenceSession | RemoteRunner, runner: RemoteRunner) -> None:
        """Add a new session. If `numbers` is set, compare its first calls with the CPU before they return."""
        if runner.recipe.without_qnn:
            return
        self.sessions.append(session)
        self._runners.append(runner)
        if self._numbers and runner.placement.qnn_nodes:
            runner.compare_first_calls()

    def check(self) -> None:
        """Raise `AssertionError` if a node does not run on the NPU, results differ, or no session was created."""
        __tracebackhide__ = True
        # Without a session nothing was checked, so the test must not pass.
        if not self.sessions:
            raise AssertionError(
                "No session that uses QNN was created. Fix: Create one with qnnbridge.InferenceSession(path), or "
                "start the program with `qnnbridge exec --provider qnn`. Sessions created earlier do not count."
            )
        problems = []
        if self._placement:
            problems += [_placement_problem(one, self.allow) for one in self._runners]
        if self._numbers:
            reports = [(one, one.verified) for one in self._runners if one.placement.qnn_nodes]
            problems += [_numbers_problem(one, found) for one, found in reports if found.state == "differs"]
            if reports and not any(found.compared or found.state == "differs" for _, found in reports):
                runner, found = reports[0]
                problems.append(
                    f"{runner.recipe.label}: no call was compared with the CPU ({found.reason}). "
                    "Fix: Run the session with inputs that vary."
                )
        if any(problems):
            raise AssertionError("\n".join(filter(None, problems)))


@contextlib.contextmanager
def watch_sessions(
    *, placement: bool = True, numbers: bool = True, allow: Collection[str] = ()
) -> Iterator[SessionWatch]:
    """Check all sessions that this process creates in the block, when the block ends without an error.

    Args:
        placement: fail if a node does not run on the NPU.
        numbers: fail if results differ from the CPU's. The first calls of each session are compared before they
            return, regardless of earlier sessions; a difference raises `NumbersDiffer` in the call.
        allow: nodes and operators, by name, that may run on the CPU.
    """
    __tracebackhide__ = True
    from qnnbridge._session.remote_runner import watchers

    watch = SessionWatch(placement=placement, numbers=numbers, allow=allow)
    watchers.append(watch.add)
    try:
        yield watch
    finally:
        watchers.remove(watch.add)
    # Do not check in `finally`, because an error of the block itself is more important.
    watch.check()


def qnn_missing() -> str:
    """Return why the default host has no QNN, or '' if it has QNN. Start the host if needed."""
    from qnnbridge import BridgeError, default_host

    try:
        info = default_host().info
    except BridgeError as error:
        return error.message
    return "the host has no onnxruntime-qnn" if info.simulator is None else ""


def _placement_problem(runner: Runner, allow: Collection[str]) -> str:
    placement, recipe = runner.placement, runner.recipe
    if not placement.known:
        return f"{recipe.label}: this onnxruntime does not report where nodes run (1.24 and later do)."
    away = placement.cpu_nodes + placement.other_nodes
    # The list ends after 200 nodes; further nodes cannot be allowed by name.
    allowed = sum(name in allow or operator in allow for name, operator in placement.cpu_list)
    if away <= allowed and placement.qnn_nodes:
        return ""
    nodes = away + placement.qnn_nodes
    text = f"{recipe.label}: {away} of {nodes} nodes do not run on the NPU: {placement.cpu_names_text()}."
    text += f" Cause: {placement.cause.rstrip('.')}." if placement.cause else ""
    command = recipe.command("analyze")
    return text + (f" Fix: `{command}` shows the reason for each node." if command else "")


def _numbers_problem(runner: Runner, report: NumbersReport) -> str:
    from qnnbridge._session.numbers_check import numbers_differ

    recipe = runner.recipe
    if report.state == "differs":
        return numbers_differ(recipe, report).shown()
    why = report.reason or report.worst
    return f"{recipe.label}: it is not certain that the results agree with the CPU's ({report.verdict}): {why}."
