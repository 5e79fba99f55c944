"""Records that the application and the host exchange: the specification of a session, and information about it.

Fields have the names that ONNX Runtime uses. `Record` is the base class of all records that are sent: frozen
dataclasses that can be converted to a map of msgpack types and back. Unknown keys, which a newer peer may send, are
ignored; a value of a wrong type raises an error with the field's name (`field_types`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from qnnbridge_protocol.field_types import read_record
from qnnbridge_protocol.shown import Shown, counted, more

if TYPE_CHECKING:
    from dataclasses import dataclass as record

    from qnnbridge_protocol.shell import ModelInCommands
    from qnnbridge_protocol.shown import Fact

T = TypeVar("T", bound="Record")

# Type checkers use the decorator of the standard library, so that they accept the fields as parameters.
if not TYPE_CHECKING:

    def record(**_declared: bool) -> Callable[[type], type]:
        """Decorate a dataclass without generating methods, which the class inherits from `Record`."""
        return dataclasses.dataclass(init=False, repr=False, eq=False)


@record(frozen=True, repr=False, eq=False)
class Record:
    """Methods that `dataclasses` would generate for each class, written once. Generating them would add 10 ms to
    a host's start."""

    if not TYPE_CHECKING:

        def __init__(self, *values: Any, **named: Any) -> None:
            fields = dataclasses.fields(self)
            given = dict(zip((field.name for field in fields), values, strict=False)) | named
            # Fewer keys than values: a field was given twice, or there are more positional values than fields.
            wrong = len(given) < len(values) + len(named) or not given.keys() <= self.__dataclass_fields__.keys()
            for field in fields:
                if field.name in given:
                    value = given[field.name]
                elif field.default_factory is not dataclasses.MISSING:
                    value = field.default_factory()
                else:
                    value = field.default
                wrong |= value is dataclasses.MISSING
                # Convert any iterable to a tuple, because a record is compared and hashed by its values.
                if str(field.type).startswith("tuple[") and value is not None and value is not dataclasses.MISSING:
                    value = tuple(value)
                object.__setattr__(self, field.name, value)
            if wrong:
                names = ", ".join(field.name for field in fields)
                raise TypeError(f"{type(self).__name__} takes {names}; got {len(values)} and {sorted(named)}")
            self.__post_init__()

        def __post_init__(self) -> None:
            """Check or convert the given values. Subclasses override this method."""

        def __setattr__(self, name: str, value: object) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        fields_text = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self))
        return f"{type(self).__qualname__}({fields_text})"

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        # The classes must be the same: a record of another class with equal fields is not equal.
        return self._values() == other._values()

    def __hash__(self) -> int:
        # As with a frozen dataclass, a record that contains a map cannot be hashed: `hash` raises TypeError.
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def to_wire(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            # Send every field, even with its default value, because a peer of another release may have
            # different defaults.
            out[field.name] = _plain(getattr(self, field.name))
        return out

    @classmethod
    def from_wire(cls: type[T], data: Mapping[str, Any]) -> T:
        """Convert a map to a record. Raise `ProtocolDesync` with the field's name for a wrong type."""
        return cls.read(data, cls.__name__)

    @classmethod
    def read(cls: type[T], data: Any, field: str) -> T:
        """Convert a map that is the value of the field `field`, like `from_wire`."""
        return read_record(cls, data, field)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_wire()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return value


Fallback = Literal["error", "cpu"]
FixWhen = Literal["always", "refused", "never"]
ShareWeights = Literal["no", "more", "last"]

# Environment variable of the host, set by the application: sizes of ONNX Runtime's global thread pools within and
# across nodes, separated by a comma. ONNX Runtime creates these pools once per process, before its first session,
# so a change needs a new host.
GLOBAL_THREADS_VARIABLE: Final = "QNNBRIDGE_GLOBAL_THREADS"

QNN: Final = "QNNExecutionProvider"
CPU: Final = "CPUExecutionProvider"


@record(frozen=True, repr=False, eq=False)
class ProviderSpec(Record):
    """An execution provider: its name in ONNX Runtime, and its options as strings."""

    name: str
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)


