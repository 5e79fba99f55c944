"""What the host says of models, of its cache and of compilations, and what the application sends it about them.

Also the check of a model's path, before anything is started for it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from qnnbridge_protocol.errors import ContextUnusable, InvalidArgument, InvalidProtobuf, NoSuchFile
from qnnbridge_protocol.shown import Shown, more
from qnnbridge_protocol.specs import NodeInfo, Placement, Record, record

if TYPE_CHECKING:
    from qnnbridge_protocol.shown import Fact

CacheState = Literal["hit", "miss", "off"]
NoticeKind = Literal["cache", "model", "once", "done"]
EntryFaultKind = Literal["crashed", "damaged", "differs", "foreign", "unloadable"]
ProgressStage = Literal["waiting", "rewriting", "compiling", "validating"]
DifferenceLevel = Literal["ok", "unusual", "wrong"]
NumbersState = Literal["agrees", "differs", "unknown", "pending", "off"]


# --- the cache -------------------------------------------------------------------------------------------


@record(frozen=True, repr=False, eq=False)
class CacheSettings(Record):
    """Where the cache is and what a session wants of it, as the application's environment says.

    folder: absolute path of the whole cache. wanted: the application's word for this session, ``None`` leaves it to
    the cache. enabled: unless the environment forbids it. max_bytes: of all entries together.
    min_model_bytes: smaller models are not cached unless `wanted` is true.
    problems: variables that say nothing usable, as text; their defaults are used.
    load_only: nothing is compiled; a session that has no entry is made from its model.
    """

    folder: str
    wanted: bool | None = None
    enabled: bool = True
    max_bytes: int = 10 * 1024**3
    min_model_bytes: int = 16 * 1024
    problems: tuple[str, ...] = ()
    load_only: bool = False

    @property
    def in_use(self) -> bool:
        return self.enabled and self.wanted is not False


@record(frozen=True, repr=False, eq=False)
class CacheStatus(Shown, Record):
    """What the cache did for a session.

    state: "hit", loaded a compiled model of the cache; "miss", compiled into the cache, then loaded from there;
    "off", made from the model itself. reason: why, as text. key: of the entry. compile_seconds: what compiling
    took, now or then.
    """

    state: CacheState
    reason: str = ""
    key: str | None = None
    compile_seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"cache {self.state}", ""
        seconds = "" if self.compile_seconds is None else f"compiled in {self.compile_seconds:.1f} s"
        yield from more([self.reason, seconds])


@record(frozen=True, repr=False, eq=False)
class CacheReply(CacheStatus):
    """A `CacheStatus` as it travels, with what the application keeps beside it.

    id: of the entry that was loaded. set_aside: number of entries that were set aside on the way.
    problem: why the cache as a whole cannot be used, ``None`` if it can.
    """

    id: str | None = None
    set_aside: int = 0
    problem: str | None = None

    @property
    def status(self) -> CacheStatus:
        return CacheStatus(self.state, self.reason, self.key, self.compile_seconds)


@record(frozen=True, repr=False, eq=False)
class EntryFault(Record):
    """A cache entry that the application saw kill a host: the host sets it aside.

    key, id: of the entry, as PHASE named it. reason: the message of the crash.
    """

    key: str
    id: str
    fault: EntryFaultKind
    reason: str

    def __post_init__(self) -> None:
        # `field_types` lets any text pass for a Literal, since a newer peer may have more words. The host
        # acts on this one, so a word that it does not know is refused.
        if self.fault not in ("crashed", "damaged", "differs", "foreign", "unloadable"):
            raise TypeError(f"no fault of an entry: {self.fault!r}")


@record(frozen=True, repr=False, eq=False)
class Notice(Record):
    """A sentence for a person. kind: "cache" (a warning) and "once" are said once in a process; "done" is no
    warning."""

    kind: NoticeKind
    text: str


# --- numbers ---------------------------------------------------------------------------------------------


@record(frozen=True, repr=False, eq=False)
class JudgedNumbers(Record):
    """An output beside the CPU's, judged.

    state: "agrees", "differs", or "unknown". values: the number of values that were compared. snr_db: of all
    values, at most 200; ``None`` if nothing was compared. max_abs: largest difference. max_relative: the same,
    relative to the largest magnitude on the CPU. off: the share of values that differ by more than 5 % of the
    range; of integers, that differ. decisions: the share of decisions that are the same (the class with the
    largest value, the side of 0.5 of probabilities, objects, detections); ``None`` for none. lost: values that are
    NaN or infinite, and finite on the CPU. reason: as text, for what does not agree, and for what agrees by its
    decisions alone. part: of an output that mixes scales, the columns whose SNR it is; empty for all values.
    """

    state: NumbersState
    values: int = 0
    snr_db: float | None = None
    max_abs: float = 0.0
    max_relative: float = 0.0
    off: float = 0.0
    decisions: float | None = None
    lost: int = 0
    reason: str = ""
    part: str = ""


@record(frozen=True, repr=False, eq=False)
class OutputNumbers(Shown, JudgedNumbers):
    """The numbers of one output of a session. output: its name."""

    output: str = ""

    def __str__(self) -> str:
        if self.snr_db is None:
            return f"{self.output}: {self.reason or self.state}"
        where = f" in {self.part}" if self.part else ""
        text = f"{self.output}: SNR {self.snr_db:.1f} dB{where}, largest difference {self.max_abs:.3g}"
        return f"{text}, {self.off:.2%} of {self.values} values are off"

    def _shown_facts(self) -> Iterator[Fact]:
        yield str(self), "problem" if self.state == "differs" else ""


# The states of several reports of a model: the first of these that any report has is the state of the model.
WORST_FIRST: Final = ("differs", "unknown", "pending", "agrees", "off")
# The inputs of a comparison that no call asked for, as text.
MADE_UP: Final = "made-up inputs"
# Beyond this number nothing is compared any more, and no number grows beyond what JSON and msgpack can hold.
MOST_COMPARED: Final = 40
MOST_CALLS: Final = 2**53


@record(frozen=True, repr=False, eq=False)
class NumbersReport(Shown, Record):
    """Whether a session computes what the CPU computes.

    state: "agrees"; "differs"; "unknown", it could not be shown, `reason` says why; "pending", it is not known
    yet; "off", it was not asked for. outputs: the worst first. inputs: on which it was compared. when: seconds
    since 1970. kept: it was found before, with the same model, options, chip and versions. cause: operators
    that are known to be computed wrong, as text. calls: number of calls, as far as they were counted, of all
    sessions of the compiled model. compared: number of those calls that were compared.
    """

    state: NumbersState
    outputs: tuple[OutputNumbers, ...] = ()
    inputs: str = ""
    reason: str = ""
    seconds: float = 0.0
    when: float = 0.0
    kept: bool = False
    cause: str = ""
    calls: int = 0
    compared: int = 0

    def __bool__(self) -> bool:
        return self.state == "agrees"

    @property
    def next_call(self) -> int:
        """The number of the call that is compared next: the first, 2nd, 4th, 8th and so on."""
        return 2**self.compared if self.compared < MOST_COMPARED else MOST_CALLS

    def after(self, earlier: NumbersReport) -> NumbersReport:
        """Return what this comparison and all earlier ones show together.

        A difference stays a difference, unless only made-up inputs had shown it and a call agrees. Of several that
        agree, the worst numbers count. Counts are the larger ones of both; time and date are those of this one.
        """
        shown = self
        if earlier.state == "differs" and self.state != "differs":
            cleared = self.state == "agrees" and earlier.inputs == MADE_UP and self.inputs != MADE_UP
            shown = self if cleared else earlier
        elif earlier.state == "agrees":
            worse = self.state == "agrees" and (earlier.snr_db or 0.0) < (self.snr_db or 0.0)
            shown = earlier if worse or self.state == "unknown" else self
        return dataclasses.replace(
            shown,
            seconds=self.seconds,
            when=self.when,
            kept=self.kept,
            calls=max(self.calls, earlier.calls),
            compared=max(self.compared, earlier.compared),
        )

    @property
    def worst(self) -> OutputNumbers | None:
        return self.outputs[0] if self.outputs else None

    @property
    def snr_db(self) -> float | None:
        """Of the worst output."""
        return self.outputs[0].snr_db if self.outputs else None

    @property
    def max_abs(self) -> float:
        """The largest difference of all outputs."""
        return max((one.max_abs for one in self.outputs), default=0.0)

    @property
    def summary(self) -> str:
        """The state, with the number of calls that it rests on: ``agrees on 3 of 7 calls``."""
        if self.state == "agrees" and self.compared:
            return f"agrees on {self.compared} of {self.calls:,} call{'' if self.calls == 1 else 's'}"
        return self.state

    def __str__(self) -> str:
        head = f"{self.summary}: {self.reason}" if self.reason else self.summary
        return "\n".join([head, *(f"  {one}" for one in self.outputs)])

    @property
    def verdict(self) -> str:
        """The verdict of the numbers, for a person: ``agree on 3 of 7 calls``, ``differ``, ``not compared``."""
        words = {"agrees": self.summary.replace("agrees", "agree"), "differs": "differ", "off": "not compared"}
        return words.get(self.state, self.state)

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"numbers {self.verdict}", "problem" if self.state == "differs" else ""
        yield from more([self.reason, *map(str, self.outputs), self.cause])


BEING_COMPARED: Final = "it is being compared with the CPU"


def is_compared(report: NumbersReport) -> bool:
    """Return whether a comparison in the background will replace this report."""
    return report.state == "pending" and report.reason == BEING_COMPARED


# --- models ----------------------------------------------------------------------------------------------


@record(frozen=True, repr=False, eq=False)
class ModelIdentity(Record):
    """Which model a session was made from.

    fingerprint: SHA-256 of the model with the files it names. label: what messages call it.
    files: path, size in bytes and date in nanoseconds of each file, the model's own first.
    compiled: it is an EPContext model.
    """

    fingerprint: str
    label: str
    files: tuple[tuple[str, int, int], ...] = ()
    compiled: bool = False


@record(frozen=True, repr=False, eq=False)
class ModelDescription(Record):
    """What a model file says without being loaded.

    readable: it is an ONNX model that could be read; else the rest is empty. inputs: without initializers.
    external: names of the files beside the model. operators: names of its operators, with their domain if that is
    not ONNX's own. metadata: what it says of itself, by ONNX Runtime's names, and its custom metadata.
    """

    model: ModelIdentity
    readable: bool = True
    inputs: tuple[NodeInfo, ...] = ()
    outputs: tuple[NodeInfo, ...] = ()
    initializers: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


# --- compiling -------------------------------------------------------------------------------------------


# How the remark on an output begins of which the inputs prove nothing.
NOT_SHOWN: Final = "not shown by these inputs"


@record(frozen=True, repr=False, eq=False)
class Difference(Record):
    """Of one output over all inputs that were tried.

    max_abs: largest difference. max_rel: the same divided by the largest magnitude of the reference; for integers
    the fraction that differs. cosine: of both as vectors; ``None`` if one of them is all zeros. inputs: those with
    the largest difference. remark: what is unusual or wrong, as text.
    """

    output: str
    level: DifferenceLevel
    max_abs: float
    max_rel: float
    cosine: float | None
    inputs: str
    remark: str | None = None

    @property
    def is_not_shown(self) -> bool:
        """The inputs prove nothing of this output."""
        return self.level == "unusual" and (self.remark or "").startswith(NOT_SHOWN)


@record(frozen=True, repr=False, eq=False)
class Validation(Shown, Record):
    """The comparison of a compiled model with the original on the CPU.

    skipped: why it was not done, ``None`` if it was. tolerance: as text. seconds: it took.
    """

    differences: tuple[Difference, ...] = ()
    tolerance: str = ""
    skipped: str | None = None
    seconds: float = 0.0

    @property
    def worst(self) -> Difference | None:
        """Of the output that differs most, measured against its own values."""
        return max(self.differences, key=lambda one: (one.max_rel, one.max_abs), default=None)

    @property
    def max_abs(self) -> float:
        """Of the `worst` output, as is `max_rel`: outputs of other sizes are not compared with each other."""
        return self.worst.max_abs if self.worst is not None else 0.0

    @property
    def max_rel(self) -> float:
        return self.worst.max_rel if self.worst is not None else 0.0

    @property
    def cosine(self) -> float | None:
        """The worst one."""
        return min((one.cosine for one in self.differences if one.cosine is not None), default=None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The unusual differences, as text."""
        return tuple(f"{one.output} ({one.inputs}): {one.remark}" for one in self.differences if one.remark)

    def numbers(self, inputs: str) -> NumbersReport | None:
        """The same as the report of a session; ``None`` if nothing was compared. inputs: whose comparison it is."""
        # "unusual" deserves a remark and is within the tolerance, so it agrees, unless the inputs prove nothing.
        states: dict[str, NumbersState] = {"ok": "agrees", "wrong": "differs"}
        outputs = [
            OutputNumbers(
                states.get(one.level, "unknown" if one.is_not_shown else "agrees"),
                max_abs=one.max_abs,
                max_relative=one.max_rel,
                reason=one.remark or "",
                output=one.output,
            )
            for one in self.differences
        ]
        order = ("differs", "unknown", "agrees")
        outputs.sort(key=lambda one: order.index(one.state))
        if self.skipped or not outputs:
            return None
        worst = outputs[0]
        reason = "" if worst.state == "agrees" else f"{worst.output}: {worst.reason}"
        return NumbersReport(worst.state, tuple(outputs), inputs, reason, self.seconds, kept=True)

    def _shown_facts(self) -> Iterator[Fact]:
        report = self.numbers("")
        if report is None:
            yield "not compared with the CPU", "problem"
            yield from more([self.skipped or ""])
        else:
            yield from report._shown_facts()
            yield from more([f"allowed for {self.tolerance}" if self.tolerance else ""])

    def to_json(self) -> dict[str, Any]:
        return {
            "skipped": self.skipped,
            "tolerance": self.tolerance,
            "worst_output": self.worst.output if self.worst is not None else None,
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "cosine": self.cosine,
            "seconds": round(self.seconds, 3),
            "outputs": [one.to_wire() for one in self.differences],
        }


