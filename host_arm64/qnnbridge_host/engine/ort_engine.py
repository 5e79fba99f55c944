"""The engine and its sessions, which use ONNX Runtime with onnxruntime-qnn 1.x or 2.x.

Invariants: ONNX Runtime's own fallbacks are disabled, so nothing moves to the CPU silently. A strict session is
created only if every node is on QNN; otherwise the error lists the nodes and the reason. A call behaves as with
ONNX Runtime in the application's process, with one intended exception: outputs of element types that numpy lacks
are returned instead of refused.

The engine is immutable; several threads may create sessions at once. Several threads may run a session at once;
`close` does not disturb a run in progress.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge_host.engine import placement, providers, qnn_options
from qnnbridge_host.engine.calls import BoundCall, StopHandle, make_binding, run_bound
from qnnbridge_host.engine.options import (
    LoadedAdapters,
    Tensors,
    build_run_options,
    build_session_options,
    make_tensors,
    without_side_effects,
)
from qnnbridge_host.engine.ort_errors import (
    NOT_COMPOSED,
    NOT_FINALIZED,
    NOT_SELECTED,
    UNEXPLAINED,
    Circumstances,
    is_cpu_fallback_refusal,
    translate,
)
from qnnbridge_host.engine.providers import ProviderChoice, QnnAdapter
from qnnbridge_host.engine.qnn_options import DISABLE_COMPILE, DISABLE_CPU_FALLBACK, PROVIDER
from qnnbridge_host.machine import Installed
from qnnbridge_host.model.external_lengths import EXTERNAL_DATA_FOLDER, file_with_lengths, with_lengths
from qnnbridge_host.model.known_wrong import arch_of, cure_text, fault_text, find_in_model
from qnnbridge_host.model.scan import lacking_weights, scan_model
from qnnbridge_host.model.static_shapes import empty_tensors
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import BridgeError, InvalidArgument, PlacementRefused
from qnnbridge_protocol.limits import fitting
from qnnbridge_protocol.specs import RunSpec, SessionInfo, SessionSpec
from qnnbridge_protocol.version_numbers import numbers_of

if TYPE_CHECKING:
    from qnnbridge_host.request.client import StopSignal


# Maximum number of omitted metadata entries that are listed.
_MOST_NAMES = 20

# First release whose session creation releases the GIL. In earlier releases the native part holds the GIL
# (onnxruntime issue 27063).
_CREATION_RELEASES_GIL_SINCE = (1, 31)


class OrtEngine:
    """Engine that uses ONNX Runtime, and QNN through an adapter."""

    def __init__(self, ort: Any, qnn: QnnAdapter, found: Installed) -> None:
        self._ort = ort
        self._qnn = qnn
        self._found = found
        # Whether ONNX Runtime can record the placement (since 1.24). The session entry for recording is set only if
        # this method exists.
        self._records = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")
        self.create_holds_gil = numbers_of(ort.__version__) < _CREATION_RELEASES_GIL_SINCE

    def versions(self) -> dict[str, str]:
        """Return the versions of all components on which a result depends."""
        import numpy as np

        versions = {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "onnxruntime": str(self._ort.__version__),
        }
        return {**versions, **(self._qnn.source.versions() if self._qnn.source is not None else {})}

    def describe(self) -> dict[str, Any]:
        """Return a description of what this host offers.

        The keys are ``providers``; QNN's ``devices``, its ``library_folder`` and its origin ``qnn_source``;
        ``qnn_generation``: how the installed package provides QNN; ``simulator``: whether QNN computes on the
        simulator (``None`` without QNN); ``qnn_problem``: the error that sessions with QNN raise, as a map;
        ``build`` and ``ort_folder`` of ONNX Runtime.
        """
        problem = None
        try:
            self._qnn.require()
        except BridgeError as error:
            problem = error.to_wire()
        return {
            "providers": list(self._ort.get_available_providers()),
            "devices": self._qnn.devices(),
            "qnn_problem": problem,
            "qnn_generation": self._found.generation,
            "qnn_source": None if self._qnn.source is None else self._qnn.source.to_wire(),
            "library_folder": self._qnn.library_folder,
            "simulator": None if problem else self._qnn.simulator,
            "build": str(self._ort.get_build_info()),
            "ort_folder": os.path.dirname(str(self._ort.__file__)),
        }

    def qnn_library(self) -> str | None:
        """Return the file of the QNN execution provider; ``None`` if QNN is built into ONNX Runtime or not
        available."""
        return getattr(self._qnn, "library", None)

    def set_seed(self, seed: int) -> None:
        """Set the seed of random operators for sessions that are created afterwards."""
        self._ort.set_seed(seed)

    def create_session(
        self,
        spec: SessionSpec,
        model: bytes | bytearray | memoryview | Any | None,
        initializers: Mapping[str, Any],
        on_phase: Callable[[str], None],
        stop: StopSignal | None = None,
    ) -> OrtSession:
        """Create a session. If this is not possible, raise an error that explains the reason.

        Args:
            spec: the session's description.
            model: the model (any object with the buffer interface), or ``None`` to load ``spec.model_path``.
            initializers: the values that `spec` announces, by name.
            on_phase: called before each native step with ``creating`` or ``compiling``.
            stop: cancels loading between two of ONNX Runtime's steps.
        """
        for name in spec.value_names:
            if name not in initializers:
                raise InvalidArgument(f"The initializer {name!r} was announced but not sent.")
        source = _source(spec, model)
        if spec.initializers:
            from qnnbridge_host.engine.initializers import with_given_values

            spec, source = with_given_values(spec, source, initializers)
        choice = providers.choose(spec, self._ort.get_available_providers(), self._qnn, records=self._records)
        circumstances = Circumstances(
            model=spec.in_commands(spec.model_path if model is None else None),
            soc_model=choice.target.soc_model if choice.target else None,
            simulator=bool(choice.target and choice.target.simulator),
            custom_op_libraries=tuple(spec.custom_op_libraries),
        )
        if choice.qnn is not None:
            source, choice = _with_lengths(source, choice)
        on_phase("creating")
        started = time.perf_counter()
        try:
            tensors = make_tensors(self._ort, spec, initializers)
            session = self._make(spec, source, choice, choice.entries, tensors, on_phase, stop)
            info = self._info(session, choice, time.perf_counter() - started)
        except Exception as error:
            lacking = _lacking(spec) if circumstances.model.path is not None else ()
            if choice.strict and is_cpu_fallback_refusal(error) and not lacking:
                raise self._refused(spec, source, choice, tensors, on_phase) from error
            if NOT_COMPOSED in str(error):
                inputs, results = empty_tensors(source, spec.free_dimensions_by_name)
                circumstances = circumstances._replace(empty_inputs=tuple(inputs), empty_results=tuple(results))
            if any(text in str(error) for text in (NOT_COMPOSED, NOT_FINALIZED, NOT_SELECTED)):
                circumstances = self._with_known_fault(circumstances, spec, source)
            raise translate(error, circumstances._replace(lacking=lacking)) from error
        return OrtSession(self._ort, session, info, circumstances, self._qnn.version, tensors)

    def _with_known_fault(
        self, circumstances: Circumstances, spec: SessionSpec, source: str | bytes
    ) -> Circumstances:
        """Add the fault and the fix of the model's operators that are known to make QNN's session creation fail."""
        # Use only the shipped table, not results measured on this computer: QNN has already failed here.
        architectures = [one.options["htp_arch"] for one in spec.providers if "htp_arch" in one.options]
        arch = arch_of(circumstances.soc_model, *architectures[:1], simulator=circumstances.simulator)
        release = ".".join(map(str, self._qnn.version))
        all_known = find_in_model(source, arch=arch, release=release, sizes=spec.free_dimensions_by_name)
        found = [one for one in all_known if one.fault.fails]
        if not found:
            return circumstances
        cure = cure_text(found, circumstances.model)
        return circumstances._replace(known_fault=fault_text(found), known_cure=f"{cure[:1].upper()}{cure[1:]}.")

    def _make(
        self,
        spec: SessionSpec,
        source: str | bytes,
        choice: ProviderChoice,
        entries: Mapping[str, str],
        tensors: Tensors,
        on_phase: Callable[[str], None],
        stop: StopSignal | None = None,
    ) -> Any:
        options, named = self._options(spec, choice, entries, tensors)
        if choice.qnn is not None and entries.get(DISABLE_COMPILE) != "1":
            on_phase("compiling")
        # ONNX Runtime's Python code falls back in two places: when the constructor fails, and in `run` after an
        # EPFail. Each prints on stdout and rebuilds the session on the CPU.
        keywords: dict[str, Any] = {"enable_fallback": 0}
        if spec.disabled_optimizers:
            keywords["disabled_optimizers"] = list(spec.disabled_optimizers)
        with contextlib.nullcontext() if stop is None else stop.calling(lambda: _cancel_loading(options)):
            session = self._ort.InferenceSession(source, options, providers=named or None, **keywords)
        session.disable_fallback()
        if getattr(session, "_model_bytes", None) is not None:
            # ONNX Runtime keeps the bytes only for its fallback, which is disabled. A model can take gigabytes.
            session._model_bytes = None
        return session

    def _options(
        self, spec: SessionSpec, choice: ProviderChoice, entries: Mapping[str, str], tensors: Tensors
    ) -> tuple[Any, list[tuple[str, dict[str, str]]]]:
        """Return SessionOptions, and the argument ``providers`` of InferenceSession, which a built-in QNN needs."""
        options = build_session_options(self._ort, spec, entries, tensors)
        named: list[tuple[str, dict[str, str]]] = []
        if choice.qnn is None:
            named.extend(choice.others)
        else:
            assert choice.target is not None
            named.extend(self._qnn.attach(options, dict(choice.qnn), choice.target.backend))
            if named:
                named.extend(choice.others)
            else:
                for name, given in choice.others:
                    options.add_provider(name, given)
        return options, named

    def session_options(self, spec: SessionSpec, initializers: Mapping[str, Any]) -> tuple[Any, Tensors]:
        """Return complete ``SessionOptions`` for other functions of ONNX Runtime, such as its compiler.

        The initializers must outlive the options. The placement is neither recorded nor restricted unless the
        application requests it.
        """
        tensors = make_tensors(self._ort, spec, initializers)
        if not spec.providers:
            return build_session_options(self._ort, spec, spec.config_entries, tensors), tensors
        choice = providers.choose(spec, self._ort.get_available_providers(), self._qnn, records=False)
        options, named = self._options(spec, choice, choice.entries, tensors)
        for name, given in named:
            options.add_provider(name, given)
        return options, tensors

    def _refused(
        self,
        spec: SessionSpec,
        source: str | bytes,
        choice: ProviderChoice,
        tensors: Tensors,
        on_phase: Callable[[str], None],
    ) -> PlacementRefused:
        """Return the error for a refused strict session, with the placement of its nodes.

        ONNX Runtime reports only that some node is not on QNN. To get the placement, the session is created again
        with the CPU allowed and everything logged, and then discarded. On the simulator QNN writes its graphs to
        files instead of compiling them a second time.
        """
        name = os.path.basename(spec.model_path) if spec.model_path else "the model"
        second, entries = without_side_effects(spec, choice.entries)
        entries[DISABLE_CPU_FALLBACK] = "0"
        assert choice.qnn is not None
        # Keep quantization at the graph's edges on QNN, as a strict session does, although the CPU is allowed here.
        qnn = {"offload_graph_io_quantization": "0", **choice.qnn}

        def made_with(options: dict[str, str]) -> PlacementRefused:
            allowed = ProviderChoice(options, choice.others, entries, choice.target, strict=False)
            session = self._make(second, source, allowed, entries, tensors, on_phase)
            return placement.refusal(
                name,
                placement.read(session, choice.target),
                placement.infos(session.get_inputs()),
                compiled=placement.is_compiled(session),
                operators=placement.session_operators(session),
            )

        # Do not let QNN's IR library write the graphs of a compiled model: it cannot read context binaries, and its
        # error would appear in the log of this session.
        simulator = choice.target is not None and choice.target.simulator
        if simulator and not scan_model(source, count_nodes=False).is_compiled:
            with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as folder:
                library = qnn_options.backend_library("ir", self._qnn.library_folder)
                written = qnn_options.placement_only(qnn, folder, library)
                found = made_with({**qnn, **written}) if written else None
                if found is not None and found.details.get("cpu_nodes"):
                    return found
        try:
            return made_with(qnn)
        except Exception as error:  # noqa: BLE001 - the caller raises the refusal instead
            return placement.refusal(name, None, (), translate(error))

    def _info(self, session: Any, choice: ProviderChoice, seconds: float) -> SessionInfo:
        options = {str(name): dict(given) for name, given in session.get_provider_options().items()}
        if choice.qnn is not None:
            options[PROVIDER] = {**choice.qnn, **options.get(PROVIDER, {})}
        source = self._qnn.source
        placed = placement.read(session, choice.target, "" if source is None else source.words)
        if choice.missing is not None:
            # Record why the session runs without QNN, although the application requested QNN.
            placed = dataclasses.replace(placed, backend="none", cause=choice.missing)
        return SessionInfo(
            inputs=placement.infos(session.get_inputs()),
            outputs=placement.infos(session.get_outputs()),
            overridable_initializers=placement.infos(session.get_overridable_initializers()),
            modelmeta=_metadata(session.get_modelmeta()),
            providers=tuple(session.get_providers()),
            provider_options=options,
            placement=placed,
            profiling_start_time_ns=int(session.get_profiling_start_time_ns()),
            create_seconds=seconds,
        )


def _metadata(meta: Any) -> dict[str, Any]:
    """Return the model's metadata for the wire. ``left_out`` lists the entries that are too long to send."""
    names = ("producer_name", "graph_name", "domain", "description", "graph_description")
    own, custom = {name: str(getattr(meta, name)) for name in names}, dict(meta.custom_metadata_map)
    short = fitting(own)
    kept = fitting(custom)
    left_out = [name for name in (*own, *custom) if name not in short and name not in kept]
    described = {**dict.fromkeys(names, ""), **short, "version": int(meta.version), "custom_metadata_map": kept}
    return {**described, "left_out": left_out[:_MOST_NAMES]} if left_out else described


