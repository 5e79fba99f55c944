"""Create a session in a host: send the request, read progress reports and response, and find the cause of a
failure.

The host reads the model, searches its cache for the compiled model, and otherwise compiles it. PHASE and EVENT
frames report the progress, so that a crash is attributed to the right model or cache entry. The caller stores the
session's number and later releases the session. Any thread may call the functions.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._callers import warn_application
from qnnbridge._supervision.host_process import seconds_left
from qnnbridge._threads import Terminable, TerminateRelay
from qnnbridge._transport.channel import CallContext
from qnnbridge.errors import as_onnxruntime
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    DeadlineExceeded,
    ModelLoadCanceled,
    late_behind_compiler,
)
from qnnbridge_protocol.field_types import field, read_record
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.model_records import (
    CacheReply,
    EntryFault,
    ModelDescription,
    ModelIdentity,
    Notice,
    NumbersReport,
)
from qnnbridge_protocol.specs import QNN, FixSpec, ProviderSpec, SessionInfo, SessionSpec
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._session import SessionRecipe
    from qnnbridge._supervision.host_process import HostProcess


_log = log_of("qnnbridge.session")
_cache_log = log_of("qnnbridge.cache")

# Seconds to wait for the host's log lines about a failed creation, which come through stderr and may arrive after
# the response.
LOG_TIMEOUT_S: Final = 1.0

# Environment variable. ``warn``: accept a compiled model even if the host has found a reason why the model cannot
# run.
CONTEXT_CHECK_VARIABLE: Final = "QNNBRIDGE_CONTEXT_CHECK"
# Seconds until the first progress message. Sessions from the cache are created in less time, so they log nothing.
FIRST_WORD_S: Final = 2.0
WORD_EVERY_S: Final = 15.0
# Seconds after which progress messages become warnings, because by default users only see warnings.
LOUD_S: Final = 15.0

_STAGES: Final = {
    "waiting": "{}: waiting for another process that compiles it",
    "rewriting": "{} is being rewritten so that QNN accepts it",
    "compiling": "{} is being compiled for QNN; the result is kept for later sessions",
}

# Notices that this process has shown, so that it shows each notice only once.
_said: set[str] = set()
_said_lock = renew_in_forks(Lock())


class CacheWarning(UserWarning):
    """The cache of compiled models cannot be used; sessions are created without it."""


@dataclasses.dataclass(frozen=True, slots=True)
class CreateRequest:
    """Parameters of a `session.create` request in addition to the recipe.

    spec: the specification to send. dynamic: provider options to set directly after the creation. again: the
    session existed in an earlier host, so the host must not compile its model for the cache. cached: the session
    may be created from the cache. quarantined: fingerprints that the host refuses. invalid_entries: cache entries
    that crashed a host. retry, kill_after_s: limits of the creation, for a daemon, which repeats calls and ends its
    NPU host itself. stop: setting its `terminate` from another thread withdraws the request. suspect: the model or
    cache entry blamed for the last crash; no other call runs at the same time as a suspect.
    """

    recipe: SessionRecipe
    spec: SessionSpec
    dynamic: Mapping[str, str]
    again: bool = False
    cached: bool = True
    quarantined: Sequence[str] = ()
    invalid_entries: Sequence[EntryFault] = ()
    retry: int = 0
    kill_after_s: float | None = None
    stop: Terminable | None = None
    suspect: CallContext | None = None

    def message(self, deadline: float | None) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Return header and buffers of the `session.create` request."""
        recipe = self.recipe
        described, buffers = encoded(recipe.initializers)
        header: dict[str, Any] = {
            "op": "session.create",
            "spec": self.spec.to_wire(),
            "initializers": described,
            "folder": recipe.folder,
            "retry": self.retry,
        }
        if self.cached:
            settings = dataclasses.replace(recipe.cache_settings(), load_only=self.again)
            header["cache"] = settings.to_wire()
        if recipe.identity is not None:
            header |= {"fingerprint": recipe.fingerprint, "files": [list(file) for file in recipe.identity.files]}
        if self.dynamic:
            header["dynamic"] = dict(self.dynamic)
        if recipe.seed is not None:
            header["seed"] = recipe.seed
        if self.quarantined:
            header["quarantined"] = list(self.quarantined)
        if self.invalid_entries:
            header["invalid_entries"] = [entry.to_wire() for entry in self.invalid_entries]
        check = recipe.context_check or os.environ.get(CONTEXT_CHECK_VARIABLE)
        if check:
            header["context_check"] = check
        if self.kill_after_s is not None:
            header["kill_after_s"] = self.kill_after_s
        if deadline is not None:
            # Send a duration, not a time of day, because the clocks of two systems (Wine, a container, ssh) differ.
            header["budget_s"] = max(1.0, deadline - time.monotonic())
        if recipe.spec.model_path is None:
            # Without model_path, the host uses the last buffer as the model.
            buffers += (recipe.data or b"",)
        return header, buffers


