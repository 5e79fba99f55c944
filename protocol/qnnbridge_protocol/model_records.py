"""Records about models, the cache and compilations that the host and the application exchange.

This module also checks a model's path, before a host is started for the model.
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
    """Settings of the cache for a session, from the application's environment.

    Attributes:
        folder: absolute path of the whole cache.
        wanted: whether the application requested the cache for this session; ``None``: the cache decides.
        enabled: False if the environment disables the cache.
        max_bytes: maximum total size of all entries.
        min_model_bytes: smaller models are not cached unless `wanted` is true.
        problems: messages about environment variables with unusable values, for which defaults are used.
        load_only: do not compile; if the cache has no entry for the model, create the session from the model
            itself.
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
    """Use of the cache for a session.

    Attributes:
        state: "hit": loaded a compiled model from the cache; "miss": compiled into the cache, then loaded from
            there; "off": created from the model itself.
        reason: reason for the state.
        key: key of the cache entry.
        compile_seconds: duration of the compilation; on a hit, of the one that created the entry.
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
    """A `CacheStatus` with further data for the application.

    Attributes:
        id: id of the entry that was loaded.
        set_aside: number of faulty entries that were moved out of the cache during the look-up.
        problem: reason why the whole cache is unusable; ``None`` if it is usable.
    """

    id: str | None = None
    set_aside: int = 0
    problem: str | None = None

    @property
    def status(self) -> CacheStatus:
        return CacheStatus(self.state, self.reason, self.key, self.compile_seconds)


@record(frozen=True, repr=False, eq=False)
class EntryFault(Record):
    """A cache entry that crashed a host. The next host moves the entry out of the cache.

    Attributes:
        key, id: key and id of the entry, from the PHASE frame.
        reason: message of the crash.
    """

    key: str
    id: str
    fault: EntryFaultKind
    reason: str

    def __post_init__(self) -> None:
        # `field_types` accepts any string for a Literal, since a newer peer may have more values. The host acts on
        # this value, so unknown values are refused here.
        if self.fault not in ("crashed", "damaged", "differs", "foreign", "unloadable"):
            raise TypeError(f"not a fault of an entry: {self.fault!r}")


@record(frozen=True, repr=False, eq=False)
class Notice(Record):
    """A sentence for people. The kind "done" is only logged; the other kinds are warnings, of which "once" and
    "cache" are shown only once per process."""

    kind: NoticeKind
    text: str


# --- comparisons with the CPU ----------------------------------------------------------------------------


@record(frozen=True, repr=False, eq=False)
class JudgedNumbers(Record):
    """Comparison of one output with the CPU's output, and the verdict.

    Attributes:
        state: "agrees", "differs", or "unknown".
        values: number of compared values.
        snr_db: signal-to-noise ratio of all values, at most 200; ``None`` if nothing was compared.
        max_abs, max_relative: largest difference, absolute and relative to the largest magnitude on the CPU.
        off: fraction of values that differ by more than 5 % of the range; for integers, the fraction that differ at
            all.
        decisions: fraction of equal decisions (the class with the largest value, probabilities above or below 0.5,
            objects, detections); ``None`` if the output contains no decisions.
        lost: number of values that are NaN or infinite but finite on the CPU.
        reason: explanation if the output does not agree, or if only its decisions agree.
        part: columns to which the SNR applies, if the columns of the output have different scales; '' for all
            columns.
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
    """Comparison of one output of a session. `output` is its name."""

    output: str = ""

    def __str__(self) -> str:
        if self.snr_db is None:
            return f"{self.output}: {self.reason or self.state}"
        where = f" in {self.part}" if self.part else ""
        text = f"{self.output}: SNR {self.snr_db:.1f} dB{where}, largest difference {self.max_abs:.3g}"
        return f"{text}, {self.off:.2%} of {self.values} values are off"

    def _shown_facts(self) -> Iterator[Fact]:
        yield str(self), "problem" if self.state == "differs" else ""


# States in the order of precedence: if a model has several reports, the combined state is the first of these that
# occurs.
WORST_FIRST: Final = ("differs", "unknown", "pending", "agrees", "off")
# Value of `inputs` for a comparison with generated inputs.
MADE_UP: Final = "made-up inputs"
# Maximum number of comparisons. After n comparisons, call 2**n is the next, and this number must fit in JSON and
# msgpack.
MOST_COMPARED: Final = 40
MOST_CALLS: Final = 2**53


