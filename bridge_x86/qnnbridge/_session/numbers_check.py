"""Compares a session's results with the CPU's, once, for the first call.

The host compares (`model.verify`), in a process of its own; this side hands over the inputs and outputs of the
call, keeps the report, and warns or raises. What was found before comes with the session's creation, and then no
call is looked at. Nothing that goes wrong here fails the call, except `NumbersDiffer` for ``verify="raise"``.
Thread-safe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._session import Verify
from qnnbridge._session.create import encoded, warn_application
from qnnbridge._supervision.host_process import deadline_after
from qnnbridge._transport.channel import CallContext, ChannelFailed, ChannelRetired, Deadline
from qnnbridge_os.native import Lock
from qnnbridge_os.shield import start_thread
from qnnbridge_protocol.errors import BridgeError, NumbersDiffer, OptionError, ProtocolDesync, UnknownOperation
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.model_records import NumbersReport

if TYPE_CHECKING:
    from qnnbridge._feeds import Counted
    from qnnbridge._session.remote_session import RemoteSession


_log = logging.getLogger("qnnbridge.numbers")

VERIFY_VARIABLE: Final = "QNNBRIDGE_VERIFY"
# For a comparison that nothing waits for. Past it the host ends the process that runs the CPU.
PATIENCE_S: Final = 300.0
# Time for the answer after the host has given up.
ANSWER_S: Final = 5.0
NOT_RUN: Final = "it has not run yet"
MADE_UP: Final = "made-up inputs"
# Inputs and outputs of a call together: they are copied.
MAX_BYTES: Final = 256 * 2**20

_WORDS: Final[Mapping[object, Verify]] = {
    **dict.fromkeys((False, "off", "0", "no", "false"), "off"),
    "warn": "warn",
    **dict.fromkeys((True, "raise", "1", "yes", "true"), "raise"),
}


class NumbersWarning(UserWarning):
    """A session's numbers on QNN differ from the CPU's."""


def verify_mode(given: object) -> Verify:
    """What `verify=` or the environment says. Raises `OptionError`."""
    word: object = os.environ.get(VERIFY_VARIABLE, "").strip().lower() or "warn" if given is None else given
    try:
        return _WORDS[word]
    except (LookupError, TypeError):
        where = f"{VERIFY_VARIABLE}={word!r}" if given is None else f"verify={given!r:.100}"
        raise OptionError(f"{where} is not known.", fix="Give 'warn', 'raise' or False ('off').") from None


class NumbersCheck:
    """The look at a session's numbers. waits: whether the next call is the one to be looked at.

    Args:
        remote: the session, which has been made.
        mode: "warn" compares in the background; "raise" before the result is returned.
    """

    def __init__(self, remote: RemoteSession, mode: Verify) -> None:
        self._remote = remote
        self._mode = mode
        self._lock = Lock()
        self.waits = False
        placement = remote.info.placement
        if mode == "off":
            self.report = NumbersReport("off", reason="verify='off'")
        elif remote.recipe.without_qnn or (placement.known and not placement.qnn_nodes):
            self.report = NumbersReport("off", reason="no node of it runs on QNN")
        elif remote.numbers is not None:
            self.report = remote.numbers
        else:
            self.report, self.waits = NumbersReport("pending", reason=NOT_RUN), True

    def known_before(self) -> None:
        """At the session's creation: what was found before. Raises `NumbersDiffer`."""
        if self._mode != "off" and self.report.state == "differs":
            self._tell(self.report)

    def first_call(
        self,
        names: Sequence[str],
        feeds: Sequence[tuple[str, Any, Any]],
        results: list[Any],
        *,
        ahead: bool = False,
        counted: Counted | None = None,
    ) -> None:
        """A call has succeeded, and `waits` was true. Raises `NumbersDiffer`.

        ahead: it was made for this with made-up inputs, and its caller waits. counted: see `RunArguments`.
        """
        with self._lock:
            if not self.waits:
                return
            self.waits = False
        background = self._mode == "warn" and not ahead
        try:
            header, buffers = self._message(names, feeds, results, counted)
        except BridgeError as error:
            self.report = NumbersReport("unknown", reason=f"its values cannot be compared: {error.message}")
            return
        if sum(memoryview(buffer).nbytes for buffer in buffers) > MAX_BYTES:
            reason = f"inputs and outputs have more than {MAX_BYTES >> 20} MiB; verify(feeds) compares them"
            self.report = NumbersReport("unknown", reason=reason)
        elif background:
            header |= {"patient": True, "budget_s": PATIENCE_S}
            # Copied: the application may change its arrays meanwhile.
            copies = tuple(bytes(buffer) for buffer in buffers)
            self.report = NumbersReport("pending", reason="it is being compared with the CPU")
            start_thread("qnnbridge verify", self._look_behind, header, copies)
        else:
            if ahead:
                header["of"] = MADE_UP
            self.report = self._ask(header, buffers, PATIENCE_S if ahead else self._remote.timeout_s)
            self._tell(self.report)

    def compare(
        self,
        names: Sequence[str],
        feeds: Sequence[tuple[str, Any, Any]],
        results: list[Any],
        timeout_s: float | None,
        inputs: str,
        counted: Counted | None = None,
    ) -> NumbersReport:
        """The comparison that the application asks for; a kept report does not count. Keeps its report, unless it
        shows nothing and there is one that does."""
        header, buffers = self._message(names, feeds, results, counted)
        header |= {"again": True, "of": inputs}
        report = self._ask(header, buffers, timeout_s)
        with self._lock:
            self.waits = False
            if report.state != "unknown" or not self.report.kept:
                self.report = report
        return report

    def samples(self, timeout_s: float | None) -> dict[str, Any]:
        """Made-up values for the inputs. Raises `OptionError` where none can be made up."""
        from qnnbridge_protocol.values import decode_all

        header = {"op": "model.samples", "inputs": [node.to_wire() for node in self._remote.info.inputs]}
        frame = self._remote.host.call(header, timeout_s)
        if frame.header.get("inputs") is None:
            raise OptionError(
                f"{self._remote.recipe.label} cannot be verified with made-up inputs.",
                cause=f"{frame.header.get('reason')}.",
                fix="Give inputs: session.verify(feeds).",
            )
        inputs = field(frame.header, "inputs", "tuple[tuple[str, Any], ...]")
        values = decode_all((item for _, item in inputs), frame.buffers)
        return {name: value for (name, _), value in zip(inputs, values, strict=True)}

    # --- asking the host ---

    def _message(
        self,
        names: Sequence[str],
        feeds: Sequence[tuple[str, Any, Any]],
        results: list[Any],
        counted: Counted | None,
    ) -> tuple[dict[str, Any], tuple[Any, ...]]:
        from qnnbridge_protocol.values import Encoder

        recipe, spec = self._remote.recipe, self._remote.recipe.spec
        if self._remote.fix is not None:  # the copy that the host decided for
            spec = dataclasses.replace(spec, fix=self._remote.fix)
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
        }
        if recipe.identity is not None:  # what the file holds now need not be what the session computes
            header |= {"fingerprint": recipe.fingerprint, "files": [list(file) for file in recipe.identity.files]}
        buffers += tuple(encoder.buffers)
        if recipe.spec.model_path is None:
            buffers += (recipe.data or b"",)
        return header, buffers

    def _ask(self, header: dict[str, Any], buffers: tuple[Any, ...], timeout_s: float | None) -> NumbersReport:
        """In the host in which the session lives, once: a death of it is the business of the calls."""
        live = self._remote.live
        if live is None:
            return NumbersReport("unknown", reason="the host in which it ran is gone")
        if timeout_s is not None:
            header["budget_s"] = timeout_s
        wait_s = header.get("budget_s")
        try:
            deadline = None if wait_s is None else deadline_after(float(wait_s) + ANSWER_S)
            frame = live.process.channel.call(header, buffers, deadline, CallContext("model.verify"))
            return NumbersReport.from_wire(frame.header["numbers"])
        except UnknownOperation:
            reason = "the host does not know how to compare; upgrade qnnbridge there"
        except (ProtocolDesync, LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"the host's answer is not understood ({error})"
        except BridgeError as error:
            reason = error.message.rstrip(".")
        except Deadline:
            reason = "the comparison took too long"
        except (ChannelFailed, ChannelRetired):
            reason = "the host ended before the comparison did"
        return NumbersReport("unknown", reason=reason, when=time.time())

    def _look_behind(self, header: dict[str, Any], buffers: tuple[Any, ...]) -> None:
        """In a thread of its own."""
        report = self._ask(header, buffers, None)
        # The application may have warnings raised; there is nothing here to raise them to.
        with contextlib.suppress(Warning):
            self._tell(report)
        self.report = report

    # --- reporting ---

    def _tell(self, report: NumbersReport) -> None:
        label = self._remote.recipe.label
        if report.state != "differs":
            _log.debug("%s: numbers: %s", label, report)
            return
        error = numbers_differ(label, report)
        if self._mode == "raise":
            raise error
        _log.warning("%s %s", error.message, error.cause)
        warn_application(f"{error.message} {error.cause} {error.fix}", NumbersWarning)


# A cause that begins so is no fault of QNN (`create/optimizers.py` of the host).
OPTIMIZER: Final = "ONNX Runtime's optimizer"


def numbers_differ(label: str, report: NumbersReport) -> NumbersDiffer:
    """The error for a report that says "differs"."""
    worst = report.worst
    # The cause names the command where a rewrite cures what is known; elsewhere nothing is known to cure it.
    cure = " Or make the session with fix=True, which cures that." if "qnnbridge fix" in report.cause else ""
    fix = f"Find the node with: qnnbridge verify {label}.{cure}"
    if report.cause.startswith(OPTIMIZER):
        # QNN is right: the session was made from a graph that ONNX Runtime had changed.
        fix = "Create the session again: it is made without that optimizer."
    return NumbersDiffer(
        f"{label} computes other numbers on QNN than on the CPU.",
        cause=f"Output {worst or report.reason}." + (f" {report.cause}" if report.cause else ""),
        fix=f"{fix} verify=False accepts the numbers.",
        evidence=[str(one) for one in report.outputs[1:4]],
        details={"numbers": report.to_wire()},
    )