def in_memory(file: str) -> str:
    """Return the name of a file's bytes among the values of a request. No initializer can have this name."""
    return f"\0{file}"


@record(frozen=True, repr=False, eq=False)
class FixSpec(Record):
    """Rewrites to apply to a model before it is used.

    Attributes:
        constants: inputs to replace by a constant number or small tensor (`input_constants`).
        only, skip: names of the rewrites to apply, or to omit.
        when: "always", "never", or "refused": if QNN refuses the model or is known to compute it wrong.
    """

    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    when: FixWhen = "always"

    def __post_init__(self) -> None:
        if self.constants:
            from qnnbridge_protocol.input_constants import plain_constants

            object.__setattr__(self, "constants", plain_constants(self.constants))


_FIELDS_OF_0_1_0: Final = frozenset(
    (
        *("providers", "fallback", "options", "config_entries", "free_dimensions_by_name"),
        *("free_dimensions_by_denotation", "initializers", "external_initializers", "custom_op_libraries"),
        "disabled_optimizers",
    )
)


@record(frozen=True, repr=False, eq=False)
class SessionSpec(Record):
    """Everything that defines a session, apart from the model's bytes and initializer tensors.

    Attributes:
        model_path: absolute path on this machine, or ``None`` if the model is sent as a buffer.
        providers: execution providers in order of preference.
        fallback: "error" refuses a session if any node would run on the CPU although QNN was requested.
        options: attributes of ``onnxruntime.SessionOptions`` that the application set, by name; enums as numbers.
        config_entries: ``SessionOptions.add_session_config_entry`` pairs.
        initializers, external_initializers: initializers, by name, that are sent as values.
        fix: rewrites for the model; ``None``: rewrite the model only if QNN is known to compute it wrong.
        files_in_memory: names of external data files whose bytes are sent as uint8 values instead of being read
            from a disk.
    """

    model_path: str | None
    providers: tuple[ProviderSpec, ...] = ()
    fallback: Fallback = "error"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config_entries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    free_dimensions_by_name: Mapping[str, int] = dataclasses.field(default_factory=dict)
    free_dimensions_by_denotation: Mapping[str, int] = dataclasses.field(default_factory=dict)
    initializers: tuple[str, ...] = ()
    external_initializers: tuple[str, ...] = ()
    files_in_memory: tuple[str, ...] = ()
    custom_op_libraries: tuple[str, ...] = ()
    disabled_optimizers: tuple[str, ...] = ()
    fix: FixSpec | None = None

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names of the values that are sent with the record, in the order in which they are sent."""
        files = (in_memory(name) for name in self.files_in_memory)
        return (*self.initializers, *self.external_initializers, *files)

    def in_commands(self, path: str | None) -> ModelInCommands:
        """Return the model at `path` with the sizes and the chip of this session, to show it in suggested
        commands."""
        from qnnbridge_protocol.shell import ModelInCommands

        options = [one.options for one in self.providers if one.name == QNN]
        chips = [str(given["soc_model"]) for given in options if "soc_model" in given]
        return ModelInCommands(path, self.free_dimensions_by_name, chips[0] if chips else None)

    @property
    def again(self) -> SessionSpec:
        """Specification to create the session again without writing its compiled model, because ONNX Runtime
        refuses to overwrite the file."""
        if self.config_entries.get("ep.context_enable", "0") in ("", "0"):
            return self
        entries = {key: text for key, text in self.config_entries.items() if key != "ep.context_enable"}
        # A session that writes a compiled model rewrites its model only on request. Keep this rule when the session
        # is created again.
        return dataclasses.replace(self, config_entries=entries, fix=self.fix or FixSpec(when="never"))

    @property
    def options_hash(self) -> str:
        """Hash of everything except the model. Quarantines and manifests use it to recognize equal options."""
        import hashlib
        import json

        # Quarantine files and manifests of earlier releases contain these hashes, so the hash of given options must
        # never change. Therefore a field that was added after 0.1.0 is left out while it has its default.
        default = SessionSpec(None).to_wire()
        plain = {k: v for k, v in self.to_wire().items() if k in _FIELDS_OF_0_1_0 or v != default[k]}
        # `model_files` was a field of 0.1.0 that was always empty when hashed.
        plain |= {"model_path": None, "model_files": []}
        return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:16]


@record(frozen=True, repr=False, eq=False)
class CompileSpec(Record):
    """Specification of a session whose compiled (EPContext) model is written to a file.

    Attributes:
        output: absolute path of the .onnx file to write, which must not exist; the context binary is written next
            to it, as ``<stem>_qnn.bin``.
        embed: whether to put the context binary into the .onnx file.
        share: "more" and "last" store the weights of several models of one process in one context binary. Use
            "last" for the final model: compiling it writes the file, which is named after the first model.
    """

    session: SessionSpec
    output: str
    embed: bool = False
    share: ShareWeights = "no"

    def __post_init__(self) -> None:
        if not self.output or self.share not in ("no", "more", "last"):
            raise TypeError("not a valid description of a compilation")


@record(frozen=True, repr=False, eq=False)
class RunSpec(Record):
    """Contents of ``onnxruntime.RunOptions``: attributes that were set, and config entries."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config_entries: Mapping[str, str] = dataclasses.field(default_factory=dict)


