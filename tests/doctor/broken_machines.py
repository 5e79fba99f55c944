"""Broken computers, each with exactly one fault, and the expected finding."""

from __future__ import annotations

import dataclasses
import ntpath
from collections.abc import Callable

from machines import (
    CONTROL_SET,
    DRIVER_FOLDER,
    File,
    Python,
    SimulatedMachine,
    add_crash,
    add_python,
    add_quarantine,
    add_venv,
    install,
    install_bridge,
    install_genai,
    install_small,
    linux,
    make_host,
    snapdragon,
    windows_on_arm,
    x64_pc,
)

from qnnbridge_tools.doctor.examine import SurveyOptions
from qnnbridge_tools.doctor.facts import Catalogue, CatalogueProvider, DaemonFacts, ProbeResult
from qnnbridge_tools.doctor.machine import CacheContents, Library

Build = Callable[[], "SimulatedMachine | tuple[SimulatedMachine, SurveyOptions]"]


@dataclasses.dataclass(frozen=True)
class Broken:
    """A broken computer.

    Args:
        code: code of its only finding.
        words: text that the finding's title, evidence or fix contains.
    """

    code: str
    words: tuple[str, ...]
    build: Build

    @property
    def name(self) -> str:
        return f"{self.code}: {self.build.__name__}"


BROKEN: list[Broken] = []
SERVICE = rf"{CONTROL_SET}\Services\qcnspmcdm"
INSTANCE = r"ACPI\QCOM0D0A\2&DABA3FF&0"


def broken(code: str, *words: str) -> Callable[[Build], Build]:
    def add(build: Build) -> Build:
        BROKEN.append(Broken(code, words, build))
        return build

    return add


def _qnn(host: Python, name: str) -> str:
    return host.path(f"onnxruntime_qnn/{name}")


# --- the source of QNN ---


def with_catalogue(
    *providers: CatalogueProvider,
    engine: str = "windowsml",
    wheel: str | None = None,
    problem: str = "",
    **more: str,
) -> SimulatedMachine:
    """Return a host with windowsml.

    Args:
        wheel: the installed release of onnxruntime-qnn, if any.
        more: further properties of the computer.
    """
    machine, _, host = snapdragon(wheel or "2.7.0", **more)
    install_small(host, "windowsml", version="2.5.96")
    if wheel is None:
        host.machine.remove_folder(host.path("onnxruntime_qnn"))
        host.machine.remove_folder(host.path("onnxruntime_qnn-2.7.0.dist-info"))
    if engine:
        machine.environ["QNNBRIDGE_ENGINE"] = engine
    fix = "Reinstall windowsml." if problem else ""
    machine.found_catalogue = Catalogue(tuple(providers), problem, fix)
    return machine


def of_catalogue(machine: SimulatedMachine, sdk: str) -> SimulatedMachine:
    """Use the QNN of the catalogue's provider on the disk."""
    machine.put(rf"{CATALOGUE_FOLDER}\QnnHtp.dll", File(2_000_000, library=Library("ARM64", sdk)))
    return machine


CATALOGUE_FOLDER = r"C:\Program Files\WindowsApps\QNN.EP.1.8_1.8.21.0_arm64__8wekyb3d8bbwe\ExecutionProvider"
READY = CatalogueProvider(
    "QNNExecutionProvider", "1.8.21.0", "QNN", rf"{CATALOGUE_FOLDER}\onnxruntime_providers_qnn.dll", "Ready"
)
ABSENT = dataclasses.replace(READY, library="", state="NotPresent")
OTHER = CatalogueProvider("VitisAIExecutionProvider", "1.8.1", state="NotPresent")


@broken("engine.catalogue-unreadable", "0x80040154", "Reinstall windowsml", "QNNBRIDGE_ENGINE")
def a_catalogue_that_windows_does_not_open() -> SimulatedMachine:
    return with_catalogue(problem="Class not registered (HRESULT 0x80040154)")


@broken("engine.catalogue-no-qnn", "VitisAIExecutionProvider", "Update Windows")
def a_catalogue_without_qnn() -> SimulatedMachine:
    return with_catalogue(OTHER)


@broken("engine.not-downloaded", "1.8.21.0", "windows_ml download")
def a_provider_that_is_not_downloaded() -> SimulatedMachine:
    return with_catalogue(OTHER, ABSENT)


