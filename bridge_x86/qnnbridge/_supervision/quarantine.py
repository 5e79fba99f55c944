"""Models that kill hosts, kept on disk so that a new process does not start the killing again.

An account belongs to (model fingerprint, options, phase) under one set of versions of ONNX Runtime, QNN and the
driver: other versions may have cured it. Two points within ten minutes put it in quarantine for a day, or until
the user clears it. An entry of the cache is named to hosts from its first point on: they set it aside and compile
its model again, which is no refusal. The file is the truth: every change reads it, changes it and replaces it
whole, so processes can share it without a lock (at worst one of two deaths in the same millisecond is lost). If it
cannot be written, this process remembers by itself.

Any thread. `check` is asked before every call: a dictionary look-up, and once a second a look at the file's date.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from qnnbridge._diagnosis import state_dir, write_whole
from qnnbridge._supervision.blame import NativeCall, Points
from qnnbridge._supervision.restart_policy import Clock, RealClock
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import ModelQuarantined
from qnnbridge_protocol.field_types import read_document

# Two deaths with it alone inside native code, or four with one other model beside it.
LIMIT_POINTS: Final = 2.0
# An entry of the cache is replaced at once: compiling again costs seconds, another death costs all models
# theirs.
ENTRY_LIMIT_POINTS: Final = 1.0
WINDOW_S: Final = 600.0
TTL_S: Final = 24 * 3600.0
RECHECK_S: Final = 1.0
MAX_ACCOUNTS: Final = 500
SCHEMA: Final = 1
# Three shares of 1/3 are less than 1 in floating point.
_ROUNDING: Final = 1e-6
# The beginning of the year 9999, the last that `datetime` has, in seconds since 1970.
_LAST_SECOND: Final = 253_370_764_800.0
# Number of models that are remembered by their source.
_MAX_SOURCES: Final = 1000


# path, size in bytes, date in nanoseconds
Source = tuple[str, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class DeathEntry:
    """when: seconds since 1970. exit: the code as text. report: path of the crash report."""

    when: float
    points: float
    exit: str = ""
    report: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class QuarantineAccount:
    """What a model has done.

    since: when it was put in quarantine (seconds since 1970), ``None`` if it is not. source: path, size and dates
    of the model's file (hash, size and 0 of a model given as bytes), as far as known. entry: an entry of the cache,
    not a model.
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
    """The file of models and entries that killed hosts.

    path: the file; default ``quarantine.json`` in `state_dir`. versions: one text that names the versions of ONNX
    Runtime, QNN and driver of the host. Before they are known (empty) nothing is refused, because an entry may be
    of other versions: ask again once the host has said HELLO.
    """

    def __init__(self, path: Path | None = None, versions: str = "", clock: Clock | None = None) -> None:
        self._path = path
        self.versions = versions
        self._clock: Clock = clock or RealClock()
        self._lock = Lock()
        self._accounts: Accounts = {}
        self._refused: dict[tuple[str, str], list[QuarantineAccount]] = {}
        self._sources: dict[str, Source] = {}
        # Date, size and inode of the file as last read: other processes replace it whole, which gives a new
        # inode.
        self._stamp: tuple[int, int, int] | None = None
        self._next_look = -math.inf
        self._unsaved = False

    @property
    def path(self) -> Path:
        return self._path if self._path is not None else state_dir() / "quarantine.json"

    def check(self, fingerprint: str, options_hash: str) -> None:
        """Raises `ModelQuarantined` if the model is in quarantine, in whatever phase it killed."""
        if self._clock.monotonic() >= self._next_look:
            self._look()
        for account in self._refused.get((fingerprint, options_hash), ()):
            # An entry is never refused here: the host sets it aside and compiles the model again.
            if account.versions == self.versions and not account.entry and not self._expired(account):
                raise self._error(account)

    @property
    def depends_on_versions(self) -> bool:
        """Whether it matters which versions the host has: a model is in quarantine, under any."""
        if self._clock.monotonic() >= self._next_look:
            self._look()
        return bool(self._refused)

    def check_source(self, was_read_from: Callable[[Source], bool], options_hash: str) -> None:
        """Raises `ModelQuarantined` if the source of a model that was not read yet is in quarantine."""
        for account in self._of_options(options_hash):
            if account.source is not None and was_read_from(account.source):
                raise self._error(account)

    def fingerprints(self, options_hash: str) -> tuple[str, ...]:
        """All models that are refused, and entries that are set aside, with these options and the versions of the
        host."""
        return tuple(dict.fromkeys(account.fingerprint for account in self._of_options(options_hash)))

    def remember_source(self, fingerprint: str, source: Source) -> None:
        """By what a model with this fingerprint is recognized before it is read."""
        with self._lock:
            # Taken out and put in again: the dict keeps the order of use, and the oldest is dropped.
            self._sources.pop(fingerprint, None)
            self._sources[fingerprint] = source
            while len(self._sources) > _MAX_SOURCES:
                del self._sources[next(iter(self._sources))]

    def _of_options(self, options_hash: str) -> list[QuarantineAccount]:
        if self._clock.monotonic() >= self._next_look:
            self._look()
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
        """Book what a death adds to a model's account, or an acquittal takes off.

        Gives the account if it is in quarantine now.
        """
        # Points of an acquittal find their account by the same id, as long as the versions are the same.
        account_id = _account_id(points.call, self.versions)
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
            # `abs`: after the clock was set back, a death in the future is as far away as one in the past.
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
        """All models in quarantine, of all versions, newest first."""
        self._look()
        found = [a for a in self._accounts.values() if a.since is not None and not (a.entry or self._expired(a))]
        return sorted(found, key=lambda account: -(account.since or 0.0))

    def until(self, account: QuarantineAccount) -> datetime.datetime:
        """When the quarantine ends by itself."""
        return datetime.datetime.fromtimestamp((account.since or 0.0) + TTL_S, datetime.timezone.utc)

    def clear(self, account_id: str | None = None) -> int:
        """Forget one model (by its id or the beginning of it), or all. How many were forgotten.

        A model has an account for each phase; clearing one clears those of the same model with the same options.
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

    def _look(self) -> None:
        """Read the file again if it has changed."""
        with self._lock:
            self._next_look = self._clock.monotonic() + RECHECK_S
            # The file could not be written: this process's own accounts are the truth until it can.
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
        """Under the lock: read, change, write."""
        accounts = dict(self._accounts) if self._unsaved else self._read()
        change(accounts)
        accounts = self._prune(accounts)
        try:
            write_whole(self.path, _encode(accounts))
            self._unsaved = False
            self._stamp = self._file_stamp()
        except OSError:
            self._unsaved = True
        self._use(accounts)

    def _read(self) -> Accounts:
        try:
            return _decode(self.path.read_text(encoding="utf-8"))
        # All that reading a file of foreign contents may raise, json's errors included (`ValueError`).
        except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
            return {}  # absent or damaged: a damaged file accuses no model

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
        """A time in the far future is a clock that was wrong: it must not refuse a model for years."""
        return account.since is not None and abs(self._clock.wall() - account.since) >= TTL_S

    def _error(self, account: QuarantineAccount) -> ModelQuarantined:
        reports = [death.report for death in account.deaths if death.report]
        until = self.until(account)
        what = account.model or account.fingerprint[:12]
        return ModelQuarantined(
            f"{what} is in quarantine: it killed the host {len(account.deaths)} times while {account.phase}.",
            cause=f"It would most likely do it again. Last exit code: {account.deaths[-1].exit or 'unknown'}.",
            evidence=[f"crash report: {reports[-1]}"] if reports else (),
            fix=f"To try it again: `qnnbridge quarantine clear {account.id}`; it ends by itself "
            f"at {until:%Y-%m-%d %H:%M} UTC, and with other versions of ONNX Runtime, QNN or the driver.",
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


def _account_id(call: NativeCall, versions: str) -> str:
    key = "\n".join((call.fingerprint, call.options_hash, call.phase, versions))
    # Eight digits, because people type them (`qnnbridge quarantine clear`).
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _without(deaths: tuple[DeathEntry, ...], points: float) -> tuple[DeathEntry, ...]:
    """Without the last death that gave this many points."""
    for index in reversed(range(len(deaths))):
        if abs(deaths[index].points - points) < _ROUNDING:
            return deaths[:index] + deaths[index + 1 :]
    return deaths


def _encode(accounts: Accounts) -> str:
    data = {"schema": SCHEMA, "accounts": [dataclasses.asdict(account) for account in accounts.values()]}
    return json.dumps(data, indent=1)


def _decode(text: str) -> Accounts:
    data: dict[str, Any] = json.loads(text)
    if data["schema"] != SCHEMA:
        return {}
    accounts = [read_document(QuarantineAccount, item, "an account") for item in data["accounts"]]
    return {account.id: account for account in accounts if _is_sound(account)}


def _is_sound(account: QuarantineAccount) -> bool:
    """Whether its times can be reckoned with. JSON also has NaN and whole numbers without a limit."""
    times = [account.since or 0.0, *(number for death in account.deaths for number in (death.when, death.points))]
    return all(abs(time) <= _LAST_SECOND for time in times) and bool(account.deaths or account.since is None)