@dataclasses.dataclass(frozen=True, slots=True)
class Created:
    """The host's response to `session.create`. The attributes have the names of the message fields.

    session: number of the session. blame: fingerprint of the cache entry to which a later crash is attributed; ""
    to blame the model. shared: whether another application of the daemon has the same session. numbers: cached
    verdict of earlier comparisons with the CPU. fixed: rewrites of the model, one line for each. fix: the rewrites
    that the host has chosen. disabled_optimizers: optimizers of ONNX Runtime that the host left out.
    """

    session: int
    info: SessionInfo
    model: ModelIdentity
    cache: CacheReply
    blame: str = ""
    notices: tuple[Notice, ...] = ()
    shared: bool = False
    numbers: NumbersReport | None = None
    fixed: tuple[str, ...] = ()
    fix: FixSpec | None = None
    disabled_optimizers: tuple[str, ...] = ()


class RequestNews:
    """Progress of one request, from its PHASE and EVENT frames. The thread that reads the connection updates this
    object.

    label, fingerprint: name and fingerprint of the model or cache entry that native code is processing. entry: key
    and id of the cache entry. stage: "waiting", "compiling" or "validating" while the host process itself runs no
    native code for the request; "" while it does.
    """

    def __init__(self, label: str, on_progress: Callable[[str, float], None]) -> None:
        self.label = label
        self.fingerprint = ""
        self.entry: tuple[str, str] | None = None
        self.stage = ""
        self._native = False
        self._on_progress = on_progress

    @property
    def log_timeout_s(self) -> float:
        """Number of seconds to wait for log lines about a failure; 0 if the request never entered native code,
        which writes them."""
        return LOG_TIMEOUT_S if self._native else 0.0

    def __call__(self, frame: Frame) -> None:
        header = frame.header
        if type(header.get("label")) is str:
            self.label = header["label"]
        if frame.kind is Kind.PHASE:
            # Native code starts here: from now on, a crash is attributed to the model in this frame.
            self.stage, self._native = "", self._native or header.get("phase") != "ready"
            if type(header.get("fingerprint")) is str:
                self.fingerprint = header["fingerprint"]
                entry = header.get("entry")
                self.entry = (str(entry["key"]), str(entry["id"])) if isinstance(entry, Mapping) else None
        elif header.get("event") == "progress":
            self.stage, seconds = str(header.get("stage")), header.get("seconds")
            self._native = self._native or self.stage != "waiting"
            self.report(self.stage, float(seconds) if isinstance(seconds, (int, float)) else 0.0)

    def report(self, stage: str, seconds: float) -> None:
        try:
            self._on_progress(stage, seconds)
        except Exception:  # noqa: BLE001 - a failure to show progress must not fail the request
            _log.exception("on_progress failed")


class WaitLog:
    """Log periodically for how long the host has been waiting or compiling."""

    def __init__(self, label: Callable[[], str]) -> None:
        self._label = label
        self._stage = ""
        self._next_s = FIRST_WORD_S

    def __call__(self, stage: str, seconds: float) -> None:
        if stage != self._stage:
            self._stage, self._next_s = stage, FIRST_WORD_S
        if seconds < self._next_s or stage not in _STAGES:
            return
        self._next_s = seconds + WORD_EVERY_S
        level = logging.WARNING if seconds >= LOUD_S else logging.INFO
        _cache_log.log(level, "%s (%.0f s so far)", _STAGES[stage].format(self._label()), seconds)