@broken("engine.not-downloaded", "1.8.21.0", "windows_ml download")
def a_provider_that_is_not_downloaded_where_nothing_is_set_and_no_wheel_is() -> SimulatedMachine:
    return with_catalogue(ABSENT, engine="")


@broken("engine.catalogue-fits-better", "2.51.0", "2.45.40", "2.46.0", "QNNBRIDGE_ENGINE windowsml")
def a_wheel_that_is_too_new_and_a_catalogue_that_fits() -> SimulatedMachine:
    machine = with_catalogue(READY, wheel="2.7.0", engine="", system_qnn="2.46.0.0")
    return of_catalogue(machine, "2.45.40.251028153101")


# --- computers ---


@broken("arch.no-qualcomm", "Apple")
def windows_in_a_virtual_machine_of_a_mac() -> SimulatedMachine:
    machine, _, _ = snapdragon(processor="Apple Silicon")
    machine.drop_values("qcnspmcdm")
    return machine


@broken("arch.windows-too-old", "19045")
def windows_10() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.build = 19045
    return machine


# --- choice of the interpreter ---


@broken("host.file-missing", "C:\\gone\\python.exe", "setx QNNBRIDGE_HOST_PYTHON", "C:\\Python-arm64\\python.exe")
def variable_names_an_interpreter_that_is_gone() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = r"C:\gone\python.exe"
    return machine


@broken("host.file-missing", "PATH")
def argument_names_a_program_that_is_not_on_the_path() -> tuple[SimulatedMachine, SurveyOptions]:
    return snapdragon()[0], SurveyOptions(host_python="python-arm64")


@broken("host.config-broken", "config.toml", "single quotes")
def configuration_with_backslashes_in_double_quotes() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.put(
        ntpath.join(machine.environ["LOCALAPPDATA"], "qnnbridge", "config.toml"),
        text='[host]\npython = "C:\\Python-arm64\\python.exe"\n',
    )
    return machine


@broken("host.config-broken", "'host' is not a table", "[host]")
def configuration_without_a_table() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.put(ntpath.join(machine.environ["LOCALAPPDATA"], "qnnbridge", "config.toml"), text="host = 'python'\n")
    return machine


@broken("host.config-broken", "not a UTF-8 text")
def configuration_in_utf_16_as_windows_powershell_writes() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    path = ntpath.join(machine.environ["LOCALAPPDATA"], "qnnbridge", "config.toml")
    machine.put(path, text="").data = "\ufeff[host]\n".encode("utf-16-le")
    return machine


@broken("host.file-missing", "--host-python")
def argument_that_is_empty() -> tuple[SimulatedMachine, SurveyOptions]:
    return snapdragon()[0], SurveyOptions(host_python="")


@broken("host.config-broken", "does not exist", "QNNBRIDGE_CONFIG", "qnnbridge setup")
def configuration_that_is_named_and_absent() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.environ["QNNBRIDGE_CONFIG"] = r"D:\nowhere.toml"
    return machine


@broken("host.store-alias", "Microsoft Store")
def alias_of_the_store() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    alias = rf"{machine.environ['LOCALAPPDATA']}\Microsoft\WindowsApps\python.exe"
    machine.put(alias, File(0, is_alias=True))
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = alias
    return machine


@broken("host.wrong-machine", "x86")
def x86_python_as_the_host() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    python = make_small_host(add_python(machine, r"C:\Python311-32", "3.11.9", "x86"))
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = python.executable
    return machine


@broken("host.wrong-machine", "x64")
def virtual_environment_with_a_native_launcher_of_an_x64_python() -> SimulatedMachine:
    """The launcher differs from the program that finally runs."""
    machine, application, _ = snapdragon()
    environment = add_venv(machine, r"C:\env", application, launcher="ARM64")
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = environment.executable
    return machine


@broken("host.base-missing", "qnnbridge setup", "C:\\env", "Install Python 3.13")
def virtual_environment_whose_python_was_uninstalled() -> SimulatedMachine:
    machine, _, host = snapdragon()
    environment = make_host(add_venv(machine, r"C:\env", host))
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = environment.executable
    machine.remove(host.executable)
    machine.pythons.clear()
    return machine