@record(frozen=True, repr=False, eq=False)
class CompileResult(Shown, Record):
    """A compiled model in its place.

    path: of the .onnx file, which a session opens. blob: of the context binary, ``None`` if embedded.
    manifest: of the file that says what belongs together. source: name of the original.
    placement: of the original's nodes; ``None`` if the compiler died before it reported it.
    soc_model: what it was compiled for, ``None``: the chip of the host. versions: of what compiled it.
    compile_seconds: inside of the compiler. seconds: all of it, with the starts of processes and the validation.
    warnings: what one should know, in sentences.
    """

    path: str
    blob: str | None
    manifest: str
    source: str
    size_bytes: int
    placement: Placement | None
    soc_model: str | None
    provider_options: Mapping[str, str]
    versions: Mapping[str, str]
    validation: Validation
    compile_seconds: float
    seconds: float
    died_at_teardown: bool = False
    warnings: tuple[str, ...] = ()

    def _shown_name(self) -> str:
        return os.path.basename(self.path)

    def _shown_facts(self) -> Iterator[Fact]:
        if self.placement is not None:
            yield from self.placement._shown_facts()
        yield from self.validation._shown_facts()
        yield f"{self.size_bytes / 1e6:.1f} MB", ""
        yield f"compiled in {self.compile_seconds:.1f} s", ""
        for warning in self.warnings:
            yield warning, "more"

    def to_json(self) -> dict[str, Any]:
        return {
            **self.to_wire(),
            "validation": self.validation.to_json(),
            "compile_seconds": round(self.compile_seconds, 3),
            "seconds": round(self.seconds, 3),
        }