def create(
    host: Host,
    process: HostProcess,
    request: CreateRequest,
    context: CallContext,
    deadline: float | None,
    news: RequestNews,
    while_busy: Callable[[], None],
    request_id: list[int],
) -> Created:
    """Create the session in the host `process`. If the host reports an error, raise the error with the cause found
    in the host's log.

    Args:
        request_id: list that receives the request's number, which is also the session's number, before the response
            arrives.
        while_busy: function to call after the request has been sent, while the host works.
    """
    cancellation = None if request.again else request.recipe.cancellation
    # The flag cancels only the creation that the application requested. Ignore the flag if a later call creates the
    # session again, because the application may have set the flag for another session meanwhile.
    if cancellation is not None and cancellation.terminate:
        raise _load_canceled(request.recipe)
    header, buffers = request.message(deadline)

    def on_sent(number: int) -> None:
        # Store the number immediately, so that an interrupted caller can release the session.
        request_id.append(number)
        for relay in (canceled, withdrawn):
            if relay is not None:
                relay(number)
        # Import numpy and the modules for runs while the host works.
        while_busy()

    try:
        # Some settings of the application apply to a whole process, for example thread pools. Apply them to each
        # new host before its first session.
        host.repeat_remembered(process, deadline)
        with (
            host.isolate(request.suspect or context, deadline),
            TerminateRelay(cancellation, process.channel) as canceled,
            TerminateRelay(request.stop, process.channel) as withdrawn,
        ):
            frame = host.call_with_functions(
                process, (header, buffers), deadline, context, on_sent, news, request.recipe.functions
            )
    except BridgeError as error:
        # Use ONNX Runtime's error class and message for a cancelled load, because applications search the message
        # for code 12.
        if isinstance(error, Cancelled) and cancellation is not None and cancellation.terminate:
            raise _load_canceled(request.recipe) from None
        from qnnbridge._diagnosis.ort_log import enrich_from_stderr

        raise enrich_from_stderr(error, process.stderr, request_id, news.log_timeout_s) from None
    # Wrong fields in the response mean that the host has another version or is damaged. `read_record` raises a
    # protocol error, which ends the connection.
    created = read_record(Created, frame.header, "session.create")
    return dataclasses.replace(created, info=_with_cause(created.info, process, request_id[-1]))


def _load_canceled(recipe: SessionRecipe) -> ModelLoadCanceled:
    return ModelLoadCanceled(
        f"[ONNXRuntimeError] : 12 : MODEL_LOAD_CANCELED : Load model from {recipe.spec.model_path or recipe.label} "
        "failed:Graph loading canceled due to user request.",
        cause="set_load_cancellation_flag(True) was called on its SessionOptions.",
        fix="Call set_load_cancellation_flag(False) before these options are used for another session.",
    )


def identify(
    host: Host,
    recipe: SessionRecipe,
    deadline: float | None,
    stop: Terminable | None = None,
    *,
    operators: bool = False,
) -> ModelDescription:
    """Return the host's description of the model, without loading it into ONNX Runtime. Raise the host's error if
    the model cannot be read. operators: also list the model's operators, for which the host must read each node."""
    header: dict[str, Any] = {"op": "model.identify", "folder": recipe.folder}
    if operators:
        header["operators"] = True
    header["cache"] = recipe.cache_settings().to_wire()
    header["config_entries"] = dict(recipe.spec.config_entries)
    if recipe.spec.model_path is not None:
        header["path"] = recipe.spec.model_path
    timeout = seconds_left(deadline)
    reply = host.call(header, timeout, () if recipe.spec.model_path is not None else (recipe.data or b"",), stop)
    return ModelDescription.from_wire(reply.header)


