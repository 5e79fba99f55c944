"""What a session is made from, and what is known of it: the shapes shared by the application and the host.

Names of fields are those of ONNX Runtime.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Literal

from qnnbridge_protocol.wire_record import Record, record

Fallback = Literal["error", "cpu"]
ShareWeights = Literal["no", "more", "last"]

QNN: Final = "QNNExecutionProvider"
CPU: Final = "CPUExecutionProvider"


@record(frozen=True, repr=False, eq=False)
class ProviderSpec(Record):
    """One execution provider by its ONNX Runtime name, with its options as text."""

    name: str
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)


@record(frozen=True, repr=False, eq=False)
class SessionSpec(Record):
    """Everything that makes a session, apart from the model's bytes and initializer tensors.

    model_path: absolute path on this machine, or ``None`` when the model travels as a buffer.
    providers: in order of preference.
    fallback: "error" refuses a session of which any node would run on the CPU though QNN was asked for.
    options: attributes of ``onnxruntime.SessionOptions`` that the application set, by name; enums as numbers.
    config_entries: ``SessionOptions.add_session_config_entry`` pairs.
    initializers: names of the initializers that travel as values; `external_initializers` likewise.
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
    custom_op_libraries: tuple[str, ...] = ()
    disabled_optimizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        providers = tuple(p if isinstance(p, ProviderSpec) else ProviderSpec.from_wire(p) for p in self.providers)
        object.__setattr__(self, "providers", providers)
        for name in ("initializers", "external_initializers", "custom_op_libraries", "disabled_optimizers"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def options_hash(self) -> str:
        """Of everything but the model: quarantines and manifests tell by it that options are the same."""
        import hashlib
        import json

        # `model_files` was a field of 0.1.0, empty in these hashes; with it they stay what they were.
        plain = {**self.to_wire(), "model_path": None, "model_files": []}
        return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:16]


@record(frozen=True, repr=False, eq=False)
class CompileSpec(Record):
    """A session, and where its compiled (EPContext) model goes.

    output: absolute path of the .onnx file to write, which must not exist; the context binary is put beside it, as
    ``<stem>_qnn.bin``. embed: the context binary goes into the .onnx file.
    share: "more" and "last" keep the weights of several models of one process in one context binary, which is
    written with the last one and named after the first.
    """

    session: SessionSpec
    output: str
    embed: bool = False
    share: ShareWeights = "no"

    def __post_init__(self) -> None:
        if not isinstance(self.session, SessionSpec):
            object.__setattr__(self, "session", SessionSpec.from_wire(self.session))
        if not (isinstance(self.output, str) and self.output) or self.share not in ("no", "more", "last"):
            raise TypeError("no proper description of a compilation")


@record(frozen=True, repr=False, eq=False)
class RunSpec(Record):
    """What ``onnxruntime.RunOptions`` carries: attributes that were set, and config entries."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config_entries: Mapping[str, str] = dataclasses.field(default_factory=dict)


@record(frozen=True, repr=False, eq=False)
class NodeInfo(Record):
    """An input or output as ``onnxruntime.NodeArg`` shows it. A dimension is a number, a name or ``None``."""

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None = ()

    def __post_init__(self) -> None:
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))


@record(frozen=True, repr=False, eq=False)
class Placement(Record):
    """Where the nodes of the optimized graph run, from ONNX Runtime's own graph assignment.

    known: False where this ONNX Runtime cannot tell (before 1.24); the counts are then 0.
    partitions: number of QNN subgraphs. cpu_list: ``[name, op_type]`` of each CPU node, at most 200.
    simulator: the QNN device is the x86 HTP simulator, not an NPU. soc_model: the target it computes for.
    cause: why nodes are on the CPU, one sentence, as far as known.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "cpu_list", tuple((str(n), str(o)) for n, o in self.cpu_list))


@record(frozen=True, repr=False, eq=False)
class SessionInfo(Record):
    """What the host tells of a session that it created. Durations in seconds."""

    inputs: tuple[NodeInfo, ...]
    outputs: tuple[NodeInfo, ...]
    overridable_initializers: tuple[NodeInfo, ...] = ()
    modelmeta: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    providers: tuple[str, ...] = ()
    provider_options: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    placement: Placement = dataclasses.field(default_factory=Placement)
    profiling_start_time_ns: int = 0
    create_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "overridable_initializers"):
            nodes = tuple(n if isinstance(n, NodeInfo) else NodeInfo.from_wire(n) for n in getattr(self, name))
            object.__setattr__(self, name, nodes)
        object.__setattr__(self, "providers", tuple(self.providers))
        if not isinstance(self.placement, Placement):
            object.__setattr__(self, "placement", Placement.from_wire(self.placement))


@dataclasses.dataclass(frozen=True)
class HostInfo:
    """What the host says of itself.

    machine: architecture of the host's process. startup_seconds: from its start to its HELLO.
    versions: of onnxruntime, onnxruntime_qnn, qnn_sdk, numpy, as far as installed.
    providers: execution providers that ONNX Runtime has there. devices: QNN devices, as ONNX Runtime lists them.
    simulator: whether QNN computes on the x86 simulator; ``None`` without QNN.
    build: ONNX Runtime's own words on how it was built. ort_folder: where its package is installed.
    library_folder: where the QNN libraries are; ``None`` without QNN.
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