@record(frozen=True, repr=False, eq=False)
class NumbersReport(Shown, Record):
    """Result of all comparisons of a session's outputs with the CPU's outputs.

    Attributes:
        state: "agrees"; "differs"; "unknown": impossible to decide, see `reason`; "pending": not known yet; "off":
            not requested.
        outputs: results of each output, the worst first.
        inputs: description of the compared inputs.
        when: time of the comparison in seconds since 1970.
        kept: whether the report comes from an earlier session with the same model, options, chip and versions.
        cause: description of operators in the model that QNN is known to compute wrong.
        calls: number of counted calls in all sessions of the compiled model.
        compared: number of those calls that were compared.
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
        """Number of the call that is compared next: the first, 2nd, 4th, 8th call and so on."""
        return 2**self.compared if self.compared < MOST_COMPARED else MOST_CALLS

    def after(self, earlier: NumbersReport) -> NumbersReport:
        """Combine the result of this comparison with the report on all earlier comparisons.

        An earlier difference remains, unless it was found with generated inputs and this comparison, of a real
        call, agrees. If all comparisons agree, the result contains the worst values. Each count is the larger count
        of the two reports; time and duration come from this comparison.
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
        """Lowest SNR (signal-to-noise ratio in dB) of all outputs."""
        return self.outputs[0].snr_db if self.outputs else None

    @property
    def max_abs(self) -> float:
        """Largest difference of all outputs."""
        return max((one.max_abs for one in self.outputs), default=0.0)

    @property
    def summary(self) -> str:
        """State and number of compared calls: ``agrees on 3 of 7 calls``."""
        if self.state == "agrees" and self.compared:
            return f"agrees on {self.compared} of {self.calls:,} call{'' if self.calls == 1 else 's'}"
        return self.state

    def __str__(self) -> str:
        head = f"{self.summary}: {self.reason}" if self.reason else self.summary
        return "\n".join([head, *(f"  {one}" for one in self.outputs)])

    @property
    def verdict(self) -> str:
        """Verdict for people: ``agree on 3 of 7 calls``, ``differ``, ``not compared``."""
        words = {"agrees": self.summary.replace("agrees", "agree"), "differs": "differ", "off": "not compared"}
        return words.get(self.state, self.state)

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"numbers {self.verdict}", "problem" if self.state == "differs" else ""
        yield from more([self.reason, *map(str, self.outputs), self.cause])


BEING_COMPARED: Final = "it is being compared with the CPU"


def is_compared(report: NumbersReport) -> bool:
    """Return whether this report is preliminary, because a comparison is running in the background."""
    return report.state == "pending" and report.reason == BEING_COMPARED


# --- models ----------------------------------------------------------------------------------------------


@record(frozen=True, repr=False, eq=False)
class ModelIdentity(Record):
    """The model from which a session was created.

    Attributes:
        fingerprint: SHA-256 of the model and of the files that it refers to.
        label: name of the model in messages.
        files: path, size in bytes and date in nanoseconds of each file, the model's own file first.
        compiled: whether it is a compiled (EPContext) model.
    """

    fingerprint: str
    label: str
    files: tuple[tuple[str, int, int], ...] = ()
    compiled: bool = False


@record(frozen=True, repr=False, eq=False)
class ModelDescription(Record):
    """Contents of a model file that can be read without loading the model.

    Attributes:
        readable: whether the file is a readable ONNX model; if not, the other fields are empty.
        inputs: the model's inputs, without initializers.
        external: the model's external data files.
        operators: operators of the model, with their domain if it is not ONNX's own.
        metadata: descriptive fields, with ONNX Runtime's names, and custom metadata.
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


# Start of the remark about an output for which the tried inputs prove nothing.
NOT_SHOWN: Final = "not shown by these inputs"


@record(frozen=True, repr=False, eq=False)
class Difference(Record):
    """Difference between original and compiled model in one output, for all tried inputs.

    Attributes:
        max_abs: largest difference.
        max_rel: `max_abs` divided by the largest magnitude of the reference; for integers the fraction that
            differs.
        cosine: cosine similarity of the two outputs as vectors; ``None`` if one output is all zeros.
        inputs: the inputs with the largest difference.
        remark: explanation, if the difference is unusual or too large.
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
        """Whether the tried inputs prove nothing about this output."""
        return self.level == "unusual" and (self.remark or "").startswith(NOT_SHOWN)


