"""Provider selection for the sessions of a program written for onnxruntime, and the report of their placement.

Sessions use the requested providers, unless the user overrides them with `qnnbridge exec --provider` or the
variable ``QNNBRIDGE_DROPIN_PROVIDER``: "qnn" runs as many nodes of every model as possible on the NPU, "cpu" runs
all nodes on the CPU. A program that requests QNN gets QNN with the CPU as fallback, as with onnxruntime-qnn; a
warning, the log and the report list the nodes that do not run on the NPU. Arguments are checked by ONNX Runtime's
rules, with its messages.

The report of `qnnbridge exec --report` is optional and has one record per model. Each process writes a separate
JSON file to the folder in the environment variable ``QNNBRIDGE_REPORT_DIR``, which child processes inherit. The
file is rewritten after each change, since a signal may end a worker process at any time. Thread-safe.
"""

from __future__ import annotations

import atexit
import collections.abc
import contextlib
import dataclasses
import json
import os
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Literal, get_args

from qnnbridge._callers import warn_application
from qnnbridge._options.providers import CPU, QNN, option_text
from qnnbridge._session_options import KNOWN_PROVIDERS
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock, local, sleep
from qnnbridge_protocol.errors import OptionError, RemoteRuntimeError, RemoteValueError
from qnnbridge_protocol.model_records import WORST_FIRST, is_compared


@dataclasses.dataclass(frozen=True, slots=True)
class OrtEpAssignedNode:
    name: str
    domain: str
    op_type: str


@dataclasses.dataclass(frozen=True, slots=True)
class OrtEpAssignedSubgraph:
    """A group of nodes that one provider runs together."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return list(self.nodes)


POLICY_VARIABLE = "QNNBRIDGE_DROPIN_PROVIDER"
# Environment variable with sizes of free dimensions, as a JSON object: dimension -> size or list of sizes.
SIZES_VARIABLE = "QNNBRIDGE_DROPIN_SIZES"
Policy = Literal["as-requested", "qnn", "cpu"]
POLICIES: tuple[str, ...] = get_args(Policy)

Named = tuple[str, dict[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderChoice:
    """Providers of a session, and how to treat an error of QNN.

    Args:
        providers: argument for `qnnbridge.InferenceSession`; ``None`` uses the providers in the session options.
        asked: whether the program itself requests QNN, so that an error of QNN is raised. If not, the user chose
            QNN or the program passed all available providers, and a model that QNN rejects runs on the CPU.
    """

    providers: list[Named] | None
    asked: bool


def policy() -> Policy:
    """Return the user's policy from the environment. Raises `OptionError` for an invalid value."""
    value = os.environ.get(POLICY_VARIABLE, "") or "as-requested"
    if value not in POLICIES:
        raise OptionError(f"{POLICY_VARIABLE}={value!r} is not known.", fix=f"Use one of: {', '.join(POLICIES)}.")
    return value  # type: ignore[return-value]


def given_sizes() -> dict[str, int | list[int]]:
    """Return the sizes of dimensions from the environment. Raises `OptionError` for an invalid value."""
    text = os.environ.get(SIZES_VARIABLE, "")
    if not text:
        return {}
    from qnnbridge._buckets import make_arguments

    try:
        sizes = json.loads(text)
        make_arguments(sizes)
    except (ValueError, OptionError) as error:
        raise OptionError(
            f"{SIZES_VARIABLE}={text!r:.200} does not contain valid sizes: {error}",
            fix='Give a JSON object: {"batch": 1, "seq": [16, 32]}. `qnnbridge exec --dim` and `--bucket` set it.',
        ) from None
    return dict(sizes)