# Of a folder that `qnnbridge prepare` made, and of one that it has not finished.
PREPARED_MANIFEST: Final = "manifest.json"
PREPARE_JOURNAL: Final = ".qnnbridge-prepare.json"


def absolute_model_path(given: str | os.PathLike[str], *, prepared: bool = False) -> str:
    """Return the absolute path of an existing model file.

    Args:
        given: the path as the application gave it.
        prepared: whether a folder that `qnnbridge prepare` made is a model, too.

    Raises:
        InvalidArgument: the path is no valid Unicode, so it cannot travel.
        InvalidProtobuf: it is a folder.
        NoSuchFile: it cannot be looked at.
        ContextUnusable: `qnnbridge prepare` has not finished the folder.
    """
    shown = os.fsdecode(given)
    path = os.path.abspath(shown)
    # After `abspath`: the name of the working folder may be what cannot travel.
    check_travels(path)
    try:
        os.stat(path)  # says why, if there is none
    # ValueError: there is a NUL in the path, or the locale has no bytes for it (UnicodeEncodeError).
    except (OSError, ValueError) as error:
        raise unreadable(shown, path, error) from None
    if os.path.isdir(path) and not (prepared and os.path.isfile(os.path.join(path, PREPARED_MANIFEST))):
        raise (
            folder_refused(shown, path)
            if prepared
            else InvalidProtobuf(
                f"{shown} is a folder, not a model.",
                fix="Give the path of the .onnx file in it.",
                details={"path": path},
            )
        )
    return path


