"""Computers without faults."""

from __future__ import annotations

from collections.abc import Callable

from machines import (
    SimulatedMachine,
    add_python,
    add_venv,
    install,
    install_bridge,
    install_genai,
    linux,
    make_host,
    snapdragon,
    windows_on_arm,
    x64_pc,
)

from qnnbridge_tools.doctor.facts import DaemonFacts

HEALTHY: list[Callable[[], SimulatedMachine]] = []


def healthy(build: Callable[[], SimulatedMachine]) -> Callable[[], SimulatedMachine]:
    HEALTHY.append(build)
    return build


@healthy
def native_host_with_2_7() -> SimulatedMachine:
    return snapdragon()[0]


@healthy
def native_host_with_onnxruntime_1_32() -> SimulatedMachine:
    return snapdragon("2.7.0", "1.32.0")[0]


@healthy
def x64_pc_with_onnxruntime_1_32() -> SimulatedMachine:
    machine = x64_pc()
    make_host(add_python(machine, r"C:\Python313", "3.13.1", "x64", running=True), "2.7.0", "1.32.0")
    return machine


@healthy
def linux_with_onnxruntime_1_32() -> SimulatedMachine:
    machine = linux()
    make_host(add_python(machine, "/opt/python", "3.14.0", "x86_64", running=True), "2.7.0", "1.32.0")
    return machine


@healthy
def linux_board_with_onnxruntime_1_32() -> SimulatedMachine:
    machine = linux("aarch64")
    make_host(add_python(machine, "/opt/python", "3.12.4", "aarch64", running=True), "2.7.0", "1.32.0")
    return machine


@healthy
def native_host_with_1_23() -> SimulatedMachine:
    return snapdragon("1.23.2", system_qnn="2.40.0.0")[0]


@healthy
def system_of_the_same_version() -> SimulatedMachine:
    return snapdragon(system_qnn="2.51.0.0")[0]


@healthy
def application_in_the_native_python_itself() -> SimulatedMachine:
    machine = windows_on_arm()
    make_host(add_python(machine, r"C:\Python313-arm64", running=True))
    return machine


@healthy
def x86_application_of_32_bits() -> SimulatedMachine:
    machine = windows_on_arm()
    install_bridge(add_python(machine, r"C:\Python310-32", "3.10.11", "x86", running=True))
    make_host(add_python(machine, r"C:\Python313-arm64"))
    return machine


@healthy
def x64_pc_for_compiling() -> SimulatedMachine:
    machine = x64_pc()
    make_host(add_python(machine, r"C:\Python311", "3.11.9", "x64", running=True))
    return machine


@healthy
def x64_pc_with_the_one_release_of_1_x_for_it() -> SimulatedMachine:
    machine = x64_pc()
    make_host(add_python(machine, r"C:\Python311", "3.11.9", "x64", running=True), "1.22.2")
    return machine


@healthy
def release_that_has_the_provider_inside_onnxruntime() -> SimulatedMachine:
    return snapdragon("1.20.0", version="3.11.9")[0]


@healthy
def linux_with_the_simulator() -> SimulatedMachine:
    machine = linux()
    make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True))
    return machine


@healthy
def linux_with_settings_in_the_home_folder() -> SimulatedMachine:
    """Use the settings of a container or a systemd unit, for which no shell has expanded the tilde."""
    machine = linux()
    make_host(add_python(machine, "/home/maria/python", "3.11.7", "x86_64"))
    machine.environ |= {"QNNBRIDGE_CONFIG": "~/settings/q.toml", "QNNBRIDGE_CACHE_DIR": "~/cache"}
    machine.put("/home/maria/settings/q.toml", text="[host]\npython = '~/python/bin/python3'\n")
    make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True))
    return machine


@healthy
def linux_on_a_snapdragon_board() -> SimulatedMachine:
    machine = linux("aarch64")
    make_host(add_python(machine, "/opt/python", "3.11.7", "aarch64", running=True))
    return machine


@healthy
def two_native_interpreters_and_an_empty_newer_one() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    make_host(add_python(machine, r"C:\Python311-arm64", "3.11.9"))
    add_python(machine, r"C:\Python314-arm64", "3.14.0")
    return machine


@healthy
def x2_elite_with_its_chip() -> SimulatedMachine:
    return snapdragon(
        processor="Snapdragon(R) X2 Elite - X2E80100 - Qualcomm(R) Oryon(TM) CPU",
        device="Snapdragon(R) X2 Elite - X2E80100 - Qualcomm(R) Hexagon(TM) NPU",
    )[0]


@healthy
def third_generation_8cx() -> SimulatedMachine:
    return snapdragon(processor="Snapdragon (TM) 8cx Gen 3 @ 3.0 GHz", device="Qualcomm(R) Hexagon(TM) NPU")[0]


@healthy
def host_in_a_virtual_environment() -> SimulatedMachine:
    machine = windows_on_arm()
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    native = add_python(machine, r"C:\Python313-arm64")
    host = make_host(add_venv(machine, r"C:\qnn-host", native))
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = host.executable
    return machine


@healthy
def oldest_pair_that_works() -> SimulatedMachine:
    return snapdragon("2.4.0", "1.24.2")[0]


@healthy
def sdk_of_the_same_build_on_the_path() -> SimulatedMachine:
    machine, _, host = snapdragon()
    machine.environ["PATH"] += ";" + host.path("onnxruntime_qnn")
    return machine


@healthy
def older_sdk_installed_and_not_used() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.put(r"C:\Qualcomm\AIStack\QAIRT\2.40.0.251030\sdk.yaml", text="version: 2.40.0.251030\n")
    return machine


@healthy
def emulated_x64_python_3_12_with_its_own_qnn() -> SimulatedMachine:
    """The package's loader uses libs/arm64ec, which can access the NPU."""
    machine, application, _ = snapdragon()
    install(application, "onnxruntime", "1.31.1")
    install(application, "onnxruntime-qnn", "2.7.0")
    return machine


@healthy
def crash_and_quarantine_of_last_week() -> SimulatedMachine:
    from machines import add_crash, add_quarantine

    machine, _, _ = snapdragon()
    add_quarantine(machine, "old.onnx", age_s=3 * 24 * 3600)
    add_crash(machine, "2026-11-09T12:00:00.000+00:00")
    return machine


@healthy
def daemon_that_runs() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.environ["QNNBRIDGE_HOST"] = "daemon"
    machine.found_daemon = DaemonFacts("runs", r"C:\run", "0.1.0", 4711, dies_with_us=True)
    return machine


@healthy
def window_that_would_end_a_daemon_that_nobody_wants() -> SimulatedMachine:
    machine, _, _ = snapdragon()
    machine.found_daemon = DaemonFacts(dies_with_us=True)
    return machine


@healthy
def native_host_that_generates_text() -> SimulatedMachine:
    machine, _, host = snapdragon()
    install_genai(host)
    return machine


@healthy
def linux_that_generates_text_with_a_release_for_every_layout() -> SimulatedMachine:
    machine = linux()
    host = make_host(add_python(machine, "/opt/python", "3.12.4", "x86_64", running=True))
    install_genai(host, "0.15.2", ">=1.20.0")
    return machine
