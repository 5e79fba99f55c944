"""The facts about a computer: the whole input of the checks, and the content of a snapshot.

Plain data, so that a snapshot is these classes written as JSON (`snapshot`). Paths are in the form of the
computer that they are of. Nothing here depends on what is wrong with that computer: judging is the checks' job.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Computer:
    """A computer and its NPU.

    Args:
        system: "Windows" or "Linux".
        machine: Native machine type.
        processor: Its name, where the system reports it.
        chip: Qualcomm's part name; ``None`` for an unknown chip.
        arch: Hexagon version of its NPU, 73 for V73; ``None`` for an unknown chip.
    """

    system: str
    machine: str
    windows_build: int | None = None
    processor: str | None = None
    chip: str | None = None
    arch: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PythonReport:
    """The self-description of an interpreter.

    Args:
        platform: `sysconfig.get_platform`.
        machine: `platform.machine`, which onnxruntime-qnn believes.
        env_machine: PROCESSOR_ARCHITECTURE.
        path: Its `sys.path`.
        externally_managed: pip refuses to install into it (PEP 668).
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
        """ "cp313" """
        return "cp" + "".join(self.version.split(".")[:2])

    @property
    def minor(self) -> tuple[int, int]:
        parts = self.version.split(".")
        return int(parts[0]), int(parts[1])


@dataclasses.dataclass(frozen=True, slots=True)
class StartFailure:
    """A program that did not do what it was started for. exit_code: raw, ``None`` if it did not start or hung."""

    exit_code: int | None
    said: str


