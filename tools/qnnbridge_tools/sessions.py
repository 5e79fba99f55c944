"""One model on one provider of the host: opens the session, runs, and turns what goes wrong into data.

The CPU side and the QNN side are both sessions of the host process: the application needs no onnxruntime, and a
model that kills the host kills nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge_host.model.optimizers import PROVE_ENTRY
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

# These are not about the model: there is no host, no QNN, or a bad option.
NO_FINDING = (HostStartFailed, OptionError, ProviderUnavailable)
# A run that does not come back is ended by killing its host, so a deadline counts as a death.
DEATHS = (HostCrashed, HostHung, DeadlineExceeded, ModelQuarantined)


@dataclasses.dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of sessions: QNN's options, sizes of named dimensions, seconds for each call."""

    provider_options: Mapping[str, str]
    sizes: Mapping[str, int]
    timeout_s: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class RunAnswer:
    """The results of one run, or its error.

    Args:
        values: None if there are none; `error` says why.
    """

    values: list[Any] | None
    error: BridgeError | None = None

    @property
    def died(self) -> bool:
        return isinstance(self.error, DEATHS)


def one_line(error: BridgeError) -> str:
    """An error in one line."""
    return f"{error.message} {error.cause}" if error.cause else error.message


class ProviderSession:
    """A session that answers. Made by `opened`."""

    def __init__(self, session: InferenceSession, timeout_s: float | None) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self.outputs: list[str] = [node.name for node in session.get_outputs()]

    @property
    def fingerprint(self) -> str:
        """Of the model that it computes; the file may hold another one by now."""
        return self._session._remote.recipe.fingerprint

    @property
    def rewritten(self) -> Sequence[str]:
        """What was rewritten of the model, as text."""
        return list(self._session.fixed)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Optimizers of ONNX Runtime without which the host made it, since they harm the model."""
        return self._session._remote.disabled_optimizers

    @property
    def placement(self) -> Placement:
        return self._session.placement

    @property
    def inputs(self) -> Sequence[Any]:
        return list(self._session.get_inputs())

    def answer(self, feeds: Mapping[str, Any], timeout_s: float | None = None) -> RunAnswer:
        """timeout_s: less than the usual one."""
        # The shorter of both limits holds.
        limits = [limit for limit in (timeout_s, self._timeout_s) if limit is not None]
        try:
            # No repetition: a death is a finding here. A run that goes beyond its time ends only with its host.
            values = self._session.run(
                None, dict(feeds), timeout=min(limits, default=None), retry=0, on_deadline="kill"
            )
        except NO_FINDING:
            raise
        except BridgeError as error:
            return RunAnswer(None, error)
        return RunAnswer(list(values))

    def values(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Raises the error of the run."""
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
    """Raises what making the session raises.

    Args:
        timeout_s: less than the usual one.
        cured: as an application's session is, with the operators rewritten that QNN is known to compute wrong.
        level: of ONNX Runtime's graph optimisation of a session on the CPU. QNN is compared with one that is not
            optimised; nodes of QNN are optimised at "basic"; an application's sessions on the CPU have "all".
        disabled_optimizers: of ONNX Runtime, left out.
        proven: they are all that harm the model; the host does not look for more.
    """
    from qnnbridge import CpuFallbackWarning, GraphOptimizationLevel, InferenceSession, SessionOptions

    options = SessionOptions()
    for name, size in settings.sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    if proven:
        options.add_session_config_entry(PROVE_ENTRY, "0")
    if provider == CPU:
        names = {"off": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "all": "ORT_ENABLE_ALL"}
        options.graph_optimization_level = getattr(GraphOptimizationLevel, names[level])
    limits = [limit for limit in (timeout_s, settings.timeout_s) if limit is not None]
    # The library would log what the report says: nodes on the CPU, a host that died.
    with quiet("qnnbridge"), warnings.catch_warnings():
        warnings.simplefilter("ignore", CpuFallbackWarning)  # the report names the placement
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
            # Each model is opened once here: compiled entries of cut and rewritten copies would only fill the
            # cache.
            cache=False,
            disabled_optimizers=list(disabled_optimizers),
            verify=False,  # the commands compare by themselves
            fix=None if cured else False,  # they look at the model as it is
        ) as session:
            yield ProviderSession(session, settings.timeout_s)


def memory_filling(host: Host, settings: SessionSettings) -> Callable[[], None]:
    """Return what fills QNN's memory in a host before a run, as other models do in an application.

    It does nothing where QNN does not take the model that fills: the run that follows shows why.
    """
    from qnnbridge import InferenceSession
    from qnnbridge_host.numerics.measuring import filling_model

    model, feeds = filling_model()
    try:
        with quiet("qnnbridge"):
            # Ends with its host.
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

    # Errors are left to the run behind it: a host that died is that run's finding, with the model's own evidence.
    def fill() -> None:
        with quiet("qnnbridge"), contextlib.suppress(BridgeError):
            session.run(None, dict(feeds))

    return fill


@contextlib.contextmanager
def quiet(*names: str) -> Iterator[None]:
    """These loggers report nothing meanwhile."""
    before = {log: log.level for log in map(logging.getLogger, names)}
    for log in before:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in before.items():
            log.setLevel(level)
