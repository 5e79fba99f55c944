"""One session of ONNX Runtime: runs it, and translates values and errors on the way.

A call behaves as in one process, with two intended exceptions: nothing falls back to the CPU, and
outputs of element types that numpy lacks are returned instead of refused. ONNX Runtime's sessions may be run by
several threads at once, and so may these; `close` does not disturb a run that is under way.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from qnnbridge_host.engine import qnn_checks
from qnnbridge_host.engine.calls import BoundCall, StopHandle, make_binding, run_bound
from qnnbridge_host.engine.options import LoadedAdapters, build_run_options
from qnnbridge_host.engine.ort_errors import Circumstances, translate
from qnnbridge_protocol import errors
from qnnbridge_protocol.specs import RunSpec, SessionInfo


class OrtSession:
    """The engine's session.

    kept: what must live as long as the session (initializers that it borrows).
    """

    def __init__(
        self,
        ort: Any,
        session: Any,
        info: SessionInfo,
        circumstances: Circumstances,
        qnn_version: tuple[int, ...],
        kept: object,
    ) -> None:
        self.info = info
        self._ort = ort
        # One object, so that a run keeps both alive although the session is closed meanwhile.
        self._native: tuple[Any, object] | None = (session, kept)
        self._circumstances = circumstances
        self._qnn_version = qnn_version
        self._adapters = LoadedAdapters(ort)
        self._output_names = [node.name for node in info.outputs]
        # Plans own their calls; this set only lets `close` find them.
        self._bound: weakref.WeakSet[BoundCall] = weakref.WeakSet()
        # Names of outputs that ONNX Runtime has no array for; looked for by the first run.
        self._unreadable: frozenset[str] | None = None

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run: RunSpec | None = None,
        stop: StopHandle | None = None,
    ) -> list[Any]:
        """The outputs named (all of them if none is), in that order."""
        native = self._alive()
        try:
            options = None
            if run is not None:
                options = build_run_options(self._ort, run, self._adapters, self._qnn_version)
            elif stop is not None:
                options = self._ort.RunOptions()
            if stop is None:
                return self._run(native[0], output_names, feeds, options)
            # Before the run, so that a stop at any moment reaches it.
            stop.attach(options)
            try:
                return self._run(native[0], output_names, feeds, options)
            finally:
                stop.detach()
        except Exception as error:
            raise translate(error, self._circumstances) from error

    def _run(
        self, session: Any, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any
    ) -> list[Any]:
        from qnnbridge_host.engine import ort_values  # not needed for a session

        if self._unreadable is None:
            self._unreadable = frozenset(
                node.name for node in self.info.outputs if ort_values.typed_element(node.type)
            )
        names = list(output_names) if output_names else self._output_names
        if self._unreadable and not self._unreadable.isdisjoint(names):
            given = ort_values.feeds_as_ort_values(self._ort, feeds)
            return [
                ort_values.result_of_ort_value(value)
                for value in session.run_with_ort_values(names, given, options)
            ]
        taken = {name: ort_values.feed(self._ort, value) for name, value in feeds.items()}
        return [ort_values.result(value) for value in session.run(names, taken, options)]

    def run_bound(self, call: BoundCall, stop: StopHandle) -> list[Any] | None:
        """Run with inputs and outputs in the call's memory. ``None`` if all outputs are there, else
        the outputs, which do not fit there."""
        if call.owner is not self:
            self._alive()
        try:
            # A plan outlives a session that an NPU reset has replaced: the new one makes its own binding.
            if call.owner is not self:
                call.native, call.owner = make_binding(self._alive()[0], call), self
                self._bound.add(call)
            native = call.native
            if native is not None:
                try:
                    # What `run_bound` comes to in a call that is repeated, without a step of its own.
                    if native.checked and native.stop is stop and stop.run_options is native.options:
                        native.run(native.options)
                        return None
                    if run_bound(call, native, self._ort.RunOptions, stop):
                        return None
                except Exception as error:
                    translated = translate(error, self._circumstances)
                    # These three must not be run a second time: the caller wants no result, the inputs are
                    # changed, or the session is to be made again.
                    if stop.stopped or native.in_place or translated.details.get("npu_reset"):
                        raise
            values = self._run_plainly(self._alive()[0], call, stop)
        except Exception as error:
            raise translate(error, self._circumstances) from error
        if call.native is not None:
            # It fails, or leaves outputs elsewhere, where a plain run does not.
            # Not tried again: IOBinding would fail, or miss the memory, each time.
            call.bindable, call.native = False, None
        return call.take(values)

    def _run_plainly(self, session: Any, call: BoundCall, stop: StopHandle) -> list[Any]:
        options = self._ort.RunOptions()
        stop.attach(options)
        return self._run(session, call.output_names, call.feeds, options)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change the provider's behaviour while the session lives."""
        native = self._alive()
        checked = qnn_checks.dynamic_options(options, self._qnn_version)
        set_options = getattr(native[0], "set_ep_dynamic_options", None)
        if set_options is None:
            raise errors.NotImplemented(
                f"onnxruntime {self._ort.__version__} has no set_ep_dynamic_options.",
                fix="Install onnxruntime 1.24 or newer in the host's Python.",
            )
        try:
            set_options(checked)
        except Exception as error:
            raise translate(error, self._circumstances) from error

    def assignment(self) -> list[list[Any]]:
        """``[provider, [[name, domain, op type], ...]]`` for each group of nodes that one provider took."""
        native = self._alive()
        ask = getattr(native[0], "get_provider_graph_assignment_info", None)
        if ask is None:
            raise errors.NotImplemented(
                f"onnxruntime {self._ort.__version__} does not record which provider has which node.",
                fix="Install onnxruntime 1.24 or newer in the host's Python.",
            )
        try:
            return [
                [group.ep_name, [[node.name, node.domain, node.op_type] for node in group.get_nodes()]]
                for group in ask()
            ]
        except Exception as error:
            raise translate(error, self._circumstances) from error

    def end_profiling(self) -> str:
        """Stop profiling; the path of the file, as ONNX Runtime reports it."""
        native = self._alive()
        try:
            return str(native[0].end_profiling())
        except Exception as error:
            raise translate(error, self._circumstances) from error

    def close(self) -> None:
        """Release the session. Its memory is freed when the last run in it ends."""
        # A run under way has its own reference, so the native session is freed after it.
        self._native = None
        for call in list(self._bound):
            call.release()

    def _alive(self) -> tuple[Any, object]:
        native = self._native
        if native is None:
            raise errors.Closed("This session is closed.", fix="Create a new one.")
        return native