@dataclasses.dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file of a package that is not as its RECORD says. what: "missing", "size", "hash"."""

    path: str
    what: str
    recorded: int
    found: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution that matters here.

    Args:
        tags: Of its wheel.
        wrong: Files unlike its RECORD.
        needs: Of onnxruntime-genai, the versions of onnxruntime that it works with: ">=1.31.0".
        origin: Checkout or wheel that qnnbridge was installed from; empty for other packages, or from an index.
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
        arch: Of stub, skel and catalog.
        in_catalog: Of a skel, whether the catalog of its arch holds its hash.
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
    """The libraries of QNN in one folder. sdk: version of the backend, or of the others where it names none."""

    folder: str
    files: tuple[QnnFile, ...]
    sdk: str | None = None

    def of(self, role: str) -> tuple[QnnFile, ...]:
        return tuple(file for file in self.files if file.role == role)

    def archs(self, role: str) -> frozenset[int]:
        return frozenset(file.arch for file in self.of(role) if file.arch is not None)


@dataclasses.dataclass(frozen=True, slots=True)
class Packages:
    """The packages of an interpreter.

    Args:
        runtime: Folder of the module onnxruntime.
        runtime_package, runtime_version: The distribution that the files of this module name.
        plugin: Folder of the module onnxruntime_qnn.
        plugin_sdk: QNN version that this package names.
        loaded: The folder whose QNN libraries are loaded, if that is known.
        sets: All folders of QNN libraries in the packages.
        runtime_folder_has_qnn: Whether libraries of a 1.x onnxruntime-qnn lie in the folder of onnxruntime.
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
    # Those of qnnbridge_host, qnnbridge_protocol, msgpack, numpy, onnxruntime, onnxruntime_qnn that are there.
    modules: tuple[str, ...] = ()

    def distribution(self, name: str) -> Distribution | None:
        return next((found for found in self.distributions if found.name == name), None)

    def version(self, name: str) -> str | None:
        found = self.distribution(name)
        return found.version if found else None

    @property
    def qnn_sdk(self) -> str | None:
        """Version of the QNN that would be loaded: by its libraries, else by the package."""
        return (self.loaded_set.sdk if self.loaded_set else None) or self.plugin_sdk

    @property
    def loaded_set(self) -> QnnSet | None:
        return next((found for found in self.sets if found.folder == self.loaded), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter that was found.

    Args:
        sources: Where it was found ("registry", "PATH", "configured", "running").
        machine: Machine type of the file; ``None`` for a script.
        base, base_machine: Path and machine type of the program behind a virtual environment's launcher on Windows.
        tag: For ``py -V:tag``.
        refusal: Why it cannot be the host, as a finding's code.
        said: The refusal as text; both are empty if it can be the host.
        qnn: Version of its onnxruntime-qnn.
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
        # The launcher of an environment on Windows may be of another machine type than the Python that it starts.
        return self.base_machine or self.machine


@dataclasses.dataclass(frozen=True, slots=True)
class HostFacts:
    """The interpreter that the host runs with, or why there is none.

    Args:
        path: Empty if nothing was chosen.
        refusal: Code of the finding, empty if it can be started.
        said: The refusal as text.
        looked_at: The interpreters that were tried.
        answer, death: The result of starting it.
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
        status: "none", "ok", "disabled", "problem".
        problem: The device manager's number.
        runtime: Version of QNN in the driver (HtpUsrDrv).
        has_fastrpc: Whether libcdsprpc is in its folder.
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
    """A QNN SDK on this computer. name: of the variable, or "default folder"."""

    name: str
    folder: str
    exists: bool
    version: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ForeignQnn:
    """QNN libraries that are not of the packages, on a path that loaders search. via: "PATH",
    "ADSP_LIBRARY_PATH"."""

    via: str
    folder: str
    names: tuple[str, ...]
    version: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class CatalogueProvider:
    """A provider in the catalogue of Windows ML. state: "Ready", "NotReady", "NotPresent". sdk: of its QNN."""

    name: str
    version: str = ""
    package: str = ""
    library: str = ""
    state: str = ""
    sdk: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Catalogue:
    """problem, fix: as text, if it cannot be read."""

    providers: tuple[CatalogueProvider, ...] = ()
    problem: str = ""
    fix: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineFacts:
    """Where the host is to take QNN from. wanted: "auto", "wheel", "windowsml", "folder". path: of a folder.
    catalogue: ``None`` where nothing reads one."""

    wanted: str = "auto"
    path: str = ""
    catalogue: Catalogue | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class FolderFacts:
    """A folder that matters. what: "host packages", "cache", "state"."""

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
    """The state that qnnbridge keeps. quarantined: names of models. cache_damaged: unusable entries."""

    quarantined: tuple[str, ...] = ()
    crashes: tuple[Crash, ...] = ()
    cache_entries: int = 0
    cache_bytes: int = 0
    cache_damaged: tuple[str, ...] = ()
    # Of those, what is in place still.
    cache_bad_keys: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonFacts:
    """The daemon that applications of this user would find.

    Args:
        state: "none", "runs", "stale" (its file is there, it is not), "silent" (it is there and does not
            answer), "untrusted" (others could use its folder).
        said, fix: As text, for all but the first two.
        version, pid: Of one that runs, or of the file.
        fits: Whether applications of this version may use it.
        dies_with_us: Whether a daemon that is started by this process would be ended together with it.
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
    """The file that the user says the application gives as backend_path."""

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
    """A live probe: which interpreter is the host, which model (``None``: the doctor's own), how long at most."""

    host_python: str
    model: str | None
    timeout_s: float
    dimensions: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a live probe.

    Args:
        failed: The stage that failed, empty if all went well.
        error: Name of the class of the error.
        skipped: Why no probe was made.
        qnn_nodes, cpu_nodes: Nodes of the session by where they run.
        difference: The largest difference from the right numbers.
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
        return sum(stage.seconds for stage in self.stages)


@dataclasses.dataclass(frozen=True, slots=True)
class NumbersRequest:
    """Which rows of the table of known-wrong operators are measured.

    Args:
        host_python: The interpreter of the host, empty for the usual one.
        timeout_s: For all rows.
        soc_model: Of the simulator: the chip that it computes for, empty for its default.
        rows: Names, none for all.
        missing: Only those without a result.
        npu: None where QNN computes on a simulator.
    """

    host_python: str = ""
    timeout_s: float = 600.0
    soc_model: str = ""
    rows: tuple[str, ...] = ()
    missing: bool = False
    npu: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredFacts:
    """Measured results of the known-wrong table on one chip, driver and version of QNN.

    Args:
        chip: The number of its ``soc_model``, 0 for one that is not known.
        rows: "right", "wrong" or "unclear", by name.
        digests: Of each row, as it was then.
        when: Seconds since the epoch.
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
        problem: Why it cannot be read.
        verdict: For a compiled model "ok", "recompile recommended" or "cannot run here", with reasons.
        dynamic: Inputs whose dimensions are not fixed.
        free: These dimensions, as ``--dim`` takes them.
        zero: Tensors of no elements.
        missing: Files of weights that it names and that are not there.
        is_folder: Whether the path is a folder.
        layout: Of a folder with genai_config.json, as `qnnbridge_host.model.genai_folder` names it.
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
    """All of it. complete: libraries were hashed and a probe was made, as without ``--quick``."""

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
    # Variables of qnnbridge with an unusable value, described.
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
    # Parts of the survey that failed, with the error.
    unknown: tuple[str, ...] = ()

    @property
    def is_windows(self) -> bool:
        return self.computer.system == "Windows"

    @property
    def is_arm(self) -> bool:
        return self.computer.machine in ("ARM64", "aarch64")