@broken("host.python-too-old", "3.10")
def only_native_python_is_3_10() -> SimulatedMachine:
    machine = windows_on_arm()
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    make_small_host(add_python(machine, r"C:\Python310-arm64", "3.10.11"))
    return machine


@broken("host.none", "Windows installer (ARM64)")
def no_native_python_at_all() -> SimulatedMachine:
    machine = windows_on_arm()
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    return machine


@broken("host.none", "3.10")
def linux_application_of_python_3_10_and_nothing_else() -> SimulatedMachine:
    machine = linux()
    install_bridge(add_python(machine, "/usr/local", "3.10.14", "x86_64", running=True))
    return machine


@broken("host.packages-missing", "qnnbridge setup", "onnxruntime")
def native_python_with_nothing_installed() -> SimulatedMachine:
    machine = windows_on_arm()
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    add_python(machine, r"C:\Python313-arm64")
    return machine


@broken("host.packages-missing", "msgpack")
def host_without_msgpack() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.remove_folder(host.path("msgpack"))
    machine.remove_folder(host.path("msgpack-1.2.4.dist-info"))
    return machine


@broken("host.user-packages", "without --user", "qnnbridge setup")
def packages_of_the_user_only() -> SimulatedMachine:
    machine = linux()
    python = add_python(machine, "/usr", "3.11.7", "x86_64", running=True)
    user = Python(
        machine, python.executable, "/home/maria/.local/lib/python3.11/site-packages", "3.11.7", "linux-x86_64"
    )
    make_host(user)
    python.answer(path=(user.site, python.site), user_site=user.site)
    return machine


@broken("host.does-not-start", "0xC0000135", "Visual C++")
def interpreter_without_the_c_runtime() -> SimulatedMachine:
    machine, _, host = snapdragon()
    host.die(0xC0000135)
    return machine


@broken("host.does-not-start", "encodings", "PYTHONHOME")
def interpreter_that_finds_the_files_of_another() -> SimulatedMachine:
    machine, _, host = snapdragon()
    host.die(1, "Fatal Python error: init_fs_encoding\nModuleNotFoundError: No module named 'encodings'")
    return machine


@broken("host.does-not-start", "SIGSEGV", "before it loads qnnbridge", "QNNBRIDGE_HOST_PYTHON")
def linux_interpreter_that_crashes() -> SimulatedMachine:
    machine = linux()
    make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True))
    other = add_python(machine, "/opt/other", "3.11.7", "x86_64")
    other.die(-11)
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = other.executable
    return machine


# --- packages ---


def make_small_host(python: Python) -> Python:
    """Install the packages that pip could install there."""
    install_bridge(python)
    install_small(python, "onnxruntime", version="1.20.0")
    return python


@broken("packages.wheel-python", "cp311", "3.13")
def packages_of_python_3_11_copied_to_3_13() -> SimulatedMachine:
    machine = windows_on_arm()
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    host = add_python(machine, r"C:\Python313-arm64")
    install_bridge(host)
    install(host, "onnxruntime-qnn", "1.23.2", tag="cp311")
    return machine


@broken("packages.arm-only", "QnnHtp.dll: ARM64X", "onnxruntime-qnn==2.")
def x64_pc_with_a_release_for_emulated_pythons() -> SimulatedMachine:
    machine = x64_pc()
    make_host(add_python(machine, r"C:\Python311", "3.11.9", "x64", running=True), "1.23.2")
    return machine


@broken("packages.wheel-machine", "aarch64")
def wheels_of_another_linux_machine() -> SimulatedMachine:
    machine = linux()
    host = make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True))
    machine.remove_folder(host.path("onnxruntime_qnn"))
    machine.remove_folder(host.path("onnxruntime_qnn-2.7.0.dist-info"))
    install(host, "onnxruntime-qnn", "2.7.0", "linux_aarch64")
    return machine


@broken("packages.half-installed", "onnxruntime-qnn==2.7.0")
def distribution_without_its_module() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.remove_folder(host.path("onnxruntime_qnn"))
    return machine


@broken("packages.half-installed", "RECORD", "onnxruntime==1.31.1")
def distribution_without_its_record() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.remove(host.path("onnxruntime-1.31.1.dist-info/RECORD"))
    return machine


@broken("packages.half-installed", "numpy")
def numpy_without_its_files() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.put(
        host.path("numpy-2.4.6.dist-info/RECORD"),
        text="numpy/__init__.py,sha256=,0\nnumpy/exceptions.py,sha256=,7\n",
    )
    return machine