def _cancel_loading(options: Any) -> None:
    """Cancel the creation of a session with these options, which runs in another thread."""
    cancel = getattr(options, "set_load_cancellation_flag", None)
    if cancel is not None:  # otherwise `Sessions.create` closes the session after its creation
        cancel(True)


def _lacking(spec: SessionSpec) -> tuple[str, ...]:
    # Do not report files as missing if the application passes the weights in memory.
    if spec.model_path is None or spec.files_in_memory or spec.external_initializers:
        return ()
    return tuple(lacking_weights(spec.model_path))


def _source(spec: SessionSpec, model: Any) -> str | bytes:
    if model is not None:
        # ONNX Runtime's Python API accepts a model in memory only as bytes.
        return bytes(memoryview(model))
    if spec.model_path is None:
        raise InvalidArgument("Neither a model path nor a model was given.")
    return spec.model_path


def _with_lengths(source: str | bytes, choice: ProviderChoice) -> tuple[str | bytes, ProviderChoice]:
    """Return the model with the lengths of external weights that QNN needs, and the choice with their folder."""
    if isinstance(source, bytes):
        return with_lengths(source) or source, choice
    completed = file_with_lengths(source)
    if completed is None:
        return source, choice
    entries = dict(choice.entries)
    entries.setdefault(EXTERNAL_DATA_FOLDER, os.path.dirname(os.path.abspath(source)))
    return completed, choice._replace(entries=entries)