def asks_to_terminate(header: Mapping[str, Any]) -> bool:
    """Return whether the options of a `session.run` request set ``terminate``.

    ONNX Runtime ends such a run before its first node, so the run need not wait in a queue.
    """
    spec = header.get("options")
    options = spec.get("options") if isinstance(spec, Mapping) else None
    return isinstance(options, Mapping) and options.get("terminate") is True


@record(frozen=True, repr=False, eq=False)
class NodeInfo(Record):
    """An input or output with the attributes of ``onnxruntime.NodeArg``. A dimension is a number, a name or
    ``None``."""

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None = ()


# Terms for two counts of nodes, used in all messages: the count before optimisation by
# `qnnbridge_host.model.node_count`, and the count after optimisation in `Placement`.
IN_FILE: Final = "in the file"
AFTER_OPTIMISATION: Final = "after optimisation"
# Maximum number of CPU nodes that a message lists.
SHOWN_CPU_NODES: Final = 5
# Beginning of a placement's cause if QNN lacks operators, so that fixed dimensions would not help.
NO_OPERATOR: Final = "QNN has no operator"


@record(frozen=True, repr=False, eq=False)
class Placement(Shown, Record):
    """Which provider runs the nodes that remain after optimisation, as ONNX Runtime reports it.

    Nodes inside an If, Loop or Scan on the CPU are counted. Nodes that ONNX Runtime computes in advance are not.

    Attributes:
        known: whether ONNX Runtime reports the assignment (1.24 or later); if not, the counts are 0.
        partitions: number of QNN subgraphs.
        cpu_list: ``[name, op_type]`` of each CPU node, at most 200.
        simulator: whether the QNN device is the x86 HTP simulator instead of an NPU.
        soc_model: chip for which the session was created.
        cause: why nodes are on the CPU, in one sentence, as far as known.
        source: source of QNN: ``onnxruntime-qnn 2.7.0, QNN 2.51.0``; empty for a session without QNN.
        npu_bytes: size of the files that were loaded into QNN (the compiled model, else the model's files), or 0.
        npu_memory: what was done to load the model, if the NPU's memory was not sufficient at first.
        variant: the file of a prepared folder from which the session was created, and the reason for the choice;
            empty for any other model.
    """

    known: bool = True
    qnn_nodes: int = 0
    cpu_nodes: int = 0
    other_nodes: int = 0
    partitions: int = 0
    cpu_list: tuple[tuple[str, str], ...] = ()
    backend: str = ""
    simulator: bool = False
    soc_model: str | None = None
    cause: str | None = None
    source: str = ""
    npu_bytes: int = 0
    npu_memory: str = ""
    variant: str = ""

    def nodes_text(self) -> str:
        """Return the counts as a text for people: "38 nodes on QNN, 0 on the CPU, after optimisation"."""
        text = f"{self.qnn_nodes} {'node' if self.qnn_nodes == 1 else 'nodes'} on QNN"
        if self.partitions > 1:
            text += f" in {self.partitions} parts"
        text += f", {self.cpu_nodes} on the CPU"
        if self.other_nodes:
            text += f", {self.other_nodes} elsewhere"
        return f"{text}, {AFTER_OPTIMISATION}"

    def cpu_names_text(self) -> str:
        """Return the names of the first nodes on the CPU, and the number of the other nodes on the CPU."""
        shown = ", ".join(f"{name or '(unnamed)'} ({op})" for name, op in self.cpu_list[:SHOWN_CPU_NODES])
        others = self.cpu_nodes - min(SHOWN_CPU_NODES, len(self.cpu_list))
        return shown + (f" and {others} more" if others else "")

    def _shown_facts(self) -> Iterator[Fact]:
        if not self.known:
            yield "placement unknown", ""
            return
        nodes = self.qnn_nodes + self.cpu_nodes + self.other_nodes
        text = f"{self.qnn_nodes} of {nodes} {'node' if nodes == 1 else 'nodes'} on QNN"
        text += " (simulator)" if self.simulator and self.qnn_nodes else ""
        text += f", {self.cpu_nodes} on the CPU" if self.cpu_nodes else ""
        text += f", {self.other_nodes} elsewhere" if self.other_nodes else ""
        # Without a backend, QNN was not requested for the session.
        yield text, "problem" if self.backend and self.qnn_nodes < nodes else ""
        if self.qnn_nodes and self.cpu_nodes:
            yield f"on the CPU: {self.cpu_names_text()}", "more"
        yield from more([self.cause or "", f"SoC model {self.soc_model}" if self.soc_model else "", self.source])
        yield from more([f"made from {self.variant}" if self.variant else "", self.npu_memory])


