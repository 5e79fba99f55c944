"""The ten attempts that users documented on a Snapdragon X Elite PC whose system has QNN 2.40.

Each attempt is rebuilt with the wheels that the user listed, with the first finding that the doctor must report.
One more attempt was made by many other users.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from machines import (
    File,
    Python,
    SimulatedMachine,
    add_python,
    install,
    install_bridge,
    install_small,
    make_host,
    windows_on_arm,
)

from qnnbridge_tools.doctor.examine import SurveyOptions
from qnnbridge_tools.doctor.machine import Library

SYSTEM_QNN = "2.40.0.0"
SDK = r"C:\Qualcomm\AIStack\QAIRT\2.40.0.251030"


@dataclasses.dataclass(frozen=True)
class Attempt:
    """An attempt.

    Args:
        code: code of the first finding; ``None`` for none.
        fix: text that its fix contains.
    """

    name: str
    code: str | None
    fix: tuple[str, ...]
    build: Callable[[], tuple[SimulatedMachine, SurveyOptions]]


def computer() -> SimulatedMachine:
    """Return the PC, whose driver and SDK have QNN 2.40."""
    machine = windows_on_arm(system_qnn=SYSTEM_QNN)
    machine.put(rf"{SDK}\sdk.yaml", text="name: qairt\nversion: 2.40.0.251030\n")
    for folder, kind in (("aarch64-windows-msvc", "ARM64"), ("arm64x-windows-msvc", "ARM64X")):
        library = Library(kind, "2.40.0.251030114326_189385")
        machine.put(rf"{SDK}\lib\{folder}\QnnHtp.dll", File(2_000_000, library=library))
    machine.environ["QNN_SDK_ROOT"] = SDK
    return machine


def _emulated(machine: SimulatedMachine, qnn: str) -> Python:
    python = add_python(machine, r"C:\Python311", "3.11.9", "x64", running=True)
    install_bridge(python)
    install(python, "onnxruntime-qnn", qnn)
    return python


def x64_python() -> tuple[SimulatedMachine, SurveyOptions]:
    """QNN is an available provider, but the process crashes with the first session."""
    machine = computer()
    _emulated(machine, "1.23.2")
    return machine, SurveyOptions()


def x64_python_as_host() -> tuple[SimulatedMachine, SurveyOptions]:
    """Install the same package in a second x64 Python, which is selected as the host."""
    machine = computer()
    add_python(machine, r"C:\App", "3.12.4", "x64", running=True)
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    other = add_python(machine, r"C:\Python311", "3.11.9", "x64")
    install_bridge(other)
    install(other, "onnxruntime-qnn", "1.24.1")
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = other.executable
    return machine, SurveyOptions()


def arm64_python_without_wheels() -> tuple[SimulatedMachine, SurveyOptions]:
    """pip found no ARM64 wheels for the application's packages and stopped before it installed onnxruntime."""
    machine = computer()
    application = add_python(machine, r"C:\App", "3.12.4", "x64", running=True)
    install_bridge(application)
    install_small(application, "cv2", "opencv-python")
    native = add_python(machine, r"C:\Python313-arm64", "3.13.1")
    install_small(native, "numpy", version="2.4.6")
    return machine, SurveyOptions()


def x64_wheels_in_arm64_python() -> tuple[SimulatedMachine, SurveyOptions]:
    """The user therefore forced the x64 wheels into the ARM64 Python."""
    machine = computer()
    application = add_python(machine, r"C:\App", "3.12.4", "x64", running=True)
    install_bridge(application)
    native = add_python(machine, r"C:\Python311-arm64", "3.11.9")
    install_bridge(native)
    install(native, "onnxruntime-qnn", "1.23.2", "win_amd64")
    return machine, SurveyOptions()


def _native(qnn: str) -> tuple[SimulatedMachine, Python]:
    machine = computer()
    application = add_python(machine, r"C:\App", "3.12.4", "x64", running=True)
    install_bridge(application)
    return machine, make_host(add_python(machine, r"C:\Python313-arm64", "3.13.1"), qnn)


def newer_than_the_system() -> tuple[SimulatedMachine, SurveyOptions]:
    machine, _ = _native("1.24.1")
    return machine, SurveyOptions()


def backend_of_the_system() -> tuple[SimulatedMachine, SurveyOptions]:
    """Combine the provider of 2.42 with the backend of 2.40: "Unable to find a valid interface"."""
    machine, _ = _native("1.24.1")
    return machine, SurveyOptions(backend=rf"{SDK}\lib\aarch64-windows-msvc\QnnHtp.dll")


def not_ascii() -> tuple[SimulatedMachine, SurveyOptions]:
    machine = computer()
    application = add_python(machine, r"C:\App", "3.12.4", "x64", running=True)
    install_bridge(application)
    make_host(add_python(machine, r"C:\Проекты\Python313-arm64", "3.13.1"), "1.23.2")
    return machine, SurveyOptions()


def error_1002() -> tuple[SimulatedMachine, SurveyOptions]:
    machine, _ = _native("1.22.0")
    return machine, SurveyOptions()


def works() -> tuple[SimulatedMachine, SurveyOptions]:
    machine, _ = _native("1.23.2")
    return machine, SurveyOptions()


def works_without_the_driver_saying_its_version() -> tuple[SimulatedMachine, SurveyOptions]:
    machine, _ = _native("1.23.2")
    machine.remove_folder(next(name for name in machine.folders if name.endswith("\\htp")))
    return machine, SurveyOptions()


def both_packages() -> tuple[SimulatedMachine, SurveyOptions]:
    """Run pip install onnxruntime onnxruntime-qnn, as many users do."""
    machine, host = _native("1.23.2")
    install(host, "onnxruntime", "1.31.1")
    return machine, SurveyOptions()


SETUP = "qnnbridge setup"
ATTEMPTS = (
    Attempt("1 x64 Python, QNN listed, process dies", "host.only-emulated", ("(ARM64)", SETUP), x64_python),
    Attempt("2 the same as the host", "host.wrong-machine", ("(ARM64)", SETUP), x64_python_as_host),
    Attempt(
        "3 no ARM64 wheels on the ARM64 side",
        "host.packages-missing",
        (SETUP,),
        arm64_python_without_wheels,
    ),
    Attempt(
        "4 x64 wheels forced into it",
        "packages.wheel-machine",
        ("py -V:3.11-arm64 -m pip install --force-reinstall", "onnxruntime-qnn==1.23.2"),
        x64_wheels_in_arm64_python,
    ),
    Attempt("5 1.24.1 on 2.40", "sdk.newer-than-system", ("onnxruntime-qnn==1.23.2",), newer_than_the_system),
    Attempt(
        "6 backend_path into the SDK",
        "sdk.backend-path-mixed",
        ("Remove the provider option",),
        backend_of_the_system,
    ),
    Attempt("7 path that is not ASCII", "path.not-ascii", ("qnnbridge setup ",), not_ascii),
    Attempt("8 1.22.0, error 1002", "packages.known-fault", ("onnxruntime-qnn==1.23.2",), error_1002),
    Attempt("9 1.23.2 works", None, (), works),
    Attempt("10 1.23.2 works again", None, (), works_without_the_driver_saying_its_version),
    Attempt(
        "both packages",
        "packages.shadowed",
        ("uninstall -y onnxruntime onnxruntime-qnn", "install onnxruntime-qnn==1.23.2"),
        both_packages,
    ),
)
