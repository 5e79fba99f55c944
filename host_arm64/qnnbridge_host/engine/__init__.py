"""Interface of the engine, the part of the host that uses ONNX Runtime.

This module defines the protocols `Engine` and `EngineSession`, and the function `load_engine`. The module
`sessions` stores the open sessions and recreates a session after a reset of the NPU. Importing this package imports
neither ONNX Runtime nor numpy. The engine raises only classes of `qnnbridge_protocol.errors`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge_host.engine.calls import StopHandle
from qnnbridge_host.machine import Installed, installed_here
from qnnbridge_protocol.errors import OptionError, ProviderUnavailable
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.settings import engine_of
from qnnbridge_protocol.specs import GLOBAL_THREADS_VARIABLE, RunSpec, SessionInfo, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.engine.calls import BoundCall
    from qnnbridge_host.engine.providers import QnnAdapter
    from qnnbridge_host.request.client import StopSignal

__all__ = ["Engine", "EngineSession", "StopHandle", "load_engine"]


# Oldest Python for which onnxruntime-qnn has wheels. On older versions the extra ``qnnbridge[host]`` omits ONNX
# Runtime.
OLDEST_PYTHON = (3, 11)

_global_pools = False

# Environment variable. Value 1 makes QNN log everything; lines with <E> then contain the name of the failing
# operator.
VERBOSE = "QNNBRIDGE_VERBOSE"


class EngineSession(Protocol):
    """A session of the engine. Several threads may call `run` at once."""

    info: SessionInfo

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run: RunSpec | None = None,
        stop: StopHandle | None = None,
    ) -> list[Any]:
        """Return the values of the requested outputs, or of all outputs.

        The caller must first report the phase ``running``, so that a crash is attributed to this run.
        """

    def run_bound(self, call: BoundCall, stop: StopHandle) -> list[Any] | None:
        """Run with inputs and outputs in the caller's memory.

        Returns:
            ``None`` if all outputs were written to the caller's memory; the outputs if they do not fit into it.
        """

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None: ...

    def assignment(self) -> list[Any]:
        """Return ``[provider, [[name, domain, op type], ...]]`` for each group of nodes that runs on the same
        provider."""

    def end_profiling(self) -> str: ...

    def close(self) -> None: ...


class Engine(Protocol):
    """Creates sessions. Thread-safe."""

    create_holds_gil: bool

    def versions(self) -> dict[str, str]: ...

    def describe(self) -> dict[str, Any]: ...

    def set_seed(self, seed: int) -> None:
        """Set the seed of random operators for sessions that are created afterwards."""

    def create_session(
        self,
        spec: SessionSpec,
        model: Any | None,
        initializers: Mapping[str, Any],
        on_phase: Callable[[str], None],
        stop: StopSignal | None = None,
    ) -> EngineSession:
        """Create a session.

        Args:
            spec: the session's description.
            model: the model's bytes; ``None`` to load ``spec.model_path``.
            initializers: the values that `spec` announces, by name.
            on_phase: called before each native step, on the calling thread, and never after this call returns.
            stop: cancels loading; ONNX Runtime checks it between its steps.
        """


def has_global_pools() -> bool:
    """Return whether ONNX Runtime has global thread pools. If it has, every session of this process must use
    them."""
    return _global_pools


def _make_global_pools(ort: Any) -> None:
    """Create global thread pools of the sizes that the application has set.

    Call this before any other function of ONNX Runtime: the first call creates ONNX Runtime's environment, and only
    a new environment can get global pools.
    """
    global _global_pools
    text = os.environ.get(GLOBAL_THREADS_VARIABLE)
    if not text or _global_pools:
        return
    try:
        within, across = map(int, text.split(","))
        ort.set_global_thread_pool_sizes(within, across)
    except (ValueError, TypeError):  # ONNX Runtime raises TypeError for a number that needs more than 32 bits
        raise OptionError(
            f"{GLOBAL_THREADS_VARIABLE}={text!r} is not a pair of thread counts.",
            fix="Set the variable to two thread counts, within a node and across nodes, such as 4,1.",
        ) from None
    except AttributeError:
        raise OptionError(
            f"{GLOBAL_THREADS_VARIABLE} is set, but this ONNX Runtime has no global thread pools for Python.",
            fix="Upgrade onnxruntime on the host, or remove the call of set_global_thread_pool_sizes.",
        ) from None
    _global_pools = True


def load_engine(on_phase: Callable[..., None] = lambda *_: None) -> Engine:
    """Import ONNX Runtime and initialise QNN, from onnxruntime-qnn 1.x (built in) or 2.x (a plugin).

    Without a usable QNN the engine still offers the CPU. A session that requests QNN then fails with an error that
    describes the missing component.

    Args:
        on_phase: called before each native step with its name, and with the versions of QNN once they are known.

    Raises:
        ProviderUnavailable: onnxruntime cannot be imported.
        OptionError: the sizes of the global thread pools cannot be used.
    """
    found = installed_here()
    # The import loads native libraries. Report the phase first, so that a crash in them is attributed to it.
    on_phase("importing")
    try:
        import onnxruntime as ort
    except Exception as error:
        raise _no_runtime(found, error) from error
    from qnnbridge_host.engine.ort_engine import OrtEngine

    _make_global_pools(ort)
    # ONNX Runtime's wheels for Linux and macOS send telemetry by default since 1.29.
    if hasattr(ort, "disable_telemetry_events"):
        ort.disable_telemetry_events()
    if os.environ.get(VERBOSE) == "1":
        # Set the severity before the QNN plugin is registered: the plugin ignores later changes.
        ort.set_default_logger_severity(0)
    return OrtEngine(ort, _adapter(ort, found, on_phase), found)


def _adapter(ort: Any, found: Installed, on_phase: Callable[..., None]) -> QnnAdapter:
    from qnnbridge_host.engine import providers, sources
    from qnnbridge_host.engine.providers import NoQnn

    if found.generation != "builtin":
        return providers.load_plugin(ort, found, lambda: sources.choose(found), on_phase)
    try:
        engine, _ = engine_of(os.environ)
    except OptionError as error:
        return NoQnn(providers.unavailable(error))
    if engine in ("auto", "wheel"):
        return providers.load_builtin(ort.get_available_providers(), found)
    return NoQnn(
        ProviderUnavailable(
            f"The engine {engine!r} cannot be used in this Python.",
            cause=f"onnxruntime-qnn {found.onnxruntime_qnn} is ONNX Runtime with QNN built in, which cannot load "
            "QNN from elsewhere.",
            fix="Use a Python with plain onnxruntime 1.24 or newer for the host, or remove the engine setting.",
            details={"engine": engine},
        )
    )


def _no_runtime(
    found: Installed, error: Exception, python: tuple[int, ...] = sys.version_info[:3]
) -> ProviderUnavailable:
    if python < OLDEST_PYTHON:
        fix = (
            "Give the host Python 3.11 or newer (onnxruntime-qnn has no wheel for older versions): `qnnbridge "
            "setup` creates such a host."
        )
    elif found.onnxruntime is None:
        fix = f"Install it there: {install_command('host', python=sys.executable)}"
    else:
        fix = (
            "Reinstall onnxruntime for the architecture of the host's Python. On Windows onnxruntime also needs "
            "the Microsoft Visual C++ Redistributable of that architecture."
        )
    return ProviderUnavailable(
        f"The host's Python ({sys.executable}) cannot import onnxruntime.",
        cause=f"{type(error).__name__}: {error}",
        fix=fix,
        details={"onnxruntime": found.onnxruntime, "python": ".".join(map(str, python))},
    )
