"""Open a session of one model on one provider of a host, run it, and return errors as data.

The CPU side and the QNN side are both sessions in host processes: the application needs no onnxruntime, and a model
that crashes its process only ends the host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge_host.model.optimizers import LEVEL_BASIC, LEVEL_OFF, PROVE_ENTRY, exact
from qnnbridge_host.model.scan import scan_model
from qnnbridge_protocol.errors import (
    BridgeError,
    DeadlineExceeded,
    HostCrashed,
    HostHung,
    HostStartFailed,
    ModelQuarantined,
    OptionError,
    ProviderUnavailable,
)
from qnnbridge_protocol.specs import Placement

if TYPE_CHECKING:
    from qnnbridge import Host, InferenceSession

CPU = "CPUExecutionProvider"
QNN = "QNNExecutionProvider"

# These errors are not about the model: the host or QNN is missing, or an option is wrong.
NO_FINDING = (HostStartFailed, OptionError, ProviderUnavailable)
# A run that hangs can only be ended by killing its host, so an expired deadline counts as a crash.
DEATHS = (HostCrashed, HostHung, DeadlineExceeded, ModelQuarantined)


@dataclasses.dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of sessions: QNN's options, sizes of named dimensions, and timeout of each call."""

    provider_options: Mapping[str, str]
    sizes: Mapping[str, int]
    timeout_s: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class RunAnswer:
    """The results of one run, or its error.

    Args:
        values: ``None`` if there are no results; the reason is in `error`.
    """

    values: list[Any] | None
    error: BridgeError | None = None

    @property
    def died(self) -> bool:
        return isinstance(self.error, DEATHS)


def one_line(error: BridgeError) -> str:
    """Return an error in one line."""
    return f"{error.message} {error.cause}" if error.cause else error.message


class ProviderSession:
    """A session whose runs return answers instead of raising errors. Created by `opened`."""

    def __init__(self, session: InferenceSession, timeout_s: float | None) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self.outputs: list[str] = [node.name for node in session.get_outputs()]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model when the session was created; the file may have changed since."""
        return self._session._remote.recipe.fingerprint

    @property
    def rewritten(self) -> Sequence[str]:
        """The rewrites of the model, as texts."""
        return list(self._session.fixed)

    @property
    def left_out(self) -> tuple[str, ...]:
        """ONNX Runtime optimizers that the host disabled because they harm the model."""
        return self._session._remote.disabled_optimizers

    @property
    def placement(self) -> Placement:
        return self._session.placement

    @property
    def inputs(self) -> Sequence[Any]:
        return list(self._session.get_inputs())

    def answer(self, feeds: Mapping[str, Any], timeout_s: float | None = None) -> RunAnswer:
        """Run the model and return the answer. timeout_s: time limit, if it is shorter than the settings' limit."""
        # The shorter limit applies.
        limits = [limit for limit in (timeout_s, self._timeout_s) if limit is not None]
        try:
            # Do not retry, because a crash is a finding here. A run that exceeds its deadline is ended together
            # with its host.
            values = self._session.run(
                None, dict(feeds), timeout=min(limits, default=None), retry=0, on_deadline="kill"
            )
        except NO_FINDING:
            raise
        except BridgeError as error:
            return RunAnswer(None, error)
        return RunAnswer(list(values))

    def values(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the results. Raises the error of the run."""
        answer = self.answer(feeds)
        if answer.values is None:
            raise answer.error or BridgeError("There is no answer.")
        return answer.values


@contextlib.contextmanager
def opened(
    host: Host,
    model: Path,
    provider: str,
    settings: SessionSettings,
    timeout_s: float | None = None,
    fallback: Literal["error", "cpu"] = "cpu",
    *,
    cured: bool = False,
    level: Literal["off", "basic", "all"] = "off",
    disabled_optimizers: Sequence[str] = (),
    proven: bool = False,
) -> Iterator[ProviderSession]:
    """Open a session of a model on a provider.

    Args:
        host: the host.
        model: the model file.
        provider: the execution provider.
        settings: the settings of the session.
        timeout_s: time limit, if it is shorter than the settings' limit.
        fallback: whether nodes may run on the CPU.
        cured: whether to rewrite the operators that QNN is known to compute wrong, as in an application's session.
        level: the graph optimisation level of a session on the CPU: "off" for reference results, "basic" to
            optimise the model as for QNN, "all" as in an application's session.
        disabled_optimizers: the ONNX Runtime optimizers to leave out.
        proven: true if `disabled_optimizers` contains all optimizers that harm the model, so that the host does not
            search for others.

    Raises:
        BridgeError: the session cannot be created.
    """
    from qnnbridge import CpuFallbackWarning, GraphOptimizationLevel, InferenceSession, SessionOptions

    options = SessionOptions()
    for name, size in settings.sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    if proven:
        options.add_session_config_entry(PROVE_ENTRY, "0")
    if provider == CPU and level == "all":
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
    elif provider == CPU:
        found = exact(LEVEL_OFF if level == "off" else LEVEL_BASIC, disabled_optimizers, scan_model(model).ops)
        options.graph_optimization_level = GraphOptimizationLevel(found.level)
        for key, text in found.entries.items():
            options.add_session_config_entry(key, text)
        disabled_optimizers = found.disabled
    limits = [limit for limit in (timeout_s, settings.timeout_s) if limit is not None]
    # Suppress log lines about facts that the report contains anyway: nodes on the CPU, or a crashed host.
    with quiet("qnnbridge"), warnings.catch_warnings():
        warnings.simplefilter("ignore", CpuFallbackWarning)  # the report contains the placement
        with InferenceSession(
            str(model),
            options,
            providers=[provider],
            provider_options=[dict(settings.provider_options)] if provider == QNN else None,
            host=host,
            fallback=fallback,
            timeout=min(limits, default=None),
            retry=0,
            on_deadline="kill",
            # Each model is opened once here: compiled entries of reduced and rewritten copies would only fill the
            # cache.
            cache=False,
            disabled_optimizers=list(disabled_optimizers),
            verify=False,  # the commands compare the results themselves
            fix=None if cured else False,  # without `cured`, examine the unchanged model
        ) as session:
            yield ProviderSession(session, settings.timeout_s)


def memory_filling(host: Host, settings: SessionSettings) -> Callable[[], None]:
    """Return a function that fills QNN's memory in a host before a run, as other models do in an application.

    The function does nothing if QNN rejects the filling model; the following run then shows the reason.
    """
    from qnnbridge import InferenceSession
    from qnnbridge_host.numerics.measuring import filling_model

    model, feeds = filling_model()
    try:
        with quiet("qnnbridge"):
            # Do not close the session, so that the memory stays filled. The session ends with its host.
            session = InferenceSession(
                *(model, None, [QNN], [dict(settings.provider_options)]),
                host=host,
                timeout=settings.timeout_s,
                retry=0,
                on_deadline="kill",
                cache=False,
                verify=False,
                fix=False,
            )
    except BridgeError:
        return lambda: None

    # Ignore errors here, because the following run reports a crash of the host, with evidence about the model.
    def fill() -> None:
        with quiet("qnnbridge"), contextlib.suppress(BridgeError):
            session.run(None, dict(feeds))

    return fill


@contextlib.contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Silence the loggers with these names while the block runs."""
    before = {log: log.level for log in map(logging.getLogger, names)}
    for log in before:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in before.items():
            log.setLevel(level)
