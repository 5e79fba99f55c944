"""Causes of crashes: a missing processor instruction is found, and QNN is not blamed if it was not involved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qnnbridge import _diagnosis
from qnnbridge._diagnosis import processor_of
from qnnbridge._diagnosis.crash import CrashRecord, OpenCall, diagnose
from qnnbridge._diagnosis.exit_codes import SIGNALS, WINDOWS, ExitStatus, Platform
from qnnbridge_os import processes

START = ("starting", "importing", "registering")


def with_qnn(code: int, platform: Platform, phase: str, **more: Any) -> CrashRecord:
    """Return the record of a crash in this phase; a session in it uses QNN."""
    if phase not in ("creating", "compiling", "running"):
        return CrashRecord(ExitStatus(code, platform), host_phase=phase, ready=phase not in START, **more)
    call = OpenCall(7, "session.run", "pnet.onnx", "f" * 64, "0" * 64, phase)
    return CrashRecord(ExitStatus(code, platform), in_flight=(call,), **more)


def alone(code: int, platform: Platform, phase: str, stderr: str = "", **others: Any) -> CrashRecord:
    """Return the record of a crash within a session that has nothing on QNN."""
    call = OpenCall(7, "session.run", "pnet.onnx", "f" * 64, "0" * 64, phase, without_qnn=True)
    return CrashRecord(ExitStatus(code, platform), in_flight=(call, *others.values()), stderr_tail=stderr)


# --- missing instructions ---

ILLEGAL = [(-4, "posix"), (132, "posix"), (0xC000001D, "win32")]


@pytest.mark.parametrize(("code", "platform"), ILLEGAL)
@pytest.mark.parametrize("phase", [*START, "creating", "compiling", "running", "idle"])
def test_an_illegal_instruction_is_reported_with_the_processor(code: int, platform: Platform, phase: str) -> None:
    best = diagnose(with_qnn(code, platform, phase, processor="Some Processor (x64), under Wine 8.0"))[0]
    assert "used an instruction that the processor, or the emulator that runs it, does not have" in best.cause
    assert "Some Processor (x64), under Wine 8.0" in best.cause
    assert "Update the emulator" in best.fix
    assert "another version of onnxruntime" in best.fix


def test_after_an_illegal_instruction_the_alternative_cause_is_named() -> None:
    """A jump into data crashes with the same signal."""
    causes = [one.cause for one in diagnose(with_qnn(-4, "posix", "running"))]
    assert "Processor: not known." in causes[0]
    assert "QNN or the NPU driver crashed" in causes[1]
    assert not any("QNN or the driver" in one.cause for one in diagnose(alone(-4, "posix", "running")))


def test_a_jump_into_data_is_not_an_illegal_instruction() -> None:
    assert "QNN or the NPU driver crashed" in diagnose(with_qnn(0xC0000096, "win32", "running"))[0].cause


def test_known_facts_about_the_processor_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text(
        "processor\t: 0\nmodel name\t: Some (R) CPU @ 2 GHz \n\nprocessor\t: 1\nmodel name\t: Other\n"
    )
    monkeypatch.setattr(_diagnosis, "_CPUINFO", str(listing))
    monkeypatch.setattr(processes, "native_machine", lambda: "x86_64")
    assert processor_of() == processor_of("x86_64") == "Some (R) CPU @ 2 GHz (x86_64)"
    assert processor_of("aarch64") == "Some (R) CPU @ 2 GHz (x86_64), on which aarch64 is emulated"
    listing.unlink()
    assert processor_of() == "x86_64"
    monkeypatch.setattr(processes, "native_machine", lambda: 1 / 0)
    assert processor_of() == ""


# --- without QNN ---


BLAMES_QNN = re.compile(
    r"\bQNN\b(?! was not involved)|the driver|\bNPU\b|context binary|CPU provider|onnxruntime-qnn", re.I
)

OWN_DEATHS: list[tuple[int, Platform]] = [
    *((row.number, "win32") for row in WINDOWS if row.kind == "crash"),
    *((-row.number, "posix") for row in SIGNALS if row.kind == "crash"),
    (0xC0ABCDEF, "win32"),
]


@pytest.mark.parametrize(("code", "platform"), OWN_DEATHS, ids=[f"{code:X}" for code, _ in OWN_DEATHS])
@pytest.mark.parametrize("phase", ["creating", "running"])
def test_qnn_is_not_blamed_if_it_was_not_involved(code: int, platform: Platform, phase: str) -> None:
    before = "[E:onnxruntime:, qnn_execution_provider.cc:1 X] QNN SetupBackend failed Failed to create device. "
    for stderr in ("", f"{before}Error: QNN_DEVICE_ERROR_INVALID_CONFIG\n", "what():  std::out_of_range\n"):
        best = diagnose(alone(code, platform, phase, stderr))[0]
        assert not BLAMES_QNN.search(best.cause), best.cause
        assert not BLAMES_QNN.search(best.fix), best.fix
        assert best.fix


@pytest.mark.parametrize("code", [-11, -6, -4])
def test_a_session_on_qnn_is_suspected_first(code: int) -> None:
    other = OpenCall(8, "session.run", "on_npu.onnx", "e" * 64, "0" * 64, "running")
    both = alone(code, "posix", "running", other=other)
    assert not both.without_qnn
    assert diagnose(both)[0].cause == diagnose(with_qnn(code, "posix", "running"))[0].cause


@pytest.mark.parametrize(
    ("code", "cause"),
    [(-11, "crashed on this model, which runs on the CPU"), (-8, "integer division"), (-7, "mapped into memory")],
)
def test_a_crash_on_the_cpu_reports_its_known_cause(code: int, cause: str) -> None:
    assert cause in diagnose(alone(code, "posix", "running"))[0].cause


# --- the provider of Windows' catalogue ---


@pytest.mark.parametrize("phase", ["creating", "compiling", "running"])
@pytest.mark.parametrize("source", ["windowsml", "folder", "wheel", ""])
def test_an_access_violation_of_the_catalogue_provider_has_its_own_cause(phase: str, source: str) -> None:
    versions = {"ep_source": source} if source else {}
    causes = [one.cause for one in diagnose(with_qnn(0xC0000005, "win32", phase, versions=versions))]
    named = [index for index, cause in enumerate(causes) if "microsoft/WindowsML#22" in cause]
    assert named == ([0] if source == "windowsml" and phase != "running" else [])
    assert not any("WindowsML" in one.cause for one in diagnose(with_qnn(0xC0000374, "win32", phase)))