@record(frozen=True, repr=False, eq=False)
class SessionInfo(Record):
    """Report of the host about a session that it has created. Durations are in seconds."""

    inputs: tuple[NodeInfo, ...]
    outputs: tuple[NodeInfo, ...]
    overridable_initializers: tuple[NodeInfo, ...] = ()
    modelmeta: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    providers: tuple[str, ...] = ()
    provider_options: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    placement: Placement = dataclasses.field(default_factory=Placement)
    profiling_start_time_ns: int = 0
    create_seconds: float = 0.0


@record(frozen=True, repr=False, eq=False)
class HostInfo(Shown, Record):
    """Description of a host.

    Attributes:
        machine: architecture of the host's process.
        startup_seconds: time from the start of the process to its HELLO.
        versions: versions of onnxruntime, onnxruntime_qnn, qnn_sdk, numpy, if installed.
        providers: execution providers that the host's ONNX Runtime supports.
        devices: QNN devices, as ONNX Runtime lists them.
        simulator: whether QNN computes on the x86 simulator; ``None`` without QNN.
        build: ONNX Runtime's description of its build.
        ort_folder: folder of the host's ONNX Runtime package.
        library_folder: folder of the QNN libraries; ``None`` without QNN.
        qnn_source: source of QNN: engine, library, name, version, package, sdk, reason; empty without QNN.
    """

    pid: int
    machine: str
    python: str
    executable: str
    qnnbridge: str
    platform: str
    generation: int
    startup_seconds: float
    versions: Mapping[str, str]
    providers: tuple[str, ...] = ()
    devices: tuple[Mapping[str, Any], ...] = ()
    simulator: bool | None = None
    build: str = ""
    ort_folder: str = ""
    library_folder: str | None = None
    qnn_source: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def installed_text(self) -> str:
        """Return `onnxruntime 1.31.1, onnxruntime-qnn 2.7.0, QNN SDK ...`, as far as the host has reported them."""
        names = (("onnxruntime", "onnxruntime"), ("onnxruntime_qnn", "onnxruntime-qnn"), ("qnn_sdk", "QNN SDK"))
        return ", ".join(f"{shown} {self.versions[key]}" for key, shown in names if self.versions.get(key))

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"process {self.pid}, Python {self.python}, {self.machine}", ""
        installed = self.installed_text()
        yield installed or "no onnxruntime", "" if installed else "problem"
        if self.simulator is None:
            yield "no QNN", "problem"
        elif self.simulator:
            yield "HTP simulator", ""
        yield from more([f"qnnbridge {self.qnnbridge}", self.platform, f"started in {self.startup_seconds:.2f} s"])