@broken("packages.shadowed", "loads onnxruntime-qnn 1.24.1", "uninstall -y onnxruntime onnxruntime-qnn")
def onnxruntime_below_onnxruntime_qnn() -> SimulatedMachine:
    machine, _, host = snapdragon("1.24.1")
    install(host, "onnxruntime", "1.31.1")
    install(host, "onnxruntime-qnn", "1.24.1", record="1.24.1")
    return machine


@broken("packages.shadowed", "loads onnxruntime 1.31.1")
def onnxruntime_over_onnxruntime_qnn() -> SimulatedMachine:
    machine, _, host = snapdragon("1.23.2")
    install(host, "onnxruntime", "1.31.1")
    return machine


@broken("packages.other-runtime", "onnxruntime-directml")
def directml_beside_onnxruntime() -> SimulatedMachine:
    machine, _, host = snapdragon()
    install_small(host, "onnxruntime", "onnxruntime-directml", "1.24.4")
    return machine


@broken("packages.leftover-1x", "QNN libraries of a 1.x release")
def libraries_of_a_1_x_release_left_behind() -> SimulatedMachine:
    machine, _, host = snapdragon()
    for name in ("QnnHtp.dll", "QnnSystem.dll", "onnxruntime_providers_qnn.dll"):
        machine.put(
            host.path(f"onnxruntime/capi/{name}"), File(2_000_000, library=Library("ARM64", "2.37.1.250807093845"))
        )
    return machine


@broken("packages.no-qnn", "onnxruntime-qnn")
def onnxruntime_without_qnn() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.remove_folder(host.path("onnxruntime_qnn"))
    machine.remove_folder(host.path("onnxruntime_qnn-2.7.0.dist-info"))
    return machine


@broken("packages.no-onnxruntime", "onnxruntime>=1.24.2")
def plugin_without_onnxruntime() -> tuple[SimulatedMachine, SurveyOptions]:
    machine, _, host = snapdragon(ort=None)
    return machine, SurveyOptions(host_python=host.executable)


@broken("packages.onnxruntime-too-old", "1.23.2", "2.7.0", "install -U")
def onnxruntime_1_23_with_2_7() -> SimulatedMachine:
    return snapdragon("2.7.0", "1.23.2")[0]


@broken("packages.qnn-too-old", "2.3.0", "1.31.1", "onnxruntime-qnn==2.7.0")
def onnxruntime_1_31_with_2_3() -> SimulatedMachine:
    return snapdragon("2.3.0", "1.31.1")[0]


@broken("packages.onnxruntime-too-old", "1.23.2", "2.3.0", "<1.28")
def onnxruntime_1_23_with_2_3() -> SimulatedMachine:
    """pip refuses the pair, and an installation with --no-deps gives a provider without a device."""
    return snapdragon("2.3.0", "1.23.2")[0]


@broken("packages.twice", "more than once")
def two_copies_in_two_folders() -> SimulatedMachine:
    machine, _, host = snapdragon()
    other = Python(machine, host.executable, r"C:\more-packages", host.version, host.platform)
    install(other, "onnxruntime-qnn", "2.4.0", record="2.7.0")
    host.answer(path=(host.site, other.site))
    return machine


@broken("packages.other-qnnbridge", "0.0.9")
def another_qnnbridge_on_the_host() -> SimulatedMachine:
    machine, _, host = snapdragon()
    for name in list(machine.names(host.site)):
        if name.startswith("qnnbridge-"):
            machine.remove_folder(host.path(name))
    install_small(host, "qnnbridge", version="0.0.9")
    return machine


@broken("packages.vc-runtime", "MSVCP140_1.dll", "winget", "arm64")
def no_visual_c_runtime() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.remove(r"C:\Windows\System32\msvcp140.dll")
    machine.remove(r"C:\Windows\System32\msvcp140_1.dll")
    return machine


# --- files ---


@broken("files.missing", "QnnHtpV73Stub.dll")
def stub_taken_by_a_virus_scanner() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.remove(_qnn(host, "QnnHtpV73Stub.dll"))
    return machine


@broken("files.missing", "libqnnhtpv73.cat")
def catalog_missing() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.remove(_qnn(host, "libqnnhtpv73.cat"))
    return machine


