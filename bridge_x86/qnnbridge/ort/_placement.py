"""Where sessions of a program written for onnxruntime run, and the record of where they did.

Providers are as requested, unless the user overrides them (`qnnbridge exec --provider`, or
the variable ``QNNBRIDGE_DROPIN_PROVIDER``): "qnn" takes every model to the NPU as far as it goes, "cpu" none. A
program that asks for QNN gets it with the CPU behind it, as with onnxruntime-qnn itself; a warning, the log and
the report name nodes that did not go to the NPU. The rules on the arguments and their messages are ONNX
Runtime's.

The report of `qnnbridge exec --report` is off unless switched on. It has one record per model. They stand in a JSON
file of this process in the folder that ``QNNBRIDGE_REPORT_DIR`` names (child processes inherit the variable; no
process writes into another's file). The file is written anew with each change, since a worker process may be ended
by a signal at any time. Any thread.
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
from qnnbridge._providers import CPU, QNN, option_text
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
    """Nodes that one provider took together."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return list(self.nodes)


POLICY_VARIABLE = "QNNBRIDGE_DROPIN_PROVIDER"
# Sizes of free dimensions, as a JSON object: dimension -> size, or sizes.
SIZES_VARIABLE = "QNNBRIDGE_DROPIN_SIZES"
Policy = Literal["as-requested", "qnn", "cpu"]
POLICIES: tuple[str, ...] = get_args(Policy)