# --- models for text generation -------------------------------------------------------------------------------


@record(frozen=True, repr=False, eq=False)
class StagePlacement(Shown, Record):
    """Which provider runs one stage of a model.

    Attributes:
        stage: name of the stage in genai_config.json.
        wanted: whether the config requests QNN.
        by_design: whether every node on the CPU is meant to run there.
        placement: placement of the stage's nodes, as in a session with only this stage.
    """

    stage: str
    wanted: bool
    by_design: bool
    placement: Placement

    def _shown_name(self) -> str:
        return self.stage

    def _shown_facts(self) -> Iterator[Fact]:
        yield from self.placement._shown_facts()


@record(frozen=True, repr=False, eq=False)
class GenerationModelInfo(Shown, Record):
    """A loaded model for text generation.

    Attributes:
        type, device_type: type and device of the model, in genai's notation.
        layout: "dynamic": free sizes; "window": fixed windows, and the graph contains the KV cache; "sliding":
            fixed windows, and genai moves the KV cache.
        window: tokens in a window, or ``None``.
        eos, pad: special tokens.
        search: the config's defaults for search options.
        fingerprint: hash of config and files.
        label: name of the model in messages.
        genai: version of onnxruntime-genai.
        stages: placement of each file of the model.
        notes: warnings for the application.
        modalities: "image" and "audio", if prompts may contain them.
        kv_bytes: memory for the KV cache of one generator with a full context; 0 if unknown.
    """

    type: str
    device_type: str
    layout: str
    window: int | None
    context_length: int
    vocab_size: int
    eos: tuple[int, ...]
    pad: int | None
    search: Mapping[str, Any]
    fingerprint: str
    label: str
    genai: str
    stages: tuple[StagePlacement, ...] = ()
    notes: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ()
    kv_bytes: int = 0

    def _shown_name(self) -> str:
        return self.label

    def _shown_facts(self) -> Iterator[Fact]:
        yield self.type, ""
        if self.modalities:
            yield f"takes {' and '.join(self.modalities)}", ""
        on_qnn = [stage for stage in self.stages if stage.placement.qnn_nodes]
        simulator = " (simulator)" if any(stage.placement.simulator for stage in on_qnn) else ""
        # A stage may stay on the CPU by design, such as the embeddings.
        left = any(one.wanted and not one.by_design and one.placement.cpu_nodes for one in self.stages)
        text = f"{len(on_qnn)} of {counted(len(self.stages), 'stage')} on QNN{simulator}"
        yield text, "problem" if left else ""
        for stage in self.stages:
            for fact, _ in stage.placement._shown_facts():
                yield f"{stage.stage}: {fact}", "more"
        window = "" if self.window is None else f", {self.layout} windows of {counted(self.window, 'token')}"
        yield f"context of {counted(self.context_length, 'token')}{window}", ""
        yield from more([f"onnxruntime-genai {self.genai}", f"vocabulary of {self.vocab_size}", *self.notes])


__all__ = ["Record", "record"]