def folder_refused(shown: str, path: str) -> InvalidProtobuf | ContextUnusable:
    """Return the error for a folder without the manifest of `qnnbridge prepare`, where a prepared one is a model.

    shown: the path as the application gave it.
    """
    if os.path.isfile(os.path.join(path, PREPARE_JOURNAL)):
        return ContextUnusable(
            f"The prepared folder {shown} cannot be used: it has no {PREPARED_MANIFEST}.",
            cause="`qnnbridge prepare` writes that file last, so its work was interrupted or still runs.",
            fix="Call `qnnbridge prepare` again with the same arguments; it continues where it stopped.",
            details={"path": path},
        )
    return InvalidProtobuf(
        f"{shown} is a folder, not a model.",
        fix="Give the path of the .onnx file in it, or a folder that `qnnbridge prepare` made.",
        details={"path": path},
    )


def check_travels(path: str) -> None:
    """Raises `InvalidArgument` for a path that is no valid Unicode."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        # Python keeps bytes that its encoding cannot decode as lone surrogates, which UTF-8 has no form for.
        named = _name_in_utf8(path)
        if named is not None:
            raise InvalidArgument(
                f"The path {named!a} cannot be used in this locale.",
                cause=f"Its bytes are UTF-8, and this Python reads {sys.getfilesystemencoding()}: {_locale()}.",
                fix=_USE_UTF8,
                details={"path": named},
            ) from None
        shown = path.encode("utf-8", "backslashreplace").decode()
        raise InvalidArgument(
            f"The path {shown} is not valid Unicode.",
            cause="It has bytes that are no UTF-8 (or half of a UTF-16 pair), so it cannot be sent to the host.",
            fix="Rename the file or the folder, or give the model as bytes.",
            details={"path": shown},
        ) from None


_USE_UTF8 = "Start the application with PYTHONUTF8=1, or in a locale of UTF-8 (LC_ALL=C.UTF-8)."


def _name_in_utf8(path: str) -> str | None:
    """What the bytes of the path mean in UTF-8, if this Python reads them in another way."""
    try:
        # `fsencode` gives the bytes of the disk back, whatever the locale made of them.
        name = os.fsencode(path).decode("utf-8")
    except UnicodeError:
        return None
    return None if name == path else name


def _locale() -> str:
    """The variables of the locale, the strongest first."""
    named = [f"{name}={os.environ[name]}" for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)]
    return ", ".join(named) or "no locale is set"


def unreadable(shown: str, path: str, error: OSError | ValueError) -> NoSuchFile:
    """The error for a model that cannot be read. shown: the path as the application gave it."""
    if isinstance(error, UnicodeEncodeError):
        return NoSuchFile(
            f"The model {shown!a} cannot be read in this locale.",
            cause=f"{sys.getfilesystemencoding()} has no bytes for its name: {_locale()}.",
            fix=_USE_UTF8,
            details={"path": path},
        )
    return NoSuchFile(
        f"The model {shown} cannot be read.",
        cause=f"{getattr(error, 'strerror', None) or error} (looked for {path}).",
        fix="Check the path; a relative one counts from the application's current folder.",
        details={"path": path},
    )