# --- one session: its runs, with conversion of values and errors -----------------------------------------


class OrtSession:
    """A session of ONNX Runtime whose values and errors are converted.

    kept: objects that must live as long as the session (initializers whose memory the session uses).
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
        # Hold session and kept objects in one tuple: a run keeps a reference to the tuple, so that both survive a
        # `close` during the run.
        self._native: tuple[Any, object] | None = (session, kept)
        self._circumstances = circumstances
        self._qnn_version = qnn_version
        self._adapters = LoadedAdapters(ort)
        self._output_names = [node.name for node in info.outputs]
        # The fast path owns the calls. `close` uses this set to release the native state of the calls.
        self._bound: weakref.WeakSet[BoundCall] = weakref.WeakSet()
        # Names of outputs that numpy cannot represent; computed by the first run.
        self._unreadable: frozenset[str] | None = None

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run: RunSpec | None = None,
        stop: StopHandle | None = None,
    ) -> list[Any]:
        """Return the requested outputs in their order; all outputs if `output_names` is empty or ``None``."""
        native = self._alive()
        try:
            options = None
            if run is not None:
                options = build_run_options(self._ort, run, self._adapters, self._qnn_version)
            elif stop is not None:
                options = self._ort.RunOptions()
            if stop is None:
                return self._run(native[0], output_names, feeds, options)
            # Attach before the run, so that a stop at any time has an effect.
            stop.attach(options)
            try:
                return self._run(native[0], output_names, feeds, options)
            finally:
                stop.detach()
        except Exception as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> BridgeError:
        native, given = self._native, self._circumstances
        if native is not None and UNEXPLAINED in str(error):
            given = given._replace(on_qnn=placement.operators_on_qnn(native[0]))
        return translate(error, given)

    def _run(
        self, session: Any, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any
    ) -> list[Any]:
        # import this module in the first run, so that creating a session is faster
        from qnnbridge_host.engine import ort_values

        if self._unreadable is None:
            self._unreadable = frozenset(
                node.name for node in self.info.outputs if ort_values.typed_element(node.type)
            )
        names = list(output_names) if output_names else self._output_names
        if self._unreadable and not self._unreadable.isdisjoint(names):
            # Run with OrtValues: `InferenceSession.run` fails if numpy cannot represent one of the outputs.
            given = ort_values.feeds_as_ort_values(self._ort, feeds)
            return [
                ort_values.result_of_ort_value(value)
                for value in session.run_with_ort_values(names, given, options)
            ]
        taken = {name: ort_values.feed(self._ort, value) for name, value in feeds.items()}
        return [ort_values.result(value) for value in session.run(names, taken, options)]

    def run_bound(self, call: BoundCall, stop: StopHandle) -> list[Any] | None:
        """See `EngineSession.run_bound`."""
        if call.owner is not self:
            self._alive()
        try:
            # A plan survives when its session is replaced after an NPU reset; the new session then creates its own
            # binding.
            if call.owner is not self:
                call.native, call.owner = make_binding(self._alive()[0], call), self
                self._bound.add(call)
            native = call.native
            if native is not None:
                try:
                    # Shortcut for a repeated call, which does the same as `calls.run_bound` without the cost of a
                    # function call.
                    if native.checked and native.stop is stop and stop.run_options is native.options:
                        native.run(native.options)
                        return None
                    if run_bound(call, native, self._ort.RunOptions, stop):
                        return None
                except Exception as error:
                    translated = self._translated(error)
                    # Do not run a second time if the caller stopped the run, if the run may have overwritten its
                    # inputs, or if the session must be recreated after an NPU reset.
                    if stop.stopped or native.in_place or translated.details.get("npu_reset"):
                        raise
            values = self._run_plainly(self._alive()[0], call, stop)
        except Exception as error:
            raise self._translated(error) from error
        if call.native is not None:
            # IOBinding failed or wrote the outputs elsewhere, but the plain run worked. Do not use IOBinding for
            # this call again, because it would fail each time.
            call.bindable, call.native = False, None
        return call.take(values)

    def _run_plainly(self, session: Any, call: BoundCall, stop: StopHandle) -> list[Any]:
        options = self._ort.RunOptions()
        stop.attach(options)
        return self._run(session, call.output_names, call.feeds, options)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Set dynamic options of the execution provider; raise `OptionError` if QNN cannot use them."""
        native = self._alive()
        checked = qnn_options.dynamic_options(options, self._qnn_version)
        set_options = getattr(native[0], "set_ep_dynamic_options", None)
        if set_options is None:
            raise errors.NotImplemented(
                f"onnxruntime {self._ort.__version__} does not support set_ep_dynamic_options.",
                fix="Install onnxruntime 1.24 or newer in the host's Python.",
            )
        try:
            set_options(checked)
        except Exception as error:
            raise self._translated(error) from error

    def assignment(self) -> list[list[Any]]:
        """Return ``[provider, [[name, domain, op type], ...]]`` for each group of nodes of one provider."""
        native = self._alive()
        ask = getattr(native[0], "get_provider_graph_assignment_info", None)
        if ask is None:
            raise errors.NotImplemented(
                f"onnxruntime {self._ort.__version__} does not record the provider of each node.",
                fix="Install onnxruntime 1.24 or newer in the host's Python.",
            )
        try:
            return [
                [group.ep_name, [[node.name, node.domain, node.op_type] for node in group.get_nodes()]]
                for group in ask()
            ]
        except Exception as error:
            raise self._translated(error) from error

    def end_profiling(self) -> str:
        """Stop profiling and return the path of the profile, as ONNX Runtime reports it."""
        native = self._alive()
        try:
            return str(native[0].end_profiling())
        except Exception as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Release the session. Its memory is freed when the last run ends, because each run holds a reference."""
        self._native = None
        for call in list(self._bound):
            call.release()

    def _alive(self) -> tuple[Any, object]:
        native = self._native
        if native is None:
            raise errors.Closed("This session is closed.", fix="Create a new session.")
        return native