@broken("files.missing", "libc++")
def library_beside_the_package_missing_on_linux() -> SimulatedMachine:
    machine = linux()
    host = make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True))
    machine.remove(host.path("onnxruntime_qnn.libs/libc++-71bc274c.so.1.0"))
    return machine


@broken("files.truncated", "libQnnHtp.so", "4096 bytes")
def backend_cut_off_on_linux() -> SimulatedMachine:
    machine = linux()
    host = make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True))
    file = machine.file(host.path("onnxruntime_qnn/libQnnHtp.so"))
    file.size, file.library = 4096, Library("x86_64")
    return machine


@broken("files.truncated", "onnxruntime.dll")
def onnxruntime_cut_off() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.file(host.path("onnxruntime/capi/onnxruntime.dll")).size = 1_000_000
    return machine


@broken("files.replaced", "QnnSystem.dll", "SHA-256")
def library_with_other_contents() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.file(_qnn(host, "QnnSystem.dll")).sha256 = "ab" * 32
    return machine


@broken("files.mixed-builds", "QnnHtp.dll", "2.40.0.251030114326")
def backend_of_an_sdk_copied_over_the_packages_own() -> SimulatedMachine:
    machine, _, host = snapdragon()
    other = File(2_000_000, "cd" * 32, library=Library("ARM64", "2.40.0.251030114326_189385"))
    machine.put(_qnn(host, "QnnHtp.dll"), other)
    return machine


@broken("files.wrong-machine", "QnnHtpPrepare.dll: x64")
def x64_library_in_the_native_package() -> SimulatedMachine:
    machine, _, host = snapdragon()
    file = machine.file(_qnn(host, "QnnHtpPrepare.dll"))
    file.library, file.sha256 = Library("x64", "2.51.0.260929181845"), "ee" * 32
    return machine


@broken("files.skel-not-signed", "libQnnHtpV73Skel.so", "libqnnhtpv73.cat")
def catalog_of_another_build() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.file(_qnn(host, "libqnnhtpv73.cat")).data = b"0\x82" + bytes(12_000)
    return machine


@broken("files.incomplete", "prepare is missing")
def wheel_that_was_packed_without_a_library() -> SimulatedMachine:
    """The RECORD does not list the library either."""
    machine, _, host = snapdragon()
    record = machine.file(host.path("onnxruntime_qnn-2.7.0.dist-info/RECORD"))
    rows = (record.data or b"").decode().splitlines()
    record.data = "\n".join(row for row in rows if "QnnHtpPrepare" not in row).encode()
    machine.remove(_qnn(host, "QnnHtpPrepare.dll"))
    return machine


@broken("files.foreign-on-path", "arm64x-windows-msvc", "PATH")
def sdk_on_the_path() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    folder = r"D:\qairt\2.40.0.251030\lib\arm64x-windows-msvc"
    machine.put(rf"{folder}\QnnHtp.dll", File(2_000_000, library=Library("ARM64X", "2.40.0.251030114326")))
    machine.environ["PATH"] += ";" + folder
    return machine


@broken("files.foreign-on-adsp-path", "hexagon-v73")
def skel_of_an_sdk_on_the_dsp_path() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    folder = r"D:\qnn\lib\hexagon-v73\unsigned"
    machine.put(rf"{folder}\libQnnHtpV73Skel.so", File(9_000_000, library=Library("hexagon")))
    machine.environ["ADSP_LIBRARY_PATH"] = folder
    return machine


# --- version of QNN ---


@broken("sdk.too-old-for-chip", "V81", "SC8480XP", "onnxruntime-qnn==2.")
def release_without_a_stub_for_the_x2_elite() -> SimulatedMachine:
    return snapdragon(
        "1.23.2",
        processor="Snapdragon(R) X2 Elite - X2E80100 - Qualcomm(R) Oryon(TM) CPU",
        device="Qualcomm(R) Hexagon(TM) NPU",
    )[0]


@broken("sdk.newer-than-system", "2.51.0", "2.40.0", "HtpUsrDrv.dll", "onnxruntime-qnn==1.23.2")
def bundled_newer_than_the_driver() -> SimulatedMachine:
    return snapdragon(system_qnn="2.40.0.0")[0]


