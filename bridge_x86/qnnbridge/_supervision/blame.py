"""Assign blame for the crash of a host: count points for models, run suspects alone, and keep the quarantine.

Only a request that the host had declared to be *inside native code* can have crashed the host; a request in a queue
cannot. The rules:

- A single suspect gets 1 point. Each of k suspects gets 1/k, and from then on each suspect runs alone
  (`IsolationLock`), so that the next death has only one suspect.
- A suspect that gives a good reply while it runs alone is cleared: its points for that death are removed. If the
  model was running when the host died, only a successful run clears it; a successful creation proves nothing. Each
  time a model becomes one of several suspects, the number of good replies that clears it doubles (1, 2, 4 ... 16),
  so that one lucky run does not clear a model that crashes the host only sometimes. A suspect that is not used for
  ten minutes is forgotten.
- No points are given if another process ended the host (SIGTERM, Ctrl+C, TerminateProcess with 1), if qnnbridge
  ended the host, or if the exit code is unknown. SIGKILL gives no points either, because random kills often hit the
  same model. The exception is a kill while the kernel's out-of-memory killer was active: the third such death in a
  row inside the same model, without a good reply of that model in between, gives points.
- A call that qnnbridge ended because it hung gives points like a crash, because a native call must return.

`Quarantine` keeps the points on disk, so that a new process does not repeat the crashes. The file has one record
("account") for each combination of model fingerprint, options, phase, and versions of ONNX Runtime, QNN and the
driver: other versions may have fixed the fault. Two points within ten minutes put the model in quarantine for a
day, or until the user clears it. A cache entry with one point is reported to each host, which removes the entry
from the cache and compiles the model again, so no call is refused. The file is authoritative: every change reads,
changes and replaces the whole file, so processes share it without a lock. (If two processes record a death in the
same millisecond, one record may be lost.) If the file cannot be written, this process keeps the accounts in memory.

Thread-safe. `Quarantine.check` runs before every call: a dictionary look-up, and a check of the file's date once a
second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from qnnbridge._diagnosis import write_whole
from qnnbridge._supervision.restart_policy import Clock
from qnnbridge._transport.channel import CallContext, CallTimedOut
from qnnbridge_os.native import Lock
from qnnbridge_os.shield import Changes
from qnnbridge_protocol.errors import ModelQuarantined
from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.settings import state_dir

if TYPE_CHECKING:
    from qnnbridge._diagnosis.exit_codes import ExitStatus


# Number of consecutive out-of-memory kills during calls of one model after which the model gets points.
KILLS_IN_A_ROW: Final = 3
# Maximum number of good replies that a suspect needs. The number is limited because a suspect blocks all other
# models while it runs alone.
MAX_REPLIES_ALONE: Final = 16

Why = Literal["died", "hung", "ended-by-us", "memory-ran-out"]


@dataclasses.dataclass(frozen=True, slots=True)
class NativeCall:
    """A call of a model or cache entry inside native code. phase: "creating", "compiling" or "running"."""

    fingerprint: str
    options_hash: str
    phase: str
    model: str = ""
    entry: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Points:
    """Points that one death adds to a model's account (record in the file); negative if the suspect was cleared."""

    call: NativeCall
    points: float


@dataclasses.dataclass
class _Isolated:
    """A suspect that must run alone.

    Attributes:
        needed: number of good replies until the model may run together with other models again.
        until: time of `time.monotonic` at which the isolation and the points expire.
    """

    needed: int
    shares: list[Points]
    until: float = 0.0