def choose(named: Sequence[Named], *, in_options: bool, chosen: Policy, available: Sequence[str]) -> ProviderChoice:
    """Return the providers for a session.

    A program that passes the whole list `available` gets QNN, as it would get CUDA from a build with CUDA: the
    whole list means "the best provider".

    Args:
        named: the result of `normalize`.
        in_options: whether the session options contain providers.
        available: the result of `get_available_providers`.
    """
    names = [name for name, _ in named]
    qnn_options = next((options for name, options in named if name == QNN), {})
    if chosen == "cpu":
        # `asked` is True because there is no fallback, so an error of the CPU must be raised.
        return ProviderChoice([(CPU, {})], asked=True)
    if chosen == "qnn":
        return ProviderChoice([(QNN, qnn_options), (CPU, {})], asked=False)
    # As in ONNX Runtime, a CPU provider listed before QNN takes every node, so QNN would get no node.
    if QNN in names and CPU not in names[: names.index(QNN)]:
        return ProviderChoice([(QNN, qnn_options), (CPU, {})], asked=not set(available) <= set(names))
    # Providers in the session options are used only if the arguments contain no providers.
    if in_options and not named:
        return ProviderChoice(None, asked=True)
    # Ignore other providers (CUDA): `normalize` has warned about them. ONNX Runtime also continues on the CPU.
    return ProviderChoice([(CPU, dict(named).get(CPU, {}))], asked=True)


def normalize(providers: Any, provider_options: Any, available: Sequence[str]) -> list[Named]:
    """Return the providers in the arguments of ``InferenceSession``, checked by ONNX Runtime's rules."""
    if providers is None:
        return []
    if not isinstance(providers, collections.abc.Sequence):
        raise RemoteValueError("'providers' should be a sequence.")
    pairs = _pairs(providers, provider_options)
    found: dict[str, dict[str, str]] = {}
    for name, options in pairs:
        if name not in available:
            warn_application(
                # As in ONNX Runtime, there is no space between the two sentences.
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(available)}'",
                UserWarning,
            )
        if name in found:
            warn_application(f"Duplicate provider '{name}' encountered, ignoring.", UserWarning)
            continue
        found[name] = {str(key): option_text(key, value) for key, value in options.items()}
    # Check this last, as in ONNX Runtime: its Python code warns about all names before its C++ code refuses one.
    unknown = next((name for name in found if name not in available and name not in KNOWN_PROVIDERS), None)
    if unknown is not None:
        raise RemoteRuntimeError(f"Unknown Provider Type: {unknown}")
    return list(found.items())