@record(frozen=True, repr=False, eq=False)
class Validation(Shown, Record):
    """Comparison of a compiled model with the original on the CPU.

    Attributes:
        skipped: reason why the models were not compared; ``None`` if they were compared.
        tolerance: description of the allowed difference.
        seconds: duration of the comparison.
    """

    differences: tuple[Difference, ...] = ()
    tolerance: str = ""
    skipped: str | None = None
    seconds: float = 0.0

    @property
    def worst(self) -> Difference | None:
        """Difference in the output that differs most relative to its own values."""
        return max(self.differences, key=lambda one: (one.max_rel, one.max_abs), default=None)

    @property
    def max_abs(self) -> float:
        """Largest difference of the `worst` output. `max_rel` also refers to that output, because outputs of
        different magnitudes cannot be compared."""
        return self.worst.max_abs if self.worst is not None else 0.0

    @property
    def max_rel(self) -> float:
        return self.worst.max_rel if self.worst is not None else 0.0

    @property
    def cosine(self) -> float | None:
        """Lowest cosine similarity of all outputs."""
        return min((one.cosine for one in self.differences if one.cosine is not None), default=None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks about unusual differences."""
        return tuple(f"{one.output} ({one.inputs}): {one.remark}" for one in self.differences if one.remark)

    def numbers(self, inputs: str) -> NumbersReport | None:
        """Convert the comparison to a session's report; ``None`` if nothing was compared. `inputs` describes the
        compared inputs."""
        # An "unusual" difference gets a remark but is within the tolerance, so the output agrees, unless the inputs
        # prove nothing.
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
            yield from more([f"limits for {self.tolerance}" if self.tolerance else ""])

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
    """A compiled model that was written.

    Attributes:
        path: path of the .onnx file, which a session opens.
        blob: path of the context binary; ``None`` if it is embedded in the .onnx file.
        manifest: path of the file that records which files belong together.
        source: name of the original model.
        placement: placement of the original model's nodes; ``None`` if the compiler died before it reported them.
        soc_model: chip for which the model was compiled; ``None``: the host's chip.
        versions: versions of the compiler.
        compile_seconds: time inside the compiler.
        seconds: total time, including the start of processes and the validation.
        warnings: sentences for people.
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


# File names in a folder that `qnnbridge prepare` created, and in an unfinished folder.
PREPARED_MANIFEST: Final = "manifest.json"
PREPARE_JOURNAL: Final = ".qnnbridge-prepare.json"


def absolute_model_path(given: str | os.PathLike[str], *, prepared: bool = False) -> str:
    """Return the absolute path of an existing model file.

    Args:
        given: the path that the application passed.
        prepared: whether to accept a folder that `qnnbridge prepare` created.

    Raises:
        InvalidArgument: the path is not valid Unicode, so it cannot be sent.
        InvalidProtobuf: the path is a folder.
        NoSuchFile: the file cannot be accessed.
        ContextUnusable: `qnnbridge prepare` has not finished the folder.
    """
    shown = os.fsdecode(given)
    path = os.path.abspath(shown)
    # Check the absolute path, because the name of the working folder may be the invalid part.
    check_travels(path)
    try:
        os.stat(path)  # the error of `stat` contains the reason why the file cannot be accessed
    # ValueError: the path contains a NUL, or cannot be encoded in the locale (UnicodeEncodeError).
    except (OSError, ValueError) as error:
        raise unreadable(shown, path, error) from None
    if os.path.isdir(path) and not (prepared and os.path.isfile(os.path.join(path, PREPARED_MANIFEST))):
        raise (
            folder_refused(shown, path)
            if prepared
            else InvalidProtobuf(
                f"{shown} is a folder, not a model.",
                fix="Give the path of the .onnx file in the folder.",
                details={"path": path},
            )
        )
    return path


def folder_refused(shown: str, path: str) -> InvalidProtobuf | ContextUnusable:
    """Return the error for a folder without a manifest. Used where folders of `qnnbridge prepare` are accepted.

    `shown` is the path that the application passed.
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
        fix="Give the path of the .onnx file in the folder, or a folder that `qnnbridge prepare` made.",
        details={"path": path},
    )


def check_travels(path: str) -> None:
    """Raise `InvalidArgument` for a path that is not valid Unicode."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        # Python represents bytes that it cannot decode as lone surrogates, which cannot be encoded in UTF-8.
        named = _name_in_utf8(path)
        if named is not None:
            raise InvalidArgument(
                f"The path {named!a} cannot be used in this locale.",
                cause=f"Its bytes are UTF-8, but this Python uses {sys.getfilesystemencoding()}: {_locale()}.",
                fix=_USE_UTF8,
                details={"path": named},
            ) from None
        shown = path.encode("utf-8", "backslashreplace").decode()
        raise InvalidArgument(
            f"The path {shown} is not valid Unicode.",
            cause="It has bytes that are not UTF-8 (or half of a UTF-16 pair), so it cannot be sent to the host.",
            fix="Rename the file or the folder, or give the model as bytes.",
            details={"path": shown},
        ) from None


_USE_UTF8 = "Start the application with PYTHONUTF8=1, or in a UTF-8 locale (LC_ALL=C.UTF-8)."


def _name_in_utf8(path: str) -> str | None:
    """Return the path with its bytes decoded as UTF-8; ``None`` if decoding fails or changes nothing."""
    try:
        # `fsencode` returns the bytes of the name on the disk for any locale.
        name = os.fsencode(path).decode("utf-8")
    except UnicodeError:
        return None
    return None if name == path else name


def _locale() -> str:
    """Return the locale's environment variables as a string, in order of precedence."""
    named = [f"{name}={os.environ[name]}" for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)]
    return ", ".join(named) or "no locale is set"


def unreadable(shown: str, path: str, error: OSError | ValueError) -> NoSuchFile:
    """Return the error for a model that cannot be read. `shown` is the path that the application passed."""
    if isinstance(error, UnicodeEncodeError):
        return NoSuchFile(
            f"The model {shown!a} cannot be read in this locale.",
            cause=f"{sys.getfilesystemencoding()} cannot encode its name: {_locale()}.",
            fix=_USE_UTF8,
            details={"path": path},
        )
    return NoSuchFile(
        f"The model {shown} cannot be read.",
        cause=f"{getattr(error, 'strerror', None) or error} (absolute path: {path}).",
        fix="Check the path. A relative path starts at the application's current folder.",
        details={"path": path},
    )