class Blame:
    """Assign deaths to models, and decide which models run alone."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._isolated: dict[str, _Isolated] = {}
        self._times_suspected: dict[str, int] = {}
        self._kills: dict[str, int] = {}
        # A fast call checks that both dicts are empty (`quiet`). The dicts are never replaced, because
        # `Host.slow_path_reasons` refers to them.
        self.cases: tuple[Sized, Sized] = (self._isolated, self._kills)

    @property
    def active(self) -> bool:
        """Whether any model must run alone. The property is read before every call, so it must be fast."""
        if self._isolated:
            now = time.monotonic()
            # Forget unused suspects, because no model may use the fast path while a suspect exists.
            for fingerprint in [name for name, one in self._isolated.copy().items() if one.until < now]:
                self.forget(fingerprint)
        return bool(self._isolated)

    @property
    def quiet(self) -> bool:
        """Whether no suspect and no kill is recorded, so that a good reply changes no account. The property is read
        after every call, so it must be fast."""
        return not (self._isolated or self._kills)

    def must_run_alone(self, fingerprint: str) -> bool:
        """Return whether this model must run alone, so that all other native calls wait."""
        return fingerprint in self._isolated

    def on_death(
        self, status: ExitStatus | None, suspects: Iterable[NativeCall], why: Why = "died"
    ) -> list[Points]:
        """Record the end of a host while `suspects` were inside native code; return the changes of their
        accounts."""
        # Count two calls of the same model as one suspect. Ignore a call without a fingerprint: the host died
        # before it had read the model, so the model's account is unknown.
        suspects = list({call.fingerprint: call for call in suspects if call.fingerprint}.values())
        with self._lock:
            if not suspects or why == "ended-by-us":
                return []
            # If the call hung, the exit code does not matter: qnnbridge ended the host because of the call.
            if why != "hung" and (status is None or not _may_be_its_fault(status)):
                if status is None or status.code.fault != "kill" or why != "memory-ran-out":
                    return []
                suspects = [call for call in suspects if self._killed_too_often(call)]
            # Divide one point among the suspects, because usually only one of them caused the death.
            share = 1.0 / len(suspects) if suspects else 0.0
            given = [Points(call, share) for call in suspects]
            if len(given) > 1:
                for points in given:
                    self._isolate(points)
            return given

    def on_good_reply(self, call: NativeCall) -> list[Points]:
        """Record a successful native call of a model. Return the changes of its account: points to deduct, usually
        none."""
        # Take no lock, because this method runs after every call. If a death is being recorded at this moment, the
        # next good reply clears the suspect instead.
        if not self._isolated and not self._kills:
            return []
        with self._lock:
            self._kills.pop(call.fingerprint, None)
            isolated = self._isolated.get(call.fingerprint)
            if isolated is None or (isolated.shares[-1].call.phase == "running" and call.phase != "running"):
                return []
            isolated.needed -= 1
            if isolated.needed > 0:
                return []
            del self._isolated[call.fingerprint]
            # Deduct the model's points for all deaths with several suspects. Points for deaths with only this model
            # remain.
            return [Points(share.call, -share.points) for share in isolated.shares]

    def forget(self, fingerprint: str) -> None:
        """Stop running the model alone, because it is in quarantine, or because its quarantine was cleared."""
        with self._lock:
            self._isolated.pop(fingerprint, None)
            self._times_suspected.pop(fingerprint, None)
            self._kills.pop(fingerprint, None)

    # --- methods that are called with the lock held ---

    def _killed_too_often(self, call: NativeCall) -> bool:
        self._kills[call.fingerprint] = self._kills.get(call.fingerprint, 0) + 1
        return self._kills[call.fingerprint] >= KILLS_IN_A_ROW

    def _isolate(self, share: Points) -> None:
        fingerprint = share.call.fingerprint
        before = self._times_suspected.get(fingerprint, 0)
        self._times_suspected[fingerprint] = before + 1
        isolated = self._isolated.setdefault(fingerprint, _Isolated(0, []))
        isolated.needed = min(MAX_REPLIES_ALONE, 2**before)
        isolated.shares.append(share)
        isolated.until = time.monotonic() + WINDOW_S


def _may_be_its_fault(status: ExitStatus) -> bool:
    # Exit codes of the loader are included, because native code binds some functions only at the first call, and a
    # function may be missing (exit code 127, 0xC0000139). Exit code 0 during native code means that native code
    # called exit().
    return status.code.blame or status.code.kind == "loader" or status.code.fault == "ok"


class IsolationLock:
    """Lock that runs calls of suspects alone, and all other calls together. Thread-safe."""

    def __init__(self, blame: Blame) -> None:
        self._blame = blame
        self._lock = Lock()
        self._changes: Changes[bool] = Changes()
        # Running calls, by thread and a unique key. The value is true for a call that runs alone. An interrupt
        # could make a counter wrong, but not a dict.
        self._inside: dict[tuple[int, object], bool] = {}
        self._waiting_alone: dict[tuple[int, object], None] = {}

    @contextlib.contextmanager
    def isolate(self, context: CallContext, deadline: float | None) -> Iterator[None]:
        """Hold the lock during one call. Raise `CallTimedOut` if the deadline expires before the call may start."""
        if not self._blame.active:
            yield
            return
        # Decide at the start: a model that becomes a suspect during the call runs alone from the next call on.
        alone = self._blame.must_run_alone(context.fingerprint)
        me = (threading.get_ident(), object())
        # Whether this call comes from a signal handler or finalizer that interrupted another call of the same
        # thread. Such a call must not wait for the interrupted call, which continues only after the handler has
        # ended.
        nested = any(me[0] == thread for thread, _ in [*self._inside, *self._waiting_alone])

        def enter() -> bool:
            with self._lock:
                # While a suspect's call waits to run alone, other calls wait, too. Otherwise a steady stream of
                # calls would delay the suspect forever.
                taken = self._inside if alone else (True in self._inside.values() or self._waiting_alone)
                if taken and not nested:
                    return False
                self._inside[me] = alone
                return True

        try:
            if alone:
                self._waiting_alone[me] = None
            if not self._changes.wait_for(
                enter, None if deadline is None else max(0.0, deadline - time.monotonic())
            ):
                raise CallTimedOut("not-started")
            self._waiting_alone.pop(me, None)
            yield
        finally:
            self._inside.pop(me, None)
            # Each statement of this block is a single C operation, which an exception of a signal handler cannot
            # interrupt (`qnnbridge_os.shield`).
            self._waiting_alone.pop(me, None)
            self._changes.notify()


# --- models that crashed hosts, kept on disk ---

# Points that put a model in quarantine: two deaths with one suspect, or four deaths with two suspects.
LIMIT_POINTS: Final = 2.0
# Number of points at which a cache entry is replaced: one death, because compiling again takes only seconds, while
# another death would affect all models.
ENTRY_LIMIT_POINTS: Final = 1.0
WINDOW_S: Final = 600.0
TTL_S: Final = 24 * 3600.0
RECHECK_S: Final = 1.0
MAX_ACCOUNTS: Final = 500
SCHEMA: Final = 1
# Tolerance for the sum of fractions such as 1/3 in floating point.
_ROUNDING: Final = 1e-6
# Start of the year 9999, the last year of `datetime`, in seconds since 1970.
_LAST_SECOND: Final = 253_370_764_800.0
# Maximum number of models whose source (path, size and dates) is stored.
_MAX_SOURCES: Final = 1000

# Identity of a model that no host has read yet: path (or hash of the bytes), size, number from dates and inode.
Source = tuple[str, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class DeathEntry:
    """Record of one death. when: seconds since 1970. exit: the exit code as a string. report: path of the crash
    report."""

    when: float
    points: float
    exit: str = ""
    report: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class QuarantineAccount:
    """Record of the deaths that a model caused.

    Attributes:
        since: start of the quarantine in seconds since 1970; ``None`` if the model is not in quarantine.
        source: path, size and dates of the model's file (hash, size and 0 for a model given as bytes), if known.
        entry: whether the account belongs to a cache entry instead of a model.
    """

    id: str
    fingerprint: str
    options_hash: str
    phase: str
    model: str
    versions: str
    deaths: tuple[DeathEntry, ...] = ()
    since: float | None = None
    source: Source | None = None
    entry: bool = False

    @property
    def points(self) -> float:
        return math.fsum(death.points for death in self.deaths)


Accounts = dict[str, QuarantineAccount]


class Quarantine:
    """File that records the models and cache entries that crashed hosts.

    Args:
        path: the file; default: ``quarantine.json`` in `state_dir`.
        versions: the host's versions of ONNX Runtime, QNN and driver, as one string. While it is '' (unknown), no
            model is refused, because an account may belong to other versions: check again after the host's HELLO.
    """

    def __init__(self, path: Path | None = None, versions: str = "", clock: Clock | None = None) -> None:
        self._path = path
        self.versions = versions
        self._clock: Clock = clock or Clock()
        self._lock = Lock()
        self._accounts: Accounts = {}
        self._refused: dict[tuple[str, str], list[QuarantineAccount]] = {}
        self._sources: dict[str, Source] = {}
        # Date, size and inode of the file when it was last read. If another process replaces the file, the inode
        # changes.
        self._stamp: tuple[int, int, int] | None = None
        self._next_check = -math.inf
        self._unsaved = False

    @property
    def path(self) -> Path:
        return self._path if self._path is not None else state_dir() / "quarantine.json"

    def check(self, fingerprint: str, options_hash: str) -> None:
        """Raise `ModelQuarantined` if the model is in quarantine for any phase."""
        self._refresh()
        for account in self._refused.get((fingerprint, options_hash), ()):
            # Do not refuse cache entries: the host removes the entry from the cache and compiles the model again.
            if account.versions == self.versions and not account.entry and not self._expired(account):
                raise self._error(account)

    @property
    def depends_on_versions(self) -> bool:
        """Whether `check` needs the host's versions, because any model is in quarantine."""
        self._refresh()
        return bool(self._refused)

    def check_source(self, was_read_from: Callable[[Source], bool], options_hash: str) -> None:
        """Raise `ModelQuarantined` if a model that no host has read yet is in quarantine. Path, size and dates
        identify the model."""
        for account in self._of_options(options_hash):
            if account.source is not None and was_read_from(account.source):
                raise self._error(account)

    def fingerprints(self, options_hash: str) -> tuple[str, ...]:
        """Return the fingerprints of refused models and blamed cache entries with these options and the versions of
        the host."""
        return tuple(dict.fromkeys(account.fingerprint for account in self._of_options(options_hash)))

    def remember_source(self, fingerprint: str, source: Source) -> None:
        """Store the source (path, size and dates) of the model with this fingerprint, to recognize the model before
        a host reads it."""
        with self._lock:
            # Remove the item and insert it again, so that the dict is in order of use and the loop drops the source
            # that was not used for the longest time.
            self._sources.pop(fingerprint, None)
            self._sources[fingerprint] = source
            while len(self._sources) > _MAX_SOURCES:
                del self._sources[next(iter(self._sources))]

    def _of_options(self, options_hash: str) -> list[QuarantineAccount]:
        self._refresh()
        return [
            account
            for (_, options), accounts in self._refused.items()
            if options == options_hash
            for account in accounts
            if account.versions == self.versions and not self._expired(account)
        ]

    def add(
        self, points: Points, *, exit_text: str = "", report: Path | str | None = None
    ) -> QuarantineAccount | None:
        """Add the points of a death to a model's account, or deduct the points of a cleared suspect.

        Returns:
            The account if it is in quarantine now.
        """
        # The same model, options, phase and versions have the same account id, so that points are deducted from the
        # account to which they were added.
        key = (points.call.fingerprint, points.call.options_hash, points.call.phase, self.versions)
        # Use only eight digits, because users type the id (`qnnbridge quarantine clear`).
        account_id = hashlib.sha256("\n".join(key).encode("utf-8", "surrogatepass")).hexdigest()[:8]
        now = self._clock.wall()
        source = self._sources.get(points.call.fingerprint)
        death = DeathEntry(now, points.points, exit_text, os.fspath(report) if report is not None else None)

        def book(accounts: Accounts) -> None:
            call = points.call
            account = accounts.get(account_id)
            if account is None or self._expired(account):
                account = QuarantineAccount(
                    account_id, call.fingerprint, call.options_hash, call.phase, call.model, self.versions
                )
                account = dataclasses.replace(account, entry=call.entry)
            deaths = _without(account.deaths, -death.points) if death.points < 0 else (*account.deaths, death)
            # Use `abs`, because the clock may have been set back: future dates count like past dates.
            deaths = tuple(d for d in deaths if account.since is not None or abs(now - d.when) <= WINDOW_S)
            account = dataclasses.replace(account, deaths=deaths)
            if source is not None and account.source is None:
                account = dataclasses.replace(account, source=source)
            limit = ENTRY_LIMIT_POINTS if account.entry else LIMIT_POINTS
            guilty = account.points >= limit - _ROUNDING
            since = (account.since if account.since is not None else now) if guilty else None
            accounts.pop(account_id, None)
            if deaths:
                accounts[account_id] = dataclasses.replace(account, since=since)

        with self._lock:
            self._change(book)
            account = self._accounts.get(account_id)
        return account if account is not None and account.since is not None else None

    def accounts(self) -> list[QuarantineAccount]:
        """Return the accounts of all models in quarantine, also for other software versions, newest first."""
        self._refresh(now=True)
        found = [a for a in self._accounts.values() if a.since is not None and not (a.entry or self._expired(a))]
        return sorted(found, key=lambda account: -(account.since or 0.0))

    def until(self, account: QuarantineAccount) -> datetime.datetime:
        """Return when the quarantine expires."""
        return datetime.datetime.fromtimestamp((account.since or 0.0) + TTL_S, datetime.timezone.utc)

    def clear(self, account_id: str | None = None) -> int:
        """Delete the accounts of one model (given by an account id or its beginning), or all accounts. Return the
        number of deleted accounts.

        A model has a separate account for each phase. Deleting one account also deletes the other accounts of the
        same model and options.
        """
        cleared: list[str] = []

        def forget(accounts: Accounts) -> None:
            named = [a for a in accounts.values() if account_id is None or a.id.startswith(account_id)]
            models = {(a.fingerprint, a.options_hash) for a in named}
            cleared.extend(a.id for a in accounts.values() if (a.fingerprint, a.options_hash) in models)
            for name in cleared:
                accounts.pop(name, None)

        with self._lock:
            self._change(forget)
        return len(cleared)

    # --- the file ---

    def _refresh(self, *, now: bool = False) -> None:
        """Read the file again if it has changed. Check for a change at most once a second, unless `now` is true."""
        if not now and self._clock.monotonic() < self._next_check:
            return
        with self._lock:
            self._next_check = self._clock.monotonic() + RECHECK_S
            # Do not read the file while it cannot be written, because the accounts in memory are newer.
            if self._unsaved:
                return
            stamp = self._file_stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                self._use(self._read())

    def _file_stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _change(self, change: Callable[[Accounts], None]) -> None:
        """Read, change and write the file. The lock must be held."""
        accounts = dict(self._accounts) if self._unsaved else self._read()
        change(accounts)
        accounts = self._prune(accounts)
        try:
            data = {"schema": SCHEMA, "accounts": [dataclasses.asdict(one) for one in accounts.values()]}
            write_whole(self.path, json.dumps(data, indent=1))
            self._unsaved = False
            self._stamp = self._file_stamp()
        except OSError:
            self._unsaved = True
        self._use(accounts)

    def _read(self) -> Accounts:
        try:
            return _decode(self.path.read_text(encoding="utf-8"))
        # A file with arbitrary contents can cause all these exceptions; those of `json` are `ValueError`.
        except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
            return {}  # The file is missing or damaged: no model is in quarantine.

    def _use(self, accounts: Accounts) -> None:
        refused: dict[tuple[str, str], list[QuarantineAccount]] = {}
        for account in accounts.values():
            if account.since is not None:
                refused.setdefault((account.fingerprint, account.options_hash), []).append(account)
        self._accounts, self._refused = accounts, refused

    def _prune(self, accounts: Accounts) -> Accounts:
        now = self._clock.wall()
        kept = [
            account
            for account in accounts.values()
            if not self._expired(account)
            and (account.since is not None or any(abs(now - death.when) <= WINDOW_S for death in account.deaths))
        ]
        kept.sort(key=lambda account: account.deaths[-1].when if account.deaths else 0.0)
        return {account.id: account for account in kept[-MAX_ACCOUNTS:]}

    def _expired(self, account: QuarantineAccount) -> bool:
        """Return whether a quarantine has expired. A start in the far future counts as expired: it comes from a
        wrong clock and would block a model for years."""
        return account.since is not None and abs(self._clock.wall() - account.since) >= TTL_S

    def _error(self, account: QuarantineAccount) -> ModelQuarantined:
        reports = [death.report for death in account.deaths if death.report]
        until = self.until(account)
        what = account.model or account.fingerprint[:12]
        return ModelQuarantined(
            f"{what} is in quarantine: it crashed the host {len(account.deaths)} times while {account.phase}.",
            cause=f"The model would probably crash the host again. Last exit code: "
            f"{account.deaths[-1].exit or 'unknown'}.",
            evidence=[f"crash report: {reports[-1]}"] if reports else (),
            fix=f"To use the model again: `qnnbridge quarantine clear {account.id}`; the quarantine ends by itself "
            f"at {until:%Y-%m-%d %H:%M} UTC, or with other versions of ONNX Runtime, QNN or the driver.",
            details={
                "id": account.id,
                "model": account.model,
                "fingerprint": account.fingerprint,
                "phase": account.phase,
                "deaths": [dataclasses.asdict(death) for death in account.deaths],
                "report": reports[-1] if reports else None,
                "until": until.isoformat(timespec="seconds"),
            },
        )


def _without(deaths: tuple[DeathEntry, ...], points: float) -> tuple[DeathEntry, ...]:
    """Return the deaths without the latest death that has this number of points."""
    for index in reversed(range(len(deaths))):
        if abs(deaths[index].points - points) < _ROUNDING:
            return deaths[:index] + deaths[index + 1 :]
    return deaths


def _decode(text: str) -> Accounts:
    data: dict[str, Any] = json.loads(text)
    if data["schema"] != SCHEMA:
        return {}
    accounts: Accounts = {}
    for item in data["accounts"]:
        account = read_document(QuarantineAccount, item, "an account")
        times = [account.since or 0.0, *(n for death in account.deaths for n in (death.when, death.points))]
        # Ignore accounts with NaN or with times out of range, which a damaged file may contain.
        if all(abs(time) <= _LAST_SECOND for time in times) and (account.deaths or account.since is None):
            accounts[account.id] = account
    return accounts