Named = tuple[str, dict[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderChoice:
    """providers: for `qnnbridge.InferenceSession`; ``None`` leaves them to the session options.

    asked: the program names QNN itself, so an error of QNN is an error of the program. Otherwise the user chose
    QNN, or the program takes all providers that there are, and a model that QNN cannot take runs on the CPU.
    """

    providers: list[Named] | None
    asked: bool


def policy() -> Policy:
    """Raises `OptionError` for an invalid value."""
    value = os.environ.get(POLICY_VARIABLE, "") or "as-requested"
    if value not in POLICIES:
        raise OptionError(f"{POLICY_VARIABLE}={value!r} is not known.", fix=f"One of: {', '.join(POLICIES)}.")
    return value  # type: ignore[return-value]


def given_sizes() -> dict[str, int | list[int]]:
    """Of the environment: dimension -> size, or sizes. Raises `OptionError` for an invalid value."""
    text = os.environ.get(SIZES_VARIABLE, "")
    if not text:
        return {}
    from qnnbridge._buckets import make_arguments

    try:
        sizes = json.loads(text)
        make_arguments(sizes)
    except (ValueError, OptionError) as error:
        raise OptionError(
            f"{SIZES_VARIABLE}={text!r:.200} gives no sizes: {error}",
            fix='Give a JSON object: {"batch": 1, "seq": [16, 32]}. `qnnbridge exec --dim` and --bucket set it.',
        ) from None
    return dict(sizes)


def choose(named: Sequence[Named], *, in_options: bool, chosen: Policy, available: Sequence[str]) -> ProviderChoice:
    """Return where a session is to run.

    named: what `normalize` made of the arguments. in_options: the session options name providers. available: what
    `get_available_providers` returns. A program that passes this list on gets QNN, as it gets CUDA from a build
    with CUDA: the list means "the best that there is".
    """
    names = [name for name, _ in named]
    qnn_options = next((options for name, options in named if name == QNN), {})
    if chosen == "cpu":
        # asked: there is no QNN to go back from, so an error of the CPU is the program's.
        return ProviderChoice([(CPU, {})], asked=True)
    if chosen == "qnn":
        return ProviderChoice([(QNN, qnn_options), (CPU, {})], asked=False)
    # A CPU provider in front of QNN takes every node, in ONNX Runtime too: nothing would be left for QNN.
    if QNN in names and CPU not in names[: names.index(QNN)]:
        return ProviderChoice([(QNN, qnn_options), (CPU, {})], asked=not set(available) <= set(names))
    # Providers of the session options count only where the arguments name none.
    if in_options and not named:
        return ProviderChoice(None, asked=True)
    # Others (CUDA) are left out: `normalize` has warned of them, and ONNX Runtime goes on with the CPU as well.
    return ProviderChoice([(CPU, dict(named).get(CPU, {}))], asked=True)


def normalize(providers: Any, provider_options: Any, available: Sequence[str]) -> list[Named]:
    """The arguments of ``InferenceSession``, checked as ONNX Runtime checks them; empty for none."""
    if providers is None:
        return []
    if not isinstance(providers, collections.abc.Sequence):
        raise RemoteValueError("'providers' should be a sequence.")
    pairs = _pairs(providers, provider_options)
    found: dict[str, dict[str, str]] = {}
    for name, options in pairs:
        if name not in available:
            warn_application(
                # ONNX Runtime's text has no space between the two sentences either.
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(available)}'",
                UserWarning,
            )
        if name in found:
            warn_application(f"Duplicate provider '{name}' encountered, ignoring.", UserWarning)
            continue
        found[name] = {str(key): option_text(key, value) for key, value in options.items()}
    # Last, as in ONNX Runtime: its Python warns about all of them before its C++ refuses one.
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


# --- what a program did with its sessions: for the report of `qnnbridge exec --report` ---

REPORT_VARIABLE = "QNNBRIDGE_REPORT_DIR"
# How long the end of a program waits for the comparison of its last calls.
LAST_COMPARISON_S = 10.0


@dataclasses.dataclass(slots=True)
class ModelRecord:
    """seconds: spent in runs, as the program waited for them. numbers: of the session whose numbers are worst;
    `NumbersReport.to_wire`, without the outputs."""

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
    """Of a process for which no report was asked: writes nothing."""

    _nothing = contextlib.nullcontext()

    def opened(self, session: Any, because: str | None = None) -> None:
        pass

    def running(self, session: Any) -> AbstractContextManager[None]:
        """Around one run. What a run does within itself, in the same thread, is part of it."""
        return self._nothing


class _Thread(local):
    """runs: whether this thread is within a run."""

    runs = False


class _Writing(Journal):
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = renew_in_forks(Lock())
        self._thread = _Thread()
        self._records: dict[tuple[str, int, int], ModelRecord] = {}
        # The host itself is kept, so that no other one gets its id while the process lives.
        self._hosts: dict[int, Any] = {}
        # The sessions that are still in use, by record: a comparison may end after the last call.
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
        # By thread: runs of one session in two threads are two calls of the program.
        if self._thread.runs:  # `run` of a session calls `run_values` of the same: one call of the program
            yield
            return
        self._thread.runs = True
        begin = time.perf_counter()
        # Set first, so that KeyboardInterrupt and SystemExit count as well.
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
        """Wait until the comparisons under way have ended, and write their results. At the end of the program."""
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
            if self._process != os.getpid():  # the first record, or a fork, which has a file of its own
                self._begin()
            record = self._records.setdefault(
                (label, placement.qnn_nodes, placement.cpu_nodes),
                ModelRecord(label, placement.qnn_nodes, placement.cpu_nodes, placement.cause),
            )
            yield record
            self._sessions[session] = record
            found = [one.verified for one, of in self._sessions.items() if of is record]
            worst = min(found, key=lambda one: (WORST_FIRST.index(one.state), -one.compared))
            # A session that is gone has left its report here.
            if record.numbers is None or worst.state != "off":
                record.numbers = dataclasses.replace(worst, outputs=()).to_wire()
            with contextlib.suppress(OSError):  # the folder is gone with the parent, or the disk is full
                self._write()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._records, self._hosts, self._file, self._bytes = {}, {}, None, 0
        self._sessions.clear()
        # After `_host` has registered the end of the hosts, and so before it.
        atexit.unregister(self.close)
        atexit.register(self.close)
        with contextlib.suppress(OSError):
            # Systems give the id of an ended process to a later one, whose file must not replace the first.
            path = os.path.join(self._folder, f"{os.getpid()}-{time.time_ns()}.json")
            # Unbuffered: what was written is with the system, and stays when the process is killed.
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - for the life of the process

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
        # One write, and never shorter than the last one: a reader sees all of it or none.
        self._bytes = max(self._bytes, len(data))
        self._file.seek(0)
        # JSON ignores the blanks behind the document, which cover the end of a longer one.
        self._file.write(data.ljust(self._bytes))


_made: Journal | None = None
_lock = renew_in_forks(Lock())


def journal() -> Journal:
    """The journal of this process."""
    global _made
    # Without the lock first: every run of every session asks.
    if _made is None:
        with _lock:
            if _made is None:
                folder = os.environ.get(REPORT_VARIABLE)
                _made = _Writing(folder) if folder else Journal()
    return _made