def choose_model(host: Host, recipe: SessionRecipe, timeout_s: float | None) -> SessionRecipe:
    """If the model is a prepared folder, return the recipe with the file that the host chooses from the folder.
    Return other recipes unchanged.

    If the host reports an error for the folder, raise it. `SessionRecipe.forget_model` undoes the choice.
    """
    folder = recipe.spec.model_path
    if folder is None or not os.path.isdir(folder):
        return recipe
    header: dict[str, Any] = {"op": "model.choose", "spec": recipe.spec.to_wire()}
    header["cache"] = recipe.cache_settings().to_wire()
    try:
        reply = host.call(header, timeout_s).header
    except BridgeError as error:
        raise as_onnxruntime(error) from None
    path, reason = (field(reply, name, "str") for name in ("path", "reason"))
    (_log.warning if field(reply, "compiles", "bool") else _log.info)("%s: %s", os.path.basename(folder), reason)
    # Options of the application take precedence over the prepared folder's options for the chosen file.
    of_package = field(reply, "provider_options", "Mapping[str, str]")
    providers = tuple(
        dataclasses.replace(one, options={**of_package, **one.options}) if one.name == QNN else one
        for one in recipe.spec.providers or ([ProviderSpec(QNN)] if of_package else [])
    )
    entries = {**field(reply, "config_entries", "Mapping[str, str]"), **recipe.spec.config_entries}
    spec = dataclasses.replace(recipe.spec, model_path=path, providers=providers, config_entries=entries)
    return dataclasses.replace(recipe, spec=spec, prepared=recipe.spec, variant=reason)


def encoded(values: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the descriptions and the buffers of tensors for a message."""
    if not values:
        return [], ()
    from qnnbridge_protocol.values import Encoder

    encoder = Encoder()
    return [encoder.add(value) for value in values], tuple(encoder.buffers)


def too_late(news: RequestNews, timeout_s: float | None) -> DeadlineExceeded | None:
    """Return the error for a deadline that expired outside of native code (waiting, compiling, validating), else
    ``None``."""
    seconds = f" within {timeout_s:g} s" if timeout_s is not None else ""
    if news.stage == "waiting":
        return late_behind_compiler(news.label)
    if news.stage == "compiling":
        return DeadlineExceeded(
            f"{news.label} was not compiled{seconds}; the compiler was terminated.",
            cause="Compiling takes from a second to many minutes, and only ending the process interrupts it.",
            fix="Use a longer timeout (timeout=, --timeout), or none to wait as long as it takes.",
            details={"state": "stopped", "model": news.label},
        )
    if news.stage == "validating":
        return DeadlineExceeded(
            f"{news.label} was compiled, but the timeout expired before the result was compared with the CPU.",
            cause="The timeout covers compilation and comparison; for a large model, the CPU's run takes longest.",
            fix="Use a longer timeout (timeout=, --timeout), or skip the comparison (validate=False, "
            "--no-validate); nothing was written.",
            details={"state": "stopped", "model": news.label},
        )
    return None


# String that occurs only in the notice about operators that QNN is known to compute wrong.
_KNOWN: Final = "QNN is known to compute"


def known_faults_in(notices: Sequence[Notice]) -> str:
    """Return the notice about operators that QNN is known to compute wrong; "" if the host sent no such notice."""
    return next((one.text for one in notices if one.kind == "model" and _KNOWN in one.text), "")


def show_notices(notices: Sequence[Notice]) -> None:
    """Log the host's notices about the model. A notice about the cache is shown as a warning, once per process."""
    for notice in notices:
        if notice.kind == "model" or (notice.kind == "once" and _is_new(notice.text)):
            _log.warning("%s", notice.text)
        elif notice.kind == "done":
            _log.info("%s", notice.text)
        elif notice.kind == "cache" and _is_new(notice.text):
            warn_application(notice.text, CacheWarning, _cache_log)


def _is_new(text: str) -> bool:
    """Return whether this process shows the notice for the first time."""
    with _said_lock:
        new = text not in _said
        _said.add(text)
    return new


def _with_cause(info: SessionInfo, process: HostProcess, request_id: int) -> SessionInfo:
    """Return the session's info. If QNN did not start and runs no node of the session, add the reason from the
    host's log, because the response does not contain it."""
    placement = info.placement
    if not (placement.known and placement.backend and not placement.qnn_nodes):
        # Discard the log lines of a successful creation to free memory.
        process.stderr.forget(request_id)
        return info
    from qnnbridge._diagnosis.ort_log import explain_lines
    from qnnbridge._launch.stderr import decode_stderr

    lines = decode_stderr(process.stderr.section(request_id, LOG_TIMEOUT_S)).splitlines()
    causes = [finding.cause for finding in explain_lines(lines) if finding.setup]
    if not causes:
        return info
    return dataclasses.replace(info, placement=dataclasses.replace(placement, cause=causes[0]))