def _pairs(providers: Sequence[Any], provider_options: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if provider_options is None:
        return [_pair(provider) for provider in providers]
    if not isinstance(provider_options, collections.abc.Sequence):
        raise RemoteValueError("'provider_options' should be a sequence.")
    if len(providers) != len(provider_options):
        raise RemoteValueError("'providers' and 'provider_options' should be the same length if both are given.")
    if not all(isinstance(provider, str) for provider in providers):
        raise RemoteValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
    if not all(isinstance(options, dict) for options in provider_options):
        raise RemoteValueError("'provider_options' values must be dicts.")
    return list(zip(providers, provider_options, strict=True))


def _pair(provider: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(provider, str):
        return provider, {}
    if (
        isinstance(provider, tuple)
        and len(provider) == 2
        and isinstance(provider[0], str)
        and isinstance(provider[1], dict)
    ):
        return provider
    raise RemoteValueError("'providers' values must be either strings or (string, dict) tuples.")


# --- the records for `qnnbridge exec --report` ---

REPORT_VARIABLE = "QNNBRIDGE_REPORT_DIR"
# Seconds to wait for the comparison of the last calls when the program ends.
LAST_COMPARISON_S = 10.0


@dataclasses.dataclass(slots=True)
class ModelRecord:
    """Entry of the report for one model and all its sessions.

    Args:
        seconds: total time that the program waited for runs.
        numbers: result of `NumbersReport.to_wire` without outputs, for the session with the worst results.
    """

    model: str
    qnn_nodes: int
    cpu_nodes: int
    cause: str | None
    sessions: int = 0
    calls: int = 0
    failed: int = 0
    seconds: float = 0.0
    numbers: dict[str, Any] | None = None


class Journal:
    """Journal that records nothing, for a process without a report."""

    _nothing = contextlib.nullcontext()

    def opened(self, session: Any, because: str | None = None) -> None:
        pass

    def running(self, session: Any) -> AbstractContextManager[None]:
        """Return a context manager for one run. Nested calls in the same thread count as a part of this run."""
        return self._nothing


class _Thread(local):
    """State of a thread. runs: whether the thread is inside a run."""

    runs = False


class _Writing(Journal):
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = renew_in_forks(Lock())
        self._thread = _Thread()
        self._records: dict[tuple[str, int, int], ModelRecord] = {}
        # Keep a reference to each host, so that the `id` of the object is not reused while the process runs.
        self._hosts: dict[int, Any] = {}
        # Sessions that are still in use, with their records: a comparison may end after the last call, and its
        # result must still be recorded.
        self._sessions: weakref.WeakKeyDictionary[Any, ModelRecord] = weakref.WeakKeyDictionary()
        self._process = 0
        self._file: BinaryIO | None = None
        self._bytes = 0

    def opened(self, session: Any, because: str | None = None) -> None:
        with self._changing(session) as record:
            record.sessions += 1
            record.cause = because or record.cause
            self._hosts[id(session.host)] = session.host

    @contextlib.contextmanager
    def running(self, session: Any) -> Iterator[None]:
        # `_thread` is thread-local, so runs of one session in two threads count as two calls of the program.
        if self._thread.runs:  # `run` calls `run_values` of the same session, so count only one call
            yield
            return
        self._thread.runs = True
        begin = time.perf_counter()
        # Set the value to True first, so that KeyboardInterrupt and SystemExit also count as failures.
        failed = True
        try:
            yield
            failed = False
        finally:
            self._thread.runs = False
            spent = time.perf_counter() - begin
            with self._changing(session) as record:
                record.calls += 1
                record.failed += failed
                record.seconds += spent

    def close(self) -> None:
        """Wait for running comparisons, up to a timeout, and write their results. Called when the program ends."""
        until = time.monotonic() + LAST_COMPARISON_S
        for session in list(self._sessions):
            while is_compared(session.verified) and time.monotonic() < until:
                sleep(0.05)
            with self._changing(session):
                pass

    @contextlib.contextmanager
    def _changing(self, session: Any) -> Iterator[ModelRecord]:
        placement = session.placement
        label = session._remote.recipe.label
        with self._lock:
            if self._process != os.getpid():  # this is the first record, or the first after a fork
                self._begin()
            record = self._records.setdefault(
                (label, placement.qnn_nodes, placement.cpu_nodes),
                ModelRecord(label, placement.qnn_nodes, placement.cpu_nodes, placement.cause),
            )
            yield record
            self._sessions[session] = record
            found = [one.verified for one, of in self._sessions.items() if of is record]
            worst = min(found, key=lambda one: (WORST_FIRST.index(one.state), -one.compared))
            # Keep `record.numbers`, which may come from a released session, unless a comparison was requested for
            # an open session.
            if record.numbers is None or worst.state != "off":
                record.numbers = dataclasses.replace(worst, outputs=()).to_wire()
            with contextlib.suppress(OSError):  # the parent has ended and removed the folder, or the disk is full
                self._write()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._records, self._hosts, self._file, self._bytes = {}, {}, None, 0
        self._sessions.clear()
        # atexit calls functions in reverse order: register `close` after the function of `_host` that ends the
        # hosts, so that `close` runs first.
        atexit.unregister(self.close)
        atexit.register(self.close)
        with contextlib.suppress(OSError):
            # Process ids are reused: with the time in the name, a later process does not replace the file of an
            # ended process.
            path = os.path.join(self._folder, f"{os.getpid()}-{time.time_ns()}.json")
            # Open the file without a buffer, so that written data remains if the process is killed.
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - open until the process ends

    def _write(self) -> None:
        if self._file is None:
            return
        stats = [host.stats for host in self._hosts.values()]
        document = {
            "models": [dataclasses.asdict(record) for record in self._records.values()],
            "crashes": sum(one.crashes for one in stats),
            "retried_calls": sum(one.retried_calls for one in stats),
        }
        data = json.dumps(document).encode()
        # Use one write that is never shorter than the previous one, so that a reader always gets a complete
        # document.
        self._bytes = max(self._bytes, len(data))
        self._file.seek(0)
        # Pad with spaces, which JSON ignores, to overwrite the end of a longer previous document.
        self._file.write(data.ljust(self._bytes))


_made: Journal | None = None
_lock = renew_in_forks(Lock())


def journal() -> Journal:
    """Return the journal of this process."""
    global _made
    # Check without the lock first: every run of every session calls this function.
    if _made is None:
        with _lock:
            if _made is None:
                folder = os.environ.get(REPORT_VARIABLE)
                _made = _Writing(folder) if folder else Journal()
    return _made