@broken("sdk.newer-than-system", "QAIRT_SDK_ROOT")
def bundled_newer_than_the_installed_sdk() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.put(r"C:\qairt\2.45.40.260401\sdk.yaml", text="version: 2.45.40.260401\n")
    machine.environ["QAIRT_SDK_ROOT"] = r"C:\qairt\2.45.40.260401"
    return machine


@broken("sdk.backend-path-missing", "QnnCpu.dll")
def backend_that_is_no_longer_shipped() -> tuple[SimulatedMachine, SurveyOptions]:
    machine, _, host = snapdragon()
    return machine, SurveyOptions(backend=_qnn(host, "QnnCpu.dll"))


@broken("sdk.root-missing", "QNN_SDK_ROOT")
def variable_of_a_removed_sdk() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.environ["QNN_SDK_ROOT"] = r"C:\Qualcomm\gone"
    return machine


@broken("sdk.roots-disagree", "2.51.0", "2.60.0")
def variables_that_name_two_sdks() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    for name, version in (("QNN_SDK_ROOT", "2.51.0.260929"), ("QAIRT_SDK_ROOT", "2.60.0.270929")):
        machine.put(rf"C:\sdk\{version}\sdk.yaml", text=f"version: {version}\n")
        machine.environ[name] = rf"C:\sdk\{version}"
    return machine


# --- driver ---


@broken("driver.missing", "qcnspmcdm", "QnnHtpV73Stub.dll", "libcdsprpc.dll")
def no_driver() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.drop_values("qcnspmcdm")
    return machine


@broken("driver.disabled", "Enable-PnpDevice")
def npu_switched_off_in_the_device_manager() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.problems[INSTANCE] = 22
    return machine


@broken("driver.disabled", "sc.exe config qcnspmcdm start= demand")
def service_switched_off() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.set_value(SERVICE, "Start", 4)
    return machine


@broken("driver.problem", "cannot start", "problem 10")
def device_that_cannot_start() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.problems[INSTANCE] = 10
    return machine


@broken("driver.no-device")
def driver_without_a_device() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.drop_values(rf"{SERVICE}\Enum")
    return machine


@broken("driver.no-fastrpc", "libcdsprpc.dll")
def driver_folder_without_fastrpc() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.remove(rf"{DRIVER_FOLDER}\libcdsprpc.dll")
    return machine


@broken("driver.missing", "/dev/fastrpc-cdsp")
def linux_board_without_fastrpc() -> SimulatedMachine:
    machine = linux("aarch64")
    make_host(add_python(machine, "/opt/python", "3.11.7", "aarch64", running=True))
    machine.remove("/dev/fastrpc-cdsp")
    return machine


@broken("driver.node-closed", "/dev/fastrpc-cdsp", "usermod")
def linux_device_of_another_group() -> SimulatedMachine:
    machine = linux("aarch64")
    make_host(add_python(machine, "/opt/python", "3.11.7", "aarch64", running=True))
    machine.closed_devices.add("/dev/fastrpc-cdsp")
    return machine


# --- paths and environment ---


@broken("path.too-long", "characters")
def host_in_a_very_deep_folder() -> SimulatedMachine:
    machine = windows_on_arm()
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    make_host(add_python(machine, "C:\\" + "\\".join(["a-folder-with-a-long-name"] * 8)))
    return machine


@broken("path.network", r"\\server\share")
def host_on_a_server() -> SimulatedMachine:
    machine = windows_on_arm()
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    make_host(add_python(machine, r"\\server\share\python"))
    return machine


@broken("path.cache-not-ascii", "Jürgen", "QNNBRIDGE_CACHE_DIR")
def user_whose_name_is_not_ascii() -> SimulatedMachine:
    return snapdragon(home=r"C:\Users\Jürgen")[0]


@broken("path.cache-read-only", "QNNBRIDGE_CACHE_DIR")
def cache_that_cannot_be_written() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.environ["QNNBRIDGE_CACHE_DIR"] = r"D:\cache"
    machine.read_only.add(r"D:\cache")
    return machine


@broken("path.state-read-only", "QNNBRIDGE_STATE_DIR")
def state_that_cannot_be_written() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.environ["QNNBRIDGE_STATE_DIR"] = r"D:\state"
    machine.read_only.add(r"D:\state")
    return machine


@broken("path.disk-full", "42 MB")
def disk_that_is_nearly_full() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.free = 42 << 20
    return machine


