"""Facts about a computer: the complete input of the checks, and the content of a snapshot.

The classes are plain data, and a snapshot is their JSON form (`examine.snapshot_text`). Paths have the syntax of
the computer that the facts describe. Facts contain no judgements, which are the work of the checks.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Computer:
    """A computer and its NPU.

    Args:
        system: "Windows" or "Linux".
        machine: native machine type.
        processor: the processor's name, if the system reports it.
        chip: Qualcomm's part name; ``None`` for an unknown chip.
        arch: Hexagon version of the NPU, 73 for V73; ``None`` for an unknown chip.
    """

    system: str
    machine: str
    windows_build: int | None = None
    processor: str | None = None
    chip: str | None = None
    arch: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PythonReport:
    """An interpreter's description of itself.

    Args:
        platform: result of `sysconfig.get_platform`.
        machine: result of `platform.machine`, on which onnxruntime-qnn relies.
        env_machine: value of PROCESSOR_ARCHITECTURE.
        path: value of `sys.path`.
        externally_managed: true if pip refuses to install into the interpreter (PEP 668).
    """

    executable: str
    version: str
    platform: str
    machine: str
    env_machine: str
    prefix: str
    base_executable: str
    path: tuple[str, ...]
    user_site: str = ""
    externally_managed: bool = False

    @property
    def tag(self) -> str:
        """Tag of wheels for this interpreter, such as "cp313"."""
        return "cp" + "".join(self.version.split(".")[:2])

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version."""
        parts = self.version.split(".")
        return int(parts[0]), int(parts[1])


@dataclasses.dataclass(frozen=True, slots=True)
class StartFailure:
    """Failure of a started program.

    exit_code: raw exit code; ``None`` if the program did not start or hung. said: stderr, or why the program did
    not start.
    """

    exit_code: int | None
    said: str


@dataclasses.dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file of a package that differs from the package's RECORD. what: kind of difference: "missing", "size" or
    "hash".
    """

    path: str
    what: str
    recorded: int
    found: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution that the checks need.

    Args:
        tags: tags of the installed wheel.
        wrong: files of the distribution that differ from its RECORD.
        needs: for onnxruntime-genai, the supported versions of onnxruntime, such as ">=1.31.0".
        origin: checkout or wheel from which qnnbridge was installed; empty for an installation from an index, and
            for other packages.
    """

    name: str
    version: str
    folder: str
    tags: tuple[str, ...] = ()
    has_record: bool = True
    wrong: tuple[DamagedFile, ...] = ()
    needs: str = ""
    origin: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class QnnFile:
    """A library of QNN.

    Args:
        role: "provider", "backend", "prepare", "system", "stub", "skel", "catalog", "other".
        arch: Hexagon version of a stub, skel or catalog.
        in_catalog: for a skel (a program for the NPU), whether the catalog of its version contains its hash.
    """

    name: str
    role: str
    size: int
    arch: int | None = None
    machine: str | None = None
    version: str | None = None
    in_catalog: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class QnnSet:
    """The QNN libraries in one folder. sdk: version of the backend; if unknown, of another library."""

    folder: str
    files: tuple[QnnFile, ...]
    sdk: str | None = None

    def of(self, role: str) -> tuple[QnnFile, ...]:
        """Return the files with this role."""
        return tuple(file for file in self.files if file.role == role)

    def archs(self, role: str) -> frozenset[int]:
        """Return the Hexagon versions of the files with this role."""
        return frozenset(file.arch for file in self.of(role) if file.arch is not None)


