"""Explanations of host crashes. The stderr texts are from real crashes, see `data/stderr/README.md`."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.fair_clock import FairClock

from qnnbridge._diagnosis.crash import DEATH_RULES, CrashRecord, OpenCall, diagnose, to_error
from qnnbridge._diagnosis.exit_codes import POSIX, SIGNALS, WINDOWS, ExitStatus, Platform, from_low_byte
from qnnbridge._launch.stderr import decode_stderr
from qnnbridge_protocol.errors import BridgeError, HostCrashed, HostStartFailed

DATA = Path(__file__).with_name("data") / "stderr"
START = ("starting", "importing", "registering")


def record(
    log: str | None, phase: str, code: int | None, platform: Platform = "posix", op: str = "", **more: Any
) -> CrashRecord:
    """Return the record of a host that crashed in this phase with this code, after it had written this file to
    stderr.
    """
    text = ""
    if log is not None:
        text = decode_stderr((DATA / (log if "." in log else f"{log}.txt")).read_bytes())
    in_call = phase in ("creating", "compiling", "running")
    call = OpenCall(
        7, op or ("session.run" if phase == "running" else "session.create"), "pnet.onnx", "f" * 64, "0" * 64, phase
    )
    return CrashRecord(
        exit=None if code is None else ExitStatus(code, platform),
        host_phase="idle" if in_call else phase,
        generation=3,
        uptime_s=12.5,
        in_flight=(call,) if in_call else (),
        stderr_tail=text,
        ready=phase not in START,
        **more,
    )


REAL_DEATHS = [
    # stderr, phase, exit code, text in the cause, text in the fix
    ("zero_size_dimension", "compiling", -8, "dimension of size 0", "Give it a size"),
    ("zero_size_dimension", "creating", 136, "dimension of size 0", "Give it a size"),
    (
        "run_option_not_a_number",
        "running",
        -6,
        "must be a number has another value (stoul failed)",
        "Correct the option",
    ),
    ("bin_of_another_model", "creating", -6, "does not belong to this .onnx file", "Compile the model again"),
    ("damaged_bin_out_of_range", "creating", -6, "context binary is damaged (std::out_of_range)", "Compile"),
    ("damaged_bin_at_create", "compiling", -11, "context binary is damaged or was compiled", "compile it again"),
    ("damaged_bin_at_run", "running", -11, "while running this model", "compile it again"),
    ("stft", "compiling", -11, "STFT", "replace the operator"),
    ("check_failed", "compiling", -6, "assertion in ONNX Runtime or QNN failed (__n < this->size())", "verify"),
    ("truncated_backend_library", "creating", -7, "library or the context binary is truncated", "Reinstall"),
    ("two_qnn_versions", "creating", -6, "two QNN versions", "one set of QNN libraries"),
    ("double_free", "running", -6, "double free", "one set of QNN libraries"),
    ("thread_at_exit", "closing", -6, "All requests had been answered", "no answer was lost"),
    ("qemu_segv", "importing", -11, "crashed while it was loaded", "Reinstall"),
    ("watchdog", "running", 1, "exceeded its time limit", "Increase the time limit"),
    ("python_exception", "idle", 1, "ValueError: bad thing happened", "traceback"),
    ("host_package_missing", "starting", 1, "qnnbridge is not installed", "qnnbridge setup"),
    ("module_missing", "starting", 1, "lacks the package nosuchmodule", "qnnbridge setup"),
    ("pythonhome", "starting", 1, "PYTHONHOME", "Unset PYTHONHOME"),
    (None, "compiling", -9, "out-of-memory killer or another process ended the host", "kernel log"),
    (None, "running", 137, "out-of-memory killer or another process ended the host", "kernel log"),
    (None, "idle", -9, "Another process or the kernel", "kernel log"),
    (None, "idle", -15, "ended the host with a signal (SIGTERM)", "Find out which program"),
    (None, "idle", 0, "ended with exit code 0", "sys.exit()"),
    (None, "starting", 127, "command or library not found", "by hand"),
    (None, "starting", 126, "not executable", "one machine type"),
]


@pytest.mark.parametrize(
    ("log", "phase", "code", "cause", "fix"),
    REAL_DEATHS,
    ids=[f"{row[0]}-{row[1]}-{row[2]}" for row in REAL_DEATHS],
)
def test_a_real_crash_is_explained(log: str | None, phase: str, code: int, cause: str, fix: str) -> None:
    best = diagnose(record(log, phase, code))[0]
    assert cause in best.cause
    assert fix in best.fix


@pytest.mark.parametrize(
    ("ran_out", "says"),
    [
        (True, "out-of-memory killer was active while the host ran"),
        (False, "Another process killed the host (SIGKILL); the kernel's out-of-memory killer was not active"),
        (None, "it is unknown which"),
    ],
)
@pytest.mark.parametrize("phase", ["running", "idle", "starting"])
def test_a_kill_is_distinguished_from_used_up_memory_if_the_kernel_counts(
    phase: str, ran_out: bool | None, says: str
) -> None:
    assert says in diagnose(record(None, phase, -9, memory_ran_out=ran_out))[0].cause


def test_used_up_memory_does_not_explain_another_crash() -> None:
    assert diagnose(record(None, "running", -11, memory_ran_out=True)) == diagnose(record(None, "running", -11))


@pytest.mark.parametrize("log", ["check_failed", None])
@pytest.mark.parametrize("code", [-6, -11, 0xC0000409, 0xC0000005])
def test_a_crash_of_the_compiler_is_not_explained_by_files_that_it_did_not_read(log: str | None, code: int) -> None:
    platform: Platform = "win32" if code > 0 else "posix"
    for died in diagnose(record(log, "compiling", code, platform, op="worker.compile"))[:2]:
        assert not re.search(r"Windows|\.bin|EPContext|compile[^.]* again", f"{died.cause} {died.fix}"), died
    best = diagnose(record(log, "compiling", code, platform, op="worker.compile"))[0]
    assert "`qnnbridge verify MODEL` finds the operator" in best.fix


@pytest.mark.parametrize("op", ["session.create", "worker.compile"])
def test_an_abort_without_a_message_mentions_windows_only_on_windows(op: str) -> None:
    for phase in ("creating", "compiling", "running"):
        assert "Windows" not in diagnose(record(None, phase, -6, op=op))[0].cause


WINDOWS_DEATHS = [
    ("windows_access_violation", "running", 0xC0000005, "while running this model"),
    ("windows_access_violation", "importing", 0xC0000005, "crashed while it was loaded"),
    ("windows_run_option_not_a_number.bin", "running", 0xC0000409, "as is usual on Windows"),
    ("windows_run_option_not_a_number.bin", "running", 3, "as is usual on Windows"),
    ("windows_standard_streams", "starting", 1, "cannot use its standard streams"),
    (None, "compiling", 0xC0000094, "dimension of size 0"),
    (None, "compiling", 0xC00000FD, "QNN crashed while it created a session"),
    (None, "running", 0xC0000006, "truncated or replaced while in use"),
    (None, "running", 0xC0000374, "memory allocator"),
    (None, "starting", 0xC0000135, "Visual C++ runtime"),
    (None, "starting", 0xC000007B, "another machine type"),
    (None, "starting", 0xC0000139, "two versions are mixed"),
    (None, "starting", 106, "pyvenv.cfg"),
    (None, "idle", 0xC000013A, "ended the host with a signal (STATUS_CONTROL_C_EXIT)"),
    (None, "running", 1, "Another program ended the process"),
    (None, "idle", 259, "STILL_ACTIVE"),
    (None, "idle", 0xC0ABCDEF, "unknown Windows error status"),
]


@pytest.mark.parametrize(
    ("log", "phase", "code", "cause"),
    WINDOWS_DEATHS,
    ids=[f"{row[0]}-{row[1]}-{row[2]:X}" for row in WINDOWS_DEATHS],
)
def test_a_windows_crash_is_explained(log: str | None, phase: str, code: int, cause: str) -> None:
    assert cause in diagnose(record(log, phase, code, "win32"))[0].cause


@pytest.mark.parametrize(("log", "code"), [("thread_without_memory", 127), ("host_without_memory", 4)])
def test_a_host_that_ended_without_memory_says_so(log: str, code: int) -> None:
    assert diagnose(record(log, "running", code))[0].cause == "The system had no memory left."


@pytest.mark.parametrize(
    ("line", "cause", "curable"),
    [
        ("ImportError: DLL load failed while importing ort_state: The specified module could not be found.",
         "A native library of ort_state could not be loaded: The specified module", False),
        ("OSError: [WinError 193] %1 is not a valid Win32 application", "for another machine", False),
        ("ImportError: /opt/x.so: wrong ELF class: ELFCLASS32", "for another machine", False),
        ("OSError: [Errno 8] Exec format error: '/opt/python'", "for another machine", False),
        ("ImportError: libatomic.so.1: cannot open shared object file: No such file", "libatomic.so.1", False),
        ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found", "GLIBCXX_3.4.32", False),
        ("SyntaxError: invalid syntax", "too old for qnnbridge", False),
        ("MemoryError", "no memory left", True),
        ("RuntimeError: something odd", "RuntimeError: something odd", True),
    ],
)  # fmt: skip
def test_a_python_that_cannot_be_a_host_is_explained(line: str, cause: str, curable: bool) -> None:
    text = f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n{line}\n'
    died = CrashRecord(ExitStatus(1, "posix"), host_phase="starting", ready=False, stderr_tail=text)
    best = diagnose(died)[0]
    assert cause in best.cause
    assert best.curable is curable
    assert to_error(died).retry == ("safe" if curable else "pointless")


def test_a_bad_dynamic_option_is_distinguished_from_a_thread_at_exit() -> None:
    # Both crashes leave the same line: `terminate called without an active exception`.
    by_option = record("dynamic_option_not_a_number", "running", -6, op="session.set_ep_dynamic_options")
    assert "dynamic option" in diagnose(by_option)[0].cause
    assert "All requests had been answered" in diagnose(record("thread_at_exit", "idle", -6))[0].cause


def test_there_is_always_an_explanation_and_it_contains_the_exit_code() -> None:
    statuses = [
        *(ExitStatus(row.number, "win32") for row in WINDOWS),
        *(ExitStatus(row.number, "posix") for row in POSIX),
        *(ExitStatus(-row.number, "posix") for row in SIGNALS),
    ]
    for status in statuses:
        for phase in (*START, "creating", "compiling", "running", "idle", "closing"):
            diagnoses = diagnose(record(None, phase, status.raw, status.platform))
            weights = [diagnosis.weight for diagnosis in diagnoses]
            assert weights == sorted(weights, reverse=True)
            assert any(d.cause.startswith(f"{status.name}: ") for d in diagnoses), (status.name, phase)
            assert all("{" not in d.cause for d in diagnoses)
    assert "could not be read" in diagnose(record(None, "running", None))[0].cause


def test_no_rule_mentions_a_fault_or_a_phase_that_does_not_exist() -> None:
    faults = {row.fault for row in (*WINDOWS, *SIGNALS, *POSIX)} | {"unknown"}
    phases = {*START, "creating", "compiling", "running", "idle", "closing"}
    for rule in DEATH_RULES:
        assert set(rule.faults.split()) <= faults, rule.cause
        assert set(rule.phases) <= phases, rule.cause
        assert rule.fix, rule.cause


@pytest.mark.parametrize("because", ["a call ran past its deadline", "a call ran past its deadline."])
def test_the_only_cause_of_a_host_that_qnnbridge_ended_is_the_reason_of_qnnbridge(because: str) -> None:
    died = record("damaged_bin_at_run", "running", -9, killed_because=because)
    (only,) = diagnose(died)
    assert only.cause == "qnnbridge ended the host: a call ran past its deadline."


def test_a_log_line_of_an_earlier_failure_has_less_weight_than_evidence_of_the_crash_itself() -> None:
    both = "backend_missing"
    died = record(both, "compiling", -8)
    causes = [d.cause for d in diagnose(died)]
    assert "dimension of size 0" in causes[0]
    assert any("libQnnHtp.so does not exist" in cause for cause in causes[1:])


def test_a_crash_while_idle_is_not_explained_by_a_failure_that_an_earlier_call_survived() -> None:
    line = "REASON : Cannot get shape"
    causes = [d.cause for d in diagnose(CrashRecord(ExitStatus(-11, "posix"), stderr_tail=line))]
    assert causes[0].startswith("SIGSEGV: ")
    assert any("needs fixed dimensions" in cause for cause in causes[1:])


def test_a_stderr_full_of_long_lines_is_read_quickly() -> None:
    line = "2026-11-21 09:59:38.9 [V:onnxruntime:, x.cc:1 F] " + "name=a id=1 type=QNN_TENSOR_TYPE_NATIVE " * 50
    died = CrashRecord(ExitStatus(1, "posix"), stderr_tail="\n".join([line] * 40 + ["x" * 20_000]))
    clock = FairClock()
    diagnose(died)
    assert clock.seconds < 1


# --- evidence ---


def test_the_stack_of_the_crashed_thread_is_read() -> None:
    died = record("damaged_bin_at_run", "running", -11)
    title, innermost, *_ = died.python_stack
    assert title == "Fatal Python error: Segmentation fault"
    assert innermost.endswith("line 395 in run")
    assert diagnose(died)[0].evidence == (
        "Fatal Python error: Segmentation fault in run (onnxruntime_inference_collection.py:395)",
    )


def stack_of(*threads: str) -> tuple[str, ...]:
    text = "\n\n".join(("Fatal Python error: Aborted", *threads))
    return CrashRecord(ExitStatus(-6, "posix"), stderr_tail=text).python_stack


def test_the_crashed_thread_is_the_one_marked_as_current() -> None:
    idle = 'Thread 0x01 (most recent call first):\n  File "idle.py", line 9 in read'
    died = 'Current thread 0x02 (most recent call first):\n  File "a.py", line 1 in f'
    for threads in ((idle, died), (died, idle)):
        assert stack_of(*threads) == ("Fatal Python error: Aborted", 'File "a.py", line 1 in f')


def test_a_thread_of_native_code_gets_no_frames_of_other_threads() -> None:
    idle = 'Thread 0x01 (most recent call first):\n  File "idle.py", line 9 in read'
    assert stack_of(idle, idle) == ("Fatal Python error: Aborted",)


def test_the_message_of_the_cpp_runtime_is_kept_with_the_exception_text() -> None:
    died = record("two_qnn_versions", "creating", -6)
    assert died.terminate_line == (
        "terminate called after throwing an instance of 'std::runtime_error': duplicate op key @BlockZap"
    )
    assert record("damaged_bin_at_run", "running", -11).terminate_line is None


def test_a_stack_in_the_head_of_stderr_is_found_too() -> None:
    text = decode_stderr((DATA / "bin_of_another_model.txt").read_bytes())
    died = CrashRecord(ExitStatus(-6, "posix"), stderr_head=text, stderr_tail="later lines\n")
    assert died.python_stack
    assert "does not belong" in diagnose(died)[0].cause


def test_only_requests_in_native_code_are_suspects() -> None:
    calls = (
        OpenCall(1, "session.run", "queued.onnx", "a" * 64, "0", None),
        OpenCall(2, "session.run", "guilty.onnx", "b" * 64, "0", "running"),
        OpenCall(3, "host.info", "", "", "", None),
    )
    died = CrashRecord(ExitStatus(-11, "posix"), in_flight=calls)
    assert [call.request_id for call in died.suspects] == [2]
    assert (died.phase, died.models) == ("running", ("guilty.onnx",))
    assert "while running guilty.onnx" in to_error(died).message


@pytest.mark.parametrize(
    ("code", "platform", "more", "from_outside"),
    [
        (-9, "posix", {"memory_ran_out": False}, True),
        (-9, "posix", {}, True),
        (-9, "posix", {"memory_ran_out": True}, False),
        (-9, "posix", {"killed_because": "it does not move"}, False),
        (-15, "posix", {"memory_ran_out": True}, True),
        (-2, "posix", {}, True),
        (137, "posix", {}, True),
        (-11, "posix", {}, False),
        (-6, "posix", {}, False),
        (-8, "posix", {}, False),
        (1, "posix", {}, False),
        (None, "posix", {}, False),
        (1, "win32", {}, True),
        (1, "win32", {"stderr_head": "Traceback (most recent call last):\nKeyError: 1\n"}, False),
        (1, "win32", {"stderr_head": "Timeout (0:00:10)!\nThread 0x1 (most recent call first):\n"}, False),
        (1, "win32", {"killed_because": "it does not move"}, False),
        (0xC000013A, "win32", {}, True),
        (0xFFFFFFFF, "win32", {}, True),
        (0xC0000005, "win32", {}, False),
        (3, "win32", {}, False),
    ],
)
def test_a_kill_from_outside_is_distinguished_from_a_crash(
    code: int | None, platform: Platform, more: dict[str, Any], from_outside: bool
) -> None:
    died = record(None, "running", code, platform, **more)
    assert died.from_outside is from_outside
    assert to_error(died).details["from_outside"] is from_outside


# --- the error ---


def test_waiting_requests_are_named_in_the_message() -> None:
    one = OpenCall(1, "session.create", "model_v8.onnx", "a" * 64)
    died = CrashRecord(ExitStatus(-9, "posix"), in_flight=(one,))
    assert to_error(died).message == (
        "The QNN host process ended while a request was waiting for it (session.create of model_v8.onnx): "
        "exit code -9 (SIGKILL)."
    )
    assert (died.phase, died.models, died.suspects) == ("idle", (), ())
    more = tuple(OpenCall(n, "session.run", f"{n % 5}.onnx", "b" * 64) for n in range(2, 12))
    message = to_error(
        CrashRecord(ExitStatus(-9, "posix"), in_flight=(one, OpenCall(2, "host.info"), *more))
    ).message
    assert (
        "while 12 requests were waiting for it (session.create of model_v8.onnx, host.info, session.run" in message
    )
    assert " of 2.onnx ...)" in message
    assert "while no call was running" in to_error(CrashRecord(ExitStatus(-9, "posix"))).message


def test_the_error_names_phase_model_code_cause_fix_and_report_in_few_lines() -> None:
    error = to_error(record("zero_size_dimension", "compiling", -8), "~/crashes/x.txt")
    assert type(error) is HostCrashed
    lines = str(error).splitlines()
    assert lines[0] == "The QNN host process ended while compiling pnet.onnx: exit code -8 (SIGFPE)."
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["Cause", "Evidence", "Evidence", "Fix"]
    assert "crash report: ~/crashes/x.txt" in lines[3]


KNOWN = "pnet.onnx: QNN is known to compute one operator of the model wrong: AveragePool pool (x). Fix: run: qnnbridge fix pnet.onnx -o pnet_fixed.onnx."


@pytest.mark.parametrize("log", [None, "damaged_bin_at_run"])
def test_a_fault_that_was_known_before_the_crash_is_the_cause_with_its_fix(log: str | None) -> None:
    plain = record(log, "running", -11)
    known = dataclasses.replace(plain, in_flight=(dataclasses.replace(plain.in_flight[0], known=KNOWN),))
    error = to_error(known)
    assert error.cause == f"Most likely a known fault of QNN. {KNOWN.partition(' Fix: ')[0]}"
    assert error.fix == "Run: qnnbridge fix pnet.onnx -o pnet_fixed.onnx."
    assert error.details["diagnoses"][0]["cause"] == error.cause, "as the crash report has it"


def test_a_known_fault_is_not_blamed_for_a_kill_or_a_crash_without_qnn() -> None:
    killed, without = record(None, "running", -9), record(None, "running", -11)
    killed = dataclasses.replace(killed, in_flight=(dataclasses.replace(killed.in_flight[0], known=KNOWN),))
    call = dataclasses.replace(without.in_flight[0], known=KNOWN, without_qnn=True)
    for died in (killed, dataclasses.replace(without, in_flight=(call,))):
        assert all("known fault" not in found.cause for found in diagnose(died))


def test_a_windows_code_is_named_by_number_hex_and_name() -> None:
    error = to_error(record(None, "running", 3221226505, "win32"))
    assert "3221226505 (0xC0000409, STATUS_STACK_BUFFER_OVERRUN)" in error.message


def test_a_host_that_never_became_ready_failed_to_start() -> None:
    error = to_error(record("host_package_missing", "starting", 1))
    assert type(error) is HostStartFailed
    assert error.message == "The QNN host process ended before it was ready: exit code 1."
    assert error.retry == "pointless"
    assert to_error(record(None, "starting", -9)).retry == "safe"


def test_the_details_are_complete_and_survive_encoding() -> None:
    died = record(
        "bin_of_another_model",
        "creating",
        -6,
        versions={"onnxruntime": "1.31.1"},
        application_versions={"python": "3.10.4"},
        last_frames=("REQUEST 7 create",),
        interpreter="/opt/python",
    )
    error = to_error(died, "report.txt")
    details = json.loads(json.dumps(error.details))
    assert details["exit"]["number"] == -6
    assert details["exit"]["hex"] == "0xFFFFFFFA"
    assert details["exit"]["name"] == "SIGABRT"
    assert (details["phase"], details["models"], details["generation"]) == ("creating", ["pnet.onnx"], 3)
    assert details["suspects"][0]["fingerprint"] == "f" * 64
    assert details["versions"] == {"onnxruntime": "1.31.1"}
    assert details["last_frames"] == ["REQUEST 7 create"]
    assert details["report"] == "report.txt"
    assert details["diagnoses"][0]["cause"] == error.cause
    assert "what():" in details["stderr_tail"]
    assert BridgeError.__reduce__(error)[1][0]["details"]["phase"] == "creating"


# --- the last line of stderr -----------------------------------------------------------------------------

WRONG_PROGRAM = "/bin/cat: invalid option -- 'I'\nTry '/bin/cat --help' for more information.\n\n"


def died_with(stderr: str, phase: str = "starting", code: int = 2) -> CrashRecord:
    return CrashRecord(
        exit=ExitStatus(code, "posix"), host_phase=phase, ready=phase != "starting", stderr_tail=stderr
    )


@pytest.mark.parametrize("code", [1, 2, 64])
def test_without_a_proven_cause_the_last_line_of_stderr_is_the_evidence(code: int) -> None:
    best = diagnose(died_with(WRONG_PROGRAM, code=code))[0]
    assert best.evidence == ("/bin/cat: invalid option -- 'I'",)
    assert "stderr contains no error" not in best.cause


def test_the_last_line_is_shown_without_time_stamp_and_colours() -> None:
    line = "\x1b[1;31m2026-01-02 03:04:05.678 [E:onnxruntime:, file.cc:1 ort::Function] what went wrong\x1b[m\n"
    assert diagnose(died_with(decode_stderr(line.encode()), "running", -4))[0].evidence == ("what went wrong",)


PYTHON_2 = (
    "Unknown option: -I\nusage: /opt/bin/python2.7 [option] ... [-c cmd | -m mod | file | -] [arg] ...\n"
    "Try `python -h' for more information.\n"
)


@pytest.mark.parametrize(
    ("stderr", "code", "cause"),
    [
        ("", 0, "is not a Python interpreter"),
        ("", 2, "is not a Python interpreter"),
        (WRONG_PROGRAM, 1, "is not a Python interpreter"),
        ("/bin/ls: unrecognized option '--parent'\nTry '/bin/ls --help'\n", 2, "is not a Python interpreter"),
        (PYTHON_2, 2, "too old for qnnbridge"),
    ],
)
def test_a_program_that_cannot_be_the_host_is_reported_as_such(stderr: str, code: int, cause: str) -> None:
    best = diagnose(died_with(stderr, code=code))[0]
    assert cause in best.cause
    assert "sys.exit" not in best.fix
    assert cause not in diagnose(died_with(stderr, "idle", code))[0].cause, "it was ready: it is a host"


def test_an_error_of_python_about_its_command_line_is_not_mistaken_for_another_program() -> None:
    said = "/opt/bin/python: can't open file '/opt/host.py': [Errno 2] No such file or directory\n"
    best = diagnose(died_with(said))[0]
    assert "could not open the program" in best.cause
    assert best.evidence == (said.strip(),)


def test_a_proof_is_not_mixed_with_the_last_line() -> None:
    text = (
        "Fatal Python error: init_fs_encoding\nModuleNotFoundError: No module named 'encodings'\nsomething else\n"
    )
    assert "something else" not in " ".join(diagnose(died_with(text, code=1))[0].evidence)


def test_an_empty_stderr_gives_no_evidence() -> None:
    assert diagnose(died_with("\n  \n"))[0].evidence == ()


@pytest.mark.parametrize(
    ("raw", "stderr", "expected"),
    [
        (5, "Windows fatal exception: access violation\n\nThread 0x1", 0xC0000005),
        (253, "Windows fatal exception: stack overflow\n", 0xC00000FD),
        (0x74, "Windows fatal exception: code 0xc0000374\n", 0xC0000374),
        (29, "Windows fatal exception: code 0xc000001d\n", 0xC000001D),
        (9, "", 0xC0000409),
        (99, "", 0xE06D7363),
        (58, "", 0xC000013A),
        (0, "", 0),
        (1, "Windows fatal exception: access violation\n", 1),
        (3, "Fatal Python error: Aborted\n", 3),
        (5, "no word of it", 5),
        (29, "no word of it", 29),
        (77, "Windows fatal exception: code 0x0000004d\n", 77),
    ],
)
def test_a_windows_code_is_recovered_from_the_eight_bits_that_linux_passes_on(
    raw: int, stderr: str, expected: int
) -> None:
    status = from_low_byte(raw, stderr)
    assert (status.unsigned, status.platform) == (expected, "win32")


def test_a_signal_stays_a_signal_whatever_the_host_was() -> None:
    assert from_low_byte(-9, "Windows fatal exception: access violation").signal == 9