@broken("env.pythonhome", "PYTHONHOME")
def pythonhome_for_the_whole_computer() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.environ["PYTHONHOME"] = r"C:\Python27"
    return machine


@broken("env.cpu-backend", "ORT_QNN_ENABLE_CPU_BACKEND")
def cpu_backend_switched_on() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.environ["ORT_QNN_ENABLE_CPU_BACKEND"] = "1"
    return machine


@broken("env.unknown-variable", "QNNBRIDGE_HOST_PYTHON")
def variable_with_a_typing_error() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.environ["QNNBRIDGE_HOSTPYTHON"] = r"C:\Python-arm64\python.exe"
    return machine


@broken("env.unusable-value", "lots", "SetEnvironmentVariable('QNNBRIDGE_CACHE_MAX_BYTES', '', 'User')")
def size_of_the_cache_that_is_no_size() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.environ["QNNBRIDGE_CACHE_MAX_BYTES"] = "lots"
    return machine


# --- the application ---


@broken("application.packages-missing", "numpy")
def application_without_numpy() -> SimulatedMachine:
    machine, application, _ = snapdragon()
    machine.remove_folder(application.path("numpy"))
    machine.remove_folder(application.path("numpy-2.4.6.dist-info"))
    return machine


@broken("application.python311-loader", "libs\\amd64", "3.12")
def emulated_python_3_11_with_its_own_qnn() -> SimulatedMachine:
    machine = windows_on_arm()
    application = add_python(machine, r"C:\App", "3.11.9", "x64", running=True)
    install_bridge(application)
    install(application, "onnxruntime", "1.31.1")
    install(application, "onnxruntime-qnn", "2.7.0")
    make_host(add_python(machine, r"C:\Python-arm64"))
    return machine


@broken("application.simulator-wheel", "1.22.2")
def emulated_python_with_the_release_that_has_no_stub() -> SimulatedMachine:
    machine, application, _ = snapdragon()
    install(application, "onnxruntime-qnn", "1.22.2")
    return machine


# --- earlier crashes and settings ---


@broken("state.quarantine", "net.onnx", "quarantine clear")
def model_in_quarantine() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    add_quarantine(machine, "net.onnx")
    return machine


@broken("state.crashes", "net.onnx", "STATUS_STACK_BUFFER_OVERRUN")
def crash_of_this_morning() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    add_crash(machine, "2026-11-18T06:00:00.000+00:00")
    return machine


@broken("cache.damaged", "net.onnx", "cache prune")
def damaged_entry_of_the_cache() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.cached = CacheContents(3, 5 << 20, ("net.onnx: model.bin is cut off",))
    return machine


@broken("cache.damaged", "cache clear 00ff")
def entry_of_the_cache_that_is_in_place_and_not_whole() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.cached = CacheContents(3, 5 << 20, ("00ff: it has no manifest",), ("00ff",))
    return machine


# --- the daemon ---

RUN_FOLDER = r"C:\Users\maria\AppData\Local\qnnbridge\run"


def _with_daemon(state: str, **facts: object) -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.found_daemon = DaemonFacts(state, RUN_FOLDER, pid=4711, **facts)  # type: ignore[arg-type]
    return machine


@broken("daemon.folder", "other users have access to it", "icacls")
def folder_of_the_daemon_that_others_may_use() -> SimulatedMachine:
    said = f"{RUN_FOLDER} cannot be used for the daemon: other users have access to it."
    return _with_daemon("untrusted", said=said, fix=f"icacls {RUN_FOLDER} /reset.")


@broken("daemon.silent", "4711", "qnnbridge host logs")
def daemon_that_hangs() -> SimulatedMachine:
    return _with_daemon("silent", version="0.1.0", said="It did not answer at its endpoint within 5 s.")


@broken("daemon.stale", "4711", "qnnbridge host start")
def daemon_that_was_killed() -> SimulatedMachine:
    return _with_daemon("stale", version="0.1.0")


@broken("daemon.other-version", "0.0.9", "Upgrade the daemon")
def daemon_of_long_ago() -> SimulatedMachine:
    return _with_daemon(
        "runs", version="0.0.9", fits=False, said="They are too far apart.", fix="Upgrade the daemon."
    )