@dataclasses.dataclass(frozen=True, slots=True)
class Packages:
    """The packages of an interpreter.

    Args:
        runtime: folder of the module onnxruntime.
        runtime_package, runtime_version: distribution and version to which the files of this module belong.
        plugin: folder of the module onnxruntime_qnn.
        plugin_sdk: QNN version that this package reports.
        loaded: folder from which QNN libraries are loaded, if known.
        sets: all folders of QNN libraries in the packages.
        runtime_folder_has_qnn: whether the folder of onnxruntime contains libraries from onnxruntime-qnn 1.x.
    """

    distributions: tuple[Distribution, ...] = ()
    runtime: str | None = None
    runtime_package: str | None = None
    runtime_version: str | None = None
    runtime_machine: str | None = None
    plugin: str | None = None
    plugin_sdk: str | None = None
    loaded: str | None = None
    sets: tuple[QnnSet, ...] = ()
    runtime_folder_has_qnn: bool = False
    # Installed modules among qnnbridge_host, qnnbridge_protocol, msgpack, numpy, onnxruntime and onnxruntime_qnn.
    modules: tuple[str, ...] = ()

    def distribution(self, name: str) -> Distribution | None:
        """Return an installed distribution by its name."""
        return next((found for found in self.distributions if found.name == name), None)

    def version(self, name: str) -> str | None:
        """Return the version of an installed distribution."""
        found = self.distribution(name)
        return found.version if found else None

    @property
    def qnn_sdk(self) -> str | None:
        """Version of the QNN that would be loaded, as the libraries or else the package report it."""
        return (self.loaded_set.sdk if self.loaded_set else None) or self.plugin_sdk

    @property
    def loaded_set(self) -> QnnSet | None:
        """QNN libraries in the folder from which they are loaded."""
        return next((found for found in self.sets if found.folder == self.loaded), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter found on the computer.

    Args:
        sources: where it was found ("registry", "PATH", "configured", "running").
        machine: machine type of the program file; ``None`` for a script.
        base, base_machine: path and machine type of the program that the launcher of a virtual environment on
            Windows starts.
        tag: the argument of ``py -V:tag``.
        refusal: code of the finding that explains why the interpreter cannot be the host; empty if it can.
        said: the same reason as text.
        qnn: version of its onnxruntime-qnn.
    """

    path: str
    sources: tuple[str, ...]
    machine: str | None = None
    base: str | None = None
    base_machine: str | None = None
    version: str | None = None
    tag: str | None = None
    refusal: str = ""
    said: str = ""
    qnn: str | None = None

    @property
    def real_machine(self) -> str | None:
        """Machine type of the process, which may differ from that of the launcher file on Windows."""
        return self.base_machine or self.machine


@dataclasses.dataclass(frozen=True, slots=True)
class HostFacts:
    """The interpreter that the host runs with, or why there is none.

    Args:
        path: the interpreter; empty if none was chosen.
        source: the setting or search that chose it.
        refusal: code of the finding that explains why the interpreter cannot be started; empty if it can.
        said: the same reason as text.
        looked_at: the interpreters that were tried, each with the reason why it was refused.
        answer, death: result of starting the interpreter: its description of itself, or its failure.
        packages: packages of the interpreter.
    """

    path: str = ""
    source: str = ""
    refusal: str = ""
    said: str = ""
    looked_at: tuple[str, ...] = ()
    answer: PythonReport | None = None
    death: StartFailure | None = None
    packages: Packages | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Driver:
    """The NPU's driver.

    Args:
        status: "none", "ok", "disabled", "problem", "no device", or "unknown".
        problem: problem number in the Windows device manager.
        runtime: version of QNN in the driver (HtpUsrDrv).
        has_fastrpc: whether the driver's folder contains libcdsprpc.
        nodes: device files of the NPU on Linux.
        closed_nodes: device files that this user cannot open.
    """

    status: str
    service: str | None = None
    version: str | None = None
    folder: str | None = None
    device: str | None = None
    problem: int | None = None
    runtime: str | None = None
    has_fastrpc: bool | None = None
    nodes: tuple[str, ...] = ()
    closed_nodes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class SdkRoot:
    """A QNN SDK on this computer. name: the environment variable with its folder, or "default folder"."""

    name: str
    folder: str
    exists: bool
    version: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ForeignQnn:
    """QNN libraries on a search path that are not from the host's packages, but may be loaded instead.

    via: the variable with the search path, such as "PATH" or "ADSP_LIBRARY_PATH".
    """

    via: str
    folder: str
    names: tuple[str, ...]
    version: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class CatalogueProvider:
    """A provider in the catalogue of Windows ML. state: "Ready", "NotReady", "NotPresent". sdk: its QNN version."""

    name: str
    version: str = ""
    package: str = ""
    library: str = ""
    state: str = ""
    sdk: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Catalogue:
    """The catalogue of Windows ML. problem, fix: texts if the catalogue cannot be read."""

    providers: tuple[CatalogueProvider, ...] = ()
    problem: str = ""
    fix: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineFacts:
    """The setting that selects where the host loads QNN from.

    wanted: the setting: "auto", "wheel", "windowsml" or "folder". path: the folder for "folder". catalogue:
    ``None`` if the package windowsml is not installed.
    """

    wanted: str = "auto"
    path: str = ""
    catalogue: Catalogue | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class FolderFacts:
    """A folder that qnnbridge uses. what: purpose: "host packages", "cache" or "state"."""

    what: str
    path: str
    writable: bool = True
    network: bool = False
    free_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Crash:
    """A crash report of the last day."""

    id: str
    age_s: float
    exit: str
    phase: str
    models: tuple[str, ...]
    cause: str


@dataclasses.dataclass(frozen=True, slots=True)
class SavedState:
    """Stored state of qnnbridge. quarantined: models in quarantine. cache_damaged: descriptions of unusable
    entries.
    """

    quarantined: tuple[str, ...] = ()
    crashes: tuple[Crash, ...] = ()
    cache_entries: int = 0
    cache_bytes: int = 0
    cache_damaged: tuple[str, ...] = ()
    # Keys of unusable entries that are still in the cache.
    cache_bad_keys: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonFacts:
    """The daemon that applications of this user would use.

    Args:
        state: "none", "runs", "stale" (its file exists, but the daemon does not run), "silent" (the daemon runs but
            does not answer), "untrusted" (other users could use its folder).
        folder: folder of the daemon's file.
        version, pid: version and process id of the running daemon, or those in its file.
        said, fix: texts for all states but "none" and "runs".
        fits: whether applications of this qnnbridge version may use the daemon.
        dies_with_us: whether a daemon started by this process would be ended by Windows together with this process.
    """

    state: str = "none"
    folder: str = ""
    version: str = ""
    pid: int = 0
    said: str = ""
    fix: str = ""
    fits: bool = True
    dies_with_us: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class BackendFile:
    """The file that the application passes as backend_path, according to the user."""

    path: str
    exists: bool
    machine: str | None = None
    version: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One step of a live probe: "start", "import", "register", "devices", "create", "run", "numbers"."""

    name: str
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Request for a live probe.

    host_python: the host's interpreter. model: path of the model; ``None`` for the doctor's own model. timeout_s:
    deadline in seconds.
    """

    host_python: str
    model: str | None
    timeout_s: float
    dimensions: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a live probe.

    Args:
        stages: the completed stages.
        failed: the stage that failed; empty if all succeeded.
        error: class name of the error.
        message, cause, fix, evidence: texts of the error.
        exit_code: exit code of a crashed process.
        skipped: why the probe was skipped; empty if it ran.
        simulator: whether QNN computes on its simulator.
        qnn_nodes, cpu_nodes: number of the session's nodes on QNN and on the CPU.
        difference: largest difference from the correct outputs.
    """

    stages: tuple[Stage, ...] = ()
    failed: str = ""
    error: str = ""
    message: str = ""
    cause: str = ""
    fix: str = ""
    evidence: tuple[str, ...] = ()
    exit_code: int | None = None
    skipped: str = ""
    simulator: bool | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    devices: tuple[str, ...] = ()
    qnn_nodes: int = 0
    cpu_nodes: int = 0
    placement_cause: str = ""
    difference: float | None = None

    @property
    def seconds(self) -> float:
        """Duration of all stages."""
        return sum(stage.seconds for stage in self.stages)


@dataclasses.dataclass(frozen=True, slots=True)
class NumbersRequest:
    """Request to measure the known-wrong table.

    Args:
        host_python: the host's interpreter; empty for the default one.
        timeout_s: deadline for all rows, in seconds.
        soc_model: chip for which the simulator computes; empty for its default.
        rows: the rows by name; empty for all.
        missing: measure only rows without a result.
        npu: measure nothing if QNN runs on its simulator.
    """

    host_python: str = ""
    timeout_s: float = 600.0
    soc_model: str = ""
    rows: tuple[str, ...] = ()
    missing: bool = False
    npu: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredFacts:
    """Measured results of the known-wrong table for one chip, driver and version of QNN.

    Args:
        chip: number of the chip's ``soc_model``; 0 for an unknown chip.
        simulator: whether the results are from the simulator.
        rows: result by row: "right", "wrong" or "unclear".
        digests: digest of each row's condition and example at the time of the measurement.
        when: time of the measurement, in seconds since the epoch.
    """

    chip: int
    simulator: bool
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    rows: dict[str, str] = dataclasses.field(default_factory=dict)
    digests: dict[str, str] = dataclasses.field(default_factory=dict)
    when: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class ExaminedModel:
    """The model of ``--model``.

    Args:
        is_folder: whether the path is a folder.
        layout: for a folder with genai_config.json, its layout (`qnnbridge_host.model.genai_folder`).
        problem: why the model cannot be read.
        dynamic: descriptions of inputs with free dimensions.
        free: the free dimensions in the form of ``--dim``.
        zero: tensors without elements.
        missing: external files with weights that do not exist.
        verdict: for a compiled model "ok", "recompile recommended" or "cannot run here".
        reasons: reasons of the verdict.
        quarantined: whether the model is in quarantine.
        probe: the result of running it.
    """

    path: str
    exists: bool = True
    is_folder: bool = False
    layout: str = ""
    problem: str = ""
    size_bytes: int = 0
    is_compiled: bool = False
    node_count: int = 0
    dynamic: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    quarantined: bool = False
    probe: ProbeResult | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """All facts about a computer. complete: whether libraries were hashed, which ``--quick`` skips."""

    qnnbridge: str
    taken_at: str
    computer: Computer
    application: PythonReport
    application_machine: str
    application_packages: Packages
    host: HostFacts
    driver: Driver
    interpreters: tuple[Interpreter, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    unknown_variables: tuple[str, ...] = ()
    # Environment variables of qnnbridge with unusable values, as text.
    unusable_values: tuple[str, ...] = ()
    sdks: tuple[SdkRoot, ...] = ()
    foreign: tuple[ForeignQnn, ...] = ()
    engine: EngineFacts = EngineFacts()
    places: tuple[FolderFacts, ...] = ()
    state: SavedState = SavedState()
    daemon: DaemonFacts = DaemonFacts()
    missing_vc_runtime: tuple[str, ...] = ()
    backend: BackendFile | None = None
    probe: ProbeResult | None = None
    model: ExaminedModel | None = None
    complete: bool = True
    measured: tuple[MeasuredFacts, ...] = ()
    # Queries of the survey that failed, with the error.
    unknown: tuple[str, ...] = ()

    @property
    def is_windows(self) -> bool:
        """Whether the computer runs Windows."""
        return self.computer.system == "Windows"

    @property
    def is_arm(self) -> bool:
        """Whether the computer has an Arm processor."""
        return self.computer.machine in ("ARM64", "aarch64")
