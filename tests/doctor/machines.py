"""Simulated computers to diagnose: file system, registry, environment and interpreters, built by code.

The computers implement the interface `machine.Machine`. Their packages have the files, sizes and hashes of real
wheels (their RECORD files, unchanged), and the machine types and QNN builds that were read from these wheels.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import functools
import json
import ntpath
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qnnbridge_protocol import __version__
from qnnbridge_tools.doctor.facts import (
    Catalogue,
    DaemonFacts,
    NumbersRequest,
    ProbeRequest,
    ProbeResult,
    PythonReport,
    StartFailure,
)
from qnnbridge_tools.doctor.machine import (
    CacheContents,
    Kind,
    Library,
    RegisteredInterpreter,
    RegistryValue,
    Root,
)

RECORDS = (Path(__file__).parent / "wheel_records", Path(__file__).parents[1] / "engine" / "wheel_records")
NOW = 1_795_000_000.0  # 2026-11-18
CONTROL_SET = r"SYSTEM\CurrentControlSet"
DRIVER_FOLDER = r"C:\Windows\System32\DriverStore\FileRepository\qcnspmcdm8380.inf_arm64_1e2d3c4b5a697887"
SITE = r"Lib\site-packages"
WINDOWS_NAMES = {"ARM64": "win-arm64", "x64": "win-amd64", "x86": "win32"}
# Version resources of QnnHtp.dll (2.4.0: invented except for the first two numbers; 2.9.0: does not
# exist).
SDKS = {
    "1.20.0": "2.27.0.240926142112_100894",
    "1.22.0": "2.33.2.250410134701_117956",
    "1.22.2": "2.36.1.250708151608_123266",
    "1.23.2": "2.37.1.250807093845_124904",
    "1.24.1": "2.42.0.251225135753_193295",
    "2.3.0": "2.47.0.260601114230",
    "2.4.0": "2.48.40.260701000000",
    "2.7.0": "2.51.0.260929181845",
    "2.9.0": "2.53.0.261110000000",
}


@dataclasses.dataclass
class File:
    size: int = 0
    sha256: str = ""
    data: bytes | None = None
    library: Library | None = None
    is_alias: bool = False


class SimulatedMachine:
    """A computer in memory. See `qnnbridge_tools.doctor.machine.Machine`."""

    def __init__(self, system: str, machine: str, environ: dict[str, str], home: str, user: str) -> None:
        self.system, self.machine, self.environ, self.home, self.user = system, machine, environ, home, user
        self.build: int | None = 26100 if system == "Windows" else None
        self.paths: Any = ntpath if system == "Windows" else posixpath
        self.files: dict[str, File] = {}
        self.folders: dict[str, dict[str, str]] = {}
        self.values: dict[tuple[str, str, str], RegistryValue] = {}
        self.problems: dict[str, int] = {}
        self.pythons: list[RegisteredInterpreter] = []
        self.answers: dict[str, PythonReport | StartFailure] = {}
        self.running_python = ""
        self.links: dict[str, str] = {}
        self.read_only: set[str] = set()
        self.network: set[str] = set()
        self.closed_devices: set[str] = set()
        self.free = 100 << 30
        self.cached = CacheContents()
        self.found_daemon = DaemonFacts()
        self.found_catalogue: Catalogue | None = None
        self.probed: list[ProbeRequest] = []
        self.numbers_asked: list[NumbersRequest] = []
        self.probe_result = ProbeResult(skipped="this computer is simulated")

    # --- building ---

    def put(self, path: str, file: File | None = None, text: str | None = None) -> File:
        file = file or File()
        if text is not None:
            file.data = text.encode()
            file.size = len(file.data)
        self.files[self._key(path)] = file
        while True:
            folder, name = self.paths.split(path)
            if not name or name in self.folders.setdefault(self._key(folder), {}).values():
                return file
            self.folders[self._key(folder)][self._key(name)] = name
            path = folder

    def remove(self, path: str) -> None:
        del self.files[self._key(path)]
        folder, name = self.paths.split(path)
        del self.folders[self._key(folder)][self._key(name)]

    def remove_folder(self, path: str) -> None:
        key = self._key(path) + self.paths.sep
        for name in [name for name in self.files if name.startswith(key)]:
            del self.files[name]
        for name in [name for name in self.folders if (name + self.paths.sep).startswith(key)]:
            del self.folders[name]
        folder, name = self.paths.split(path)
        del self.folders[self._key(folder)][self._key(name)]

    def file(self, path: str) -> File:
        return self.files[self._key(path)]

    def set_value(self, key: str, name: str, value: RegistryValue, root: str = "HKLM") -> None:
        self.values[root, key.lower(), name.lower()] = value

    def drop_values(self, part: str) -> None:
        for key in [key for key in self.values if part.lower() in key[1]]:
            del self.values[key]

    def _key(self, path: str) -> str:
        return str(self.paths.normcase(self.paths.normpath(path))) if path else ""

    # --- interface of Machine ---

    def windows_build(self) -> int | None:
        return self.build

    def now(self) -> float:
        return NOW

    def kind(self, path: str) -> Kind | None:
        key = self._key(path)
        return "file" if key in self.files else "folder" if key in self.folders else None

    def size(self, path: str) -> int | None:
        file = self.files.get(self._key(path))
        return file.size if file else None

    def names(self, folder: str) -> Sequence[str]:
        return sorted(self.folders.get(self._key(folder), {}).values())

    def data(self, path: str, limit: int) -> bytes | None:
        file = self.files.get(self._key(path))
        return file.data[:limit] if file and file.data is not None else None

    def sha256(self, path: str) -> str | None:
        file = self.files.get(self._key(path))
        return file.sha256 if file else None

    def library(self, path: str, *, version: bool) -> Library | None:
        file = self.files.get(self._key(path))
        if file is None or file.library is None:
            return None
        return file.library if version else Library(file.library.machine)

    def real_path(self, path: str) -> str:
        return self.links.get(path, path)

    def is_store_alias(self, path: str) -> bool:
        file = self.files.get(self._key(path))
        return file is not None and file.is_alias

    def is_writable(self, folder: str) -> bool:
        return not self._is_under(folder, self.read_only)

    def can_open_device(self, path: str) -> bool:
        return path not in self.closed_devices

    def free_bytes(self, folder: str) -> int | None:
        return self.free

    def is_network(self, path: str) -> bool:
        return path.startswith("\\\\") or self._is_under(path, self.network)

    def cache(self, folder: str) -> CacheContents:
        return self.cached

    def daemon(self) -> DaemonFacts:
        return self.found_daemon

    def registry(self, root: Root, key: str, name: str) -> RegistryValue | None:
        return self.values.get((root, key.lower(), name.lower()))

    def registry_keys(self, root: Root, key: str) -> Sequence[str]:
        start = key.lower() + "\\"
        found = (k[len(start) :].split("\\")[0] for r, k, _ in self.values if r == root and k.startswith(start))
        return sorted(set(found))

    def registered_pythons(self) -> Sequence[RegisteredInterpreter]:
        return self.pythons

    def device_problem(self, instance: str) -> int | None:
        return self.problems.get(instance)

    def running(self) -> PythonReport:
        answer = self.answers[self._key(self.running_python)]
        assert isinstance(answer, PythonReport)
        return answer

    def ask(self, python: str) -> PythonReport | StartFailure:
        return self.answers.get(self._key(python)) or StartFailure(
            None, "[WinError 193] not a valid Win32 application"
        )

    def catalogue(self, python: str) -> Catalogue | None:
        return self.found_catalogue

    def probe(self, order: ProbeRequest) -> ProbeResult:
        self.probed.append(order)
        return self.probe_result

    def measure_numbers(self, request: NumbersRequest) -> str:
        self.numbers_asked.append(request)
        return ""

    def _is_under(self, path: str, folders: set[str]) -> bool:
        return any((self._key(path) + self.paths.sep).startswith(self._key(f) + self.paths.sep) for f in folders)


@dataclasses.dataclass
class Python:
    """An interpreter on a simulated computer, into which packages can be installed."""

    machine: SimulatedMachine
    executable: str
    site: str
    version: str
    platform: str

    @property
    def tag(self) -> str:
        return "cp" + "".join(self.version.split(".")[:2])

    def path(self, name: str) -> str:
        return str(self.machine.paths.join(self.site, *name.split("/")))

    def answer(self, **changes: Any) -> None:
        key = self.machine._key(self.executable)
        old = self.machine.answers[key]
        assert isinstance(old, PythonReport)
        self.machine.answers[key] = dataclasses.replace(old, **changes)

    def die(self, code: int | None, said: str = "") -> None:
        self.machine.answers[self.machine._key(self.executable)] = StartFailure(code, said)


# --- computers -------------------------------------------------------------------------------------------


def windows_on_arm(
    processor: str = "Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU",
    device: str = "Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Hexagon(TM) NPU",
    system_qnn: str | None = None,
    home: str = r"C:\Users\maria",
) -> SimulatedMachine:
    """Return a Snapdragon PC with its NPU driver and no Python. system_qnn: version of HtpUsrDrv.dll, if any."""
    machine = _windows("ARM64", processor, home)
    instance = r"ACPI\QCOM0D0A\2&DABA3FF&0"
    driver_class = r"{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}\0000"
    service = rf"{CONTROL_SET}\Services\qcnspmcdm"
    image = DRIVER_FOLDER.replace(r"C:\Windows", r"\SystemRoot") + r"\qcnspmcdm8380.sys"
    machine.set_value(service, "ImagePath", image)
    machine.set_value(service, "Start", 3)
    machine.set_value(rf"{service}\Enum", "0", instance)
    machine.set_value(rf"{CONTROL_SET}\Enum\{instance}", "Driver", driver_class)
    machine.set_value(rf"{CONTROL_SET}\Enum\{instance}", "FriendlyName", device)
    machine.set_value(rf"{CONTROL_SET}\Control\Class\{driver_class}", "DriverVersion", "30.0.220.3000")
    machine.problems[instance] = 0
    machine.put(rf"{DRIVER_FOLDER}\libcdsprpc.dll", File(90_000, library=Library("ARM64", "30.0.220.3000")))
    if system_qnn is not None:
        machine.put(rf"{DRIVER_FOLDER}\HTP\HtpUsrDrv.dll", File(900_000, library=Library("ARM64", system_qnn)))
    return machine


def x64_pc() -> SimulatedMachine:
    return _windows("x64", "13th Gen Intel(R) Core(TM) i7-1360P", r"C:\Users\maria")


def _windows(native: str, processor: str, home: str) -> SimulatedMachine:
    environ = {
        "PATH": r"C:\Windows\system32;C:\Windows",
        "SystemRoot": r"C:\Windows",
        "LOCALAPPDATA": rf"{home}\AppData\Local",
        "USERPROFILE": home,
        "PROCESSOR_IDENTIFIER": "ARMv8 (64-bit)" if native == "ARM64" else "Intel64 Family 6",
    }
    machine = SimulatedMachine("Windows", native, environ, home, home.rpartition("\\")[2])
    machine.set_value(r"HARDWARE\DESCRIPTION\System\CentralProcessor\0", "ProcessorNameString", processor + "  ")
    for name in ("msvcp140.dll", "msvcp140_1.dll", "vcruntime140.dll", "vcruntime140_1.dll"):
        machine.put(rf"C:\Windows\System32\{name}", File(500_000, library=Library("ARM64X", "14.44.35211.0")))
    return machine


def linux(native: str = "x86_64") -> SimulatedMachine:
    machine = SimulatedMachine("Linux", native, {"PATH": "/usr/bin:/bin"}, "/home/maria", "maria")
    if native == "aarch64":
        machine.put("/dev/fastrpc-cdsp")
        machine.put("/proc/device-tree/model", text="Qualcomm Technologies, Inc. Robotics RB3gen2\0")
    return machine


# --- interpreters ----------------------------------------------------------------------------------------


def add_python(
    machine: SimulatedMachine,
    prefix: str,
    version: str = "3.13.1",
    kind: str = "ARM64",
    *,
    registered: bool = True,
    running: bool = False,
    executable: str | None = None,
) -> Python:
    """Add an interpreter and return it.

    Args:
        kind: machine type. On Windows the interpreter is in the registry, unless disabled.
    """
    if machine.system != "Windows":
        return _add_unix_python(machine, prefix, version, kind, running)
    executable = executable or rf"{prefix}\python.exe"
    short = ".".join(version.split(".")[:2])
    machine.put(executable, File(100_000, library=Library(kind, version)))
    site = rf"{prefix}\{SITE}"
    machine.put(rf"{site}\README.txt", text="")
    if registered:
        tag = short + {"ARM64": "-arm64", "x86": "-32"}.get(kind, "")
        machine.pythons.append(RegisteredInterpreter(tag, short, executable, prefix))
    # PROCESSOR_ARCHITECTURE is that of the process; platform.machine() asks Windows itself from 3.12 on.
    env_machine = {"x64": "AMD64", "x86": "x86"}.get(kind, "ARM64")
    told = env_machine if tuple(map(int, short.split("."))) < (3, 12) and kind != "x86" else machine.machine
    machine.answers[machine._key(executable)] = PythonReport(
        executable=executable,
        version=version,
        platform=WINDOWS_NAMES[kind],
        machine={"x64": "AMD64"}.get(told, told),
        env_machine=env_machine,
        prefix=prefix,
        base_executable=executable,
        path=(rf"{prefix}\DLLs", rf"{prefix}\Lib", site),
        user_site=rf"{machine.home}\AppData\Roaming\Python\Python{short.replace('.', '')}\site-packages",
    )
    if running:
        machine.running_python = executable
        machine.environ["PROCESSOR_ARCHITECTURE"] = env_machine
    return Python(machine, executable, site, version, WINDOWS_NAMES[kind])


def _add_unix_python(machine: SimulatedMachine, prefix: str, version: str, kind: str, running: bool) -> Python:
    short = ".".join(version.split(".")[:2])
    executable = f"{prefix}/bin/python3"
    machine.put(executable, File(6_000_000, library=Library(kind)))
    site = f"{prefix}/lib/python{short}/site-packages"
    machine.put(f"{site}/README.txt", text="")
    platform = f"linux-{kind}"
    machine.answers[machine._key(executable)] = PythonReport(
        executable, version, platform, kind, "", prefix, executable, (f"{prefix}/lib/python{short}", site)
    )
    if running:
        machine.running_python = executable
    return Python(machine, executable, site, version, platform)


def add_venv(machine: SimulatedMachine, folder: str, base: Python, launcher: str | None = None) -> Python:
    """Add a virtual environment of Windows, whose python.exe only starts the base interpreter."""
    kind = {name: key for key, name in WINDOWS_NAMES.items()}[base.platform]
    python = add_python(
        machine, folder, base.version, kind, registered=False, executable=rf"{folder}\Scripts\python.exe"
    )
    machine.put(
        rf"{folder}\pyvenv.cfg", text=f"home = {ntpath.dirname(base.executable)}\nversion = {base.version}\n"
    )
    machine.file(python.executable).library = Library(launcher or kind)
    python.answer(base_executable=base.executable)
    return python


# --- packages --------------------------------------------------------------------------------------------


def install(python: Python, distribution: str, version: str, platform: str | None = None, **changes: Any) -> None:
    """Install the files of a real wheel.

    Args:
        platform: platform of the wheel; by default that of the interpreter.
        record: version whose RECORD is used if this version has none.
        tag: tag of another Python.
    """
    platform = platform or python.platform.replace("-", "_")
    record = changes.get("record", version)
    info = f"{distribution.replace('-', '_')}-{version}.dist-info"
    rows = []
    skels: dict[str, bytes] = {}
    for name, digest, size in _record(distribution, record, platform):
        name = name.replace(f"-{record}.dist-info", f"-{version}.dist-info")
        rows.append(f"{name},{digest},{size}")
        sha256 = _hex(digest)
        file = File(int(size or 0), sha256, library=_library(distribution, version, platform, name))
        python.machine.put(python.path(name), file)
        if name.endswith("Skel.so"):
            skels[name] = bytes.fromhex(sha256)
    for name, digest_bytes in skels.items():
        # The catalogue that signs a skel library contains its hash among other bytes.
        catalog = python.path(name.replace("libQnnHtpV", "libqnnhtpv").replace("Skel.so", ".cat"))
        if python.machine.kind(catalog):
            python.machine.file(catalog).data = b"0\x82" + bytes(100) + digest_bytes + bytes(100)
    tag = changes.get("tag", python.tag)
    python.machine.put(python.path(f"{info}/RECORD"), text="\n".join(rows) + "\n")
    wheel = platform.replace("linux", "manylinux_2_28")
    python.machine.put(python.path(f"{info}/WHEEL"), text=f"Wheel-Version: 1.0\nTag: {tag}-{tag}-{wheel}\n")
    _write_constants(python, distribution, version)


def _write_constants(python: Python, distribution: str, version: str) -> None:
    plugin = distribution == "onnxruntime-qnn" and not version.startswith("1.")
    if version.startswith("1.20"):
        return  # this release had no such file
    lines = [f"package_name = '{distribution}'", f"__version__ = '{version}'"]
    if plugin:
        sdk = SDKS.get(version, "2.51.0")
        lines = [f"__version__ = '{version}'", f"qnn_version = '{'.'.join(sdk.split('.')[:3])}'"]
    folder = "onnxruntime_qnn" if plugin else "onnxruntime/capi"
    python.machine.put(python.path(f"{folder}/build_and_package_info.py"), text="\r\n".join(lines) + "\r\n")


@functools.cache
def _record(distribution: str, version: str, platform: str) -> tuple[tuple[str, str, str], ...]:
    for path in (RECORDS[0] / f"{distribution}-{version}-{platform}.txt", RECORDS[1] / f"{version}-{platform}.txt"):
        if path.exists() and (distribution == "onnxruntime-qnn" or path.parent == RECORDS[0]):
            with open(path, newline="") as file:
                return tuple((row[0], row[1], row[2]) for row in csv.reader(file))
    raise LookupError(f"no RECORD of {distribution} {version} for {platform}")


def _hex(digest: str) -> str:
    text = digest.partition("=")[2]
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()


def _library(distribution: str, version: str, platform: str, name: str) -> Library | None:
    """Return machine type and build of a library as they were read from the PE headers of the wheels."""
    base = name.rpartition("/")[2]
    if base.endswith("Skel.so"):
        return Library("hexagon")
    if not base.endswith((".dll", ".pyd", ".so")):
        return None
    qnn = base.startswith(("Qnn", "HtpPrepare", "Genie", "libQnn", "libHtpPrepare", "libGenie"))
    said = SDKS.get(version) if qnn else version
    if platform.startswith("linux"):
        # Only these three libraries contain their build as text.
        told = said if base in ("libQnnHtp.so", "libHtpPrepare.so", "libQnnSaver.so", "libQnnIr.so") else None
        return Library(platform.partition("_")[2], told)
    machine = "ARM64" if platform == "win_arm64" else "x64"
    hybrid = distribution == "onnxruntime-qnn" and platform == "win_amd64" and version != "1.22.2"
    if hybrid and "/libs/amd64/" not in name:
        machine = "ARM64X" if qnn else "ARM64EC"
    return Library(machine, said)


def install_small(python: Python, module: str, distribution: str | None = None, version: str = "1.0") -> None:
    """Install a pure package of one file."""
    name = distribution or module
    python.machine.put(python.path(f"{module}/__init__.py"), text="")
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    python.machine.put(python.path(f"{info}/RECORD"), text=f"{module}/__init__.py,sha256=,0\n")
    python.machine.put(python.path(f"{info}/WHEEL"), text="Tag: py3-none-any\n")


def install_bridge(python: Python, version: str = __version__) -> None:
    """Install qnnbridge and the requirements of its application side."""
    for module in ("qnnbridge_host", "qnnbridge_protocol", "qnnbridge"):
        install_small(python, module, "qnnbridge", version)
    checkout = "file:///C:/src/qnnbridge" if python.machine.system == "Windows" else "file:///src/qnnbridge"
    info = python.path(f"qnnbridge-{version}.dist-info/direct_url.json")
    python.machine.put(info, text=json.dumps({"url": checkout, "dir_info": {}}))
    install_small(python, "numpy", version="2.4.6")
    install_small(python, "msgpack", version="1.2.4")


def make_host(python: Python, qnn: str = "2.7.0", ort: str | None = "1.31.1") -> Python:
    """Install everything that a host needs. A 1.x release contains its own onnxruntime."""
    install_bridge(python)
    record = {"record": "2.7.0"} if not qnn.startswith("1.") and qnn not in ("2.3.0", "2.7.0") else {}
    if ort is not None and not qnn.startswith("1."):
        install(python, "onnxruntime", ort, **({} if ort in ("1.31.1", "1.32.0") else {"record": "1.32.0"}))
    install(python, "onnxruntime-qnn", qnn, **record)
    return python


def snapdragon(
    qnn: str = "2.7.0", ort: str | None = "1.31.1", version: str = "3.13.1", **computer: Any
) -> tuple[SimulatedMachine, Python, Python]:
    """Return the usual computer, with its two Pythons.

    The application runs in an emulated x64 Python, and the host in a native one.
    """
    machine = windows_on_arm(**computer)
    application = add_python(machine, rf"{machine.home}\app", "3.12.4", "x64", running=True)
    install_bridge(application)
    host = make_host(add_python(machine, r"C:\Python-arm64", version), qnn, ort)
    return machine, application, host


# --- earlier events --------------------------------------------------------------------------------------


def add_quarantine(machine: SimulatedMachine, model: str, age_s: float = 60) -> None:
    account = {"id": "ab", "model": model, "fingerprint": "f" * 64, "since": NOW - age_s}
    path = machine.paths.join(_state(machine), "quarantine.json")
    machine.put(path, text=json.dumps({"schema": 1, "accounts": [account]}))


def add_crash(machine: SimulatedMachine, when: str) -> None:
    report = {
        "id": "20261117-120000-ab12cd34",
        "when": when,
        "exit": {"name": "STATUS_STACK_BUFFER_OVERRUN"},
        "phase": "running",
        "models": ["net.onnx"],
        "diagnoses": [{"cause": "QNN crashed on this model."}],
    }
    path = machine.paths.join(_state(machine), "crashes", "20261117-120000-ab12cd34.json")
    machine.put(path, text=json.dumps(report))


def _state(machine: SimulatedMachine) -> str:
    if machine.system == "Windows":
        return str(ntpath.join(machine.environ["LOCALAPPDATA"], "qnnbridge"))
    return posixpath.join(machine.home, ".local/state/qnnbridge")


def install_genai(python: Python, version: str = "0.18.0", needs: str = ">=1.31.0", **changes: Any) -> None:
    """Install the files of onnxruntime-genai that the doctor reads. tag, platform: those of the wheel."""
    info = f"onnxruntime_genai-{version}.dist-info"
    platform = changes.get("platform") or python.platform.replace("-", "_").replace("linux", "manylinux_2_28")
    tag = changes.get("tag", python.tag)
    python.machine.put(python.path("onnxruntime_genai/__init__.py"), text="")
    python.machine.put(python.path(f"{info}/RECORD"), text="onnxruntime_genai/__init__.py,sha256=,0\n")
    python.machine.put(python.path(f"{info}/WHEEL"), text=f"Wheel-Version: 1.0\nTag: {tag}-{tag}-{platform}\n")
    metadata = f"Name: onnxruntime-genai\nRequires-Dist: numpy>=1.21.6\nRequires-Dist: onnxruntime{needs}\n"
    python.machine.put(python.path(f"{info}/METADATA"), text=metadata)