@broken("daemon.other-version", "7.0.0", "qnnbridge host restart --daemon")
def daemon_from_the_future_that_says_nothing_more() -> SimulatedMachine:
    return _with_daemon("runs", version="7.0.0", fits=False)


@broken("daemon.ends-with-window", "Windows job", "host service --task-scheduler")
def terminal_that_takes_the_daemon_with_it() -> SimulatedMachine:
    machine = _with_daemon("none", dies_with_us=True)
    machine.environ["QNNBRIDGE_HOST"] = "daemon"
    return machine


# --- answers of real hosts to the live probe ---


def _probed(**result: object) -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.probe_result = ProbeResult(**result)  # type: ignore[arg-type]
    return machine


@broken("probe.start", "does not start")
def host_that_never_says_hello() -> SimulatedMachine:
    return _probed(
        failed="start", error="HostStartFailed", message="The QNN host process ended before it was ready."
    )


@broken("probe.run", "its process dies")
def npu_driver_that_ends_the_process() -> SimulatedMachine:
    return _probed(failed="run", error="HostCrashed", message="exit code 0xC0000409", exit_code=0xC0000409)


@broken("probe.import", "0xC0000005", "its process dies")
def host_that_dies_while_it_imports_onnxruntime() -> SimulatedMachine:
    return _probed(
        failed="import",
        error="HostCrashed",
        message="The QNN host process ended while importing ONNX Runtime: exit code 3221225477 (0xC0000005).",
        exit_code=0xC0000005,
    )


@broken("probe.register", "could not be loaded")
def provider_that_does_not_load() -> SimulatedMachine:
    return _probed(
        failed="register", error="ProviderUnavailable", message="onnxruntime_providers_qnn.dll could not be loaded"
    )


@broken("probe.devices")
def provider_without_a_device() -> SimulatedMachine:
    return _probed(failed="devices", error="ProviderUnavailable", message="No QNN device.")


@broken("probe.create", "nodes on the CPU")
def tiny_model_that_is_not_taken() -> SimulatedMachine:
    return _probed(failed="create", error="PlacementRefused", message="3 nodes on the CPU")


@broken("probe.numbers", "wrong numbers")
def npu_that_computes_nonsense() -> SimulatedMachine:
    return _probed(failed="numbers", message="the largest difference from the correct outputs is 65536")


@broken("probe.timeout", "create")
def npu_that_hangs() -> SimulatedMachine:
    return _probed(failed="timeout", message="no answer in the stage 'create'")


@broken("model.missing", "absent.onnx")
def model_that_is_not_there() -> tuple[SimulatedMachine, SurveyOptions]:
    return snapdragon()[0], SurveyOptions(model=r"C:\absent.onnx")


# --- text generation ---


@broken("genai.wheel", "win_amd64", "win-arm64", "--only-binary :all: onnxruntime-genai==0.18.0")
def text_generation_of_another_machine_type_in_the_host() -> SimulatedMachine:
    machine, _, host = snapdragon()
    install_genai(host, platform="win_amd64")
    return machine


@broken("genai.wheel", "cp311-cp311-win_arm64", "Python 3.13.1")
def text_generation_of_another_python_in_the_host() -> SimulatedMachine:
    machine, _, host = snapdragon()
    install_genai(host, tag="cp311")
    return machine


@broken("genai.too-old", "0.9.1", "-m pip install -U", "onnxruntime-genai>=0.13.0")
def text_generation_of_last_year() -> SimulatedMachine:
    machine, _, host = snapdragon()
    install_genai(host, "0.9.1", ">=1.20.0")
    return machine


@broken("genai.onnxruntime-too-old", "onnxruntime>=1.32.0", "onnxruntime 1.31.1", "-m pip install")
def text_generation_newer_than_onnxruntime() -> SimulatedMachine:
    machine, _, host = snapdragon()
    install_genai(host, "0.19.0", ">=1.32.0")
    return machine


@broken("genai.emulated", "qnnbridge.genai", "0.18.0", "-m pip install onnxruntime-genai")
def text_generation_in_the_emulated_application() -> SimulatedMachine:
    machine, application, _ = snapdragon()
    install_genai(application)
    return machine


@broken("genai.emulated", "qnnbridge exec")
def text_generation_in_the_emulated_application_and_in_the_host() -> SimulatedMachine:
    machine, application, host = snapdragon()
    install_genai(application)
    install_genai(host)
    return machine
