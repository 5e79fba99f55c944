"""Explanations of exit codes: the table, the raw status, and `explain_code` for codes that a user copied."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests import needs

from qnnbridge._diagnosis.exit_codes import POSIX, SIGNALS, WINDOWS, ExitStatus, git_bash_status
from qnnbridge._diagnosis.log_rules import QNN_CODES, find_qnn_code, qnn_code
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.explanations import explain_code

# Forms in which different observers see one crash; from the project's notes on Windows exit codes.
SEEN = [
    # name, Python, cmd and PowerShell, Git Bash
    ("STATUS_ACCESS_VIOLATION", 3221225477, -1073741819, 139),
    ("STATUS_IN_PAGE_ERROR", 3221225478, -1073741818, 127),
    ("STATUS_NO_MEMORY", 3221225495, -1073741801, 138),
    ("STATUS_ILLEGAL_INSTRUCTION", 3221225501, -1073741795, 132),
    ("STATUS_INVALID_IMAGE_FORMAT", 3221225595, -1073741701, 127),
    ("STATUS_INTEGER_DIVIDE_BY_ZERO", 3221225620, -1073741676, 127),
    ("STATUS_PRIVILEGED_INSTRUCTION", 3221225622, -1073741674, 127),
    ("STATUS_STACK_OVERFLOW", 3221225725, -1073741571, 127),
    ("STATUS_COMMITMENT_LIMIT", 3221225773, -1073741523, 127),
    ("STATUS_DLL_NOT_FOUND", 3221225781, -1073741515, 127),
    ("STATUS_ENTRYPOINT_NOT_FOUND", 3221225785, -1073741511, 127),
    ("STATUS_CONTROL_C_EXIT", 3221225786, -1073741510, 130),
    ("STATUS_DLL_INIT_FAILED", 3221225794, -1073741502, 127),
    ("STATUS_HEAP_CORRUPTION", 3221226356, -1073740940, 127),
    ("STATUS_STACK_BUFFER_OVERRUN", 3221226505, -1073740791, 127),
    ("STATUS_FATAL_USER_CALLBACK_EXCEPTION", 3221226525, -1073740771, 127),
    ("STATUS_INVALID_IMAGE_HASH", 3221226536, -1073740760, 127),
    ("delay-load: module not found", 3228369022, -1066598274, 127),
    ("delay-load: procedure not found", 3228369023, -1066598273, 127),
    ("C++ exception", 3765269347, -529697949, 127),
    ("STATUS_BREAKPOINT", 2147483651, -2147483645, 3),
]


def names(text: str) -> list[str]:
    return [reading.name for reading in explain_code(text).readings]


@pytest.mark.parametrize("table", [WINDOWS, SIGNALS, POSIX], ids=["windows", "signals", "posix"])
def test_every_row_has_a_unique_number_and_an_explanation(table: tuple) -> None:
    numbers = [row.number for row in table]
    assert len(set(numbers)) == len(numbers)
    for row in table:
        assert row.name, row
        assert len(row.meaning) > 5, row
        assert row.advice.endswith((".", ":")), row
        assert not row.meaning.endswith("."), row  # surrounding texts add it


@needs.posix
@pytest.mark.parametrize("row", SIGNALS, ids=lambda row: row.name)
def test_the_signals_are_those_of_this_system(row) -> None:
    assert signal.Signals(row.number).name == row.name


def test_only_crashes_can_be_blamed_on_a_model() -> None:
    for row in (*WINDOWS, *SIGNALS, *POSIX):
        assert row.blame == (row.kind == "crash"), row.name
    for status in (
        ExitStatus(1, "win32"),
        ExitStatus(-9, "posix"),
        ExitStatus(-15, "posix"),
        ExitStatus(-2, "posix"),
    ):
        assert not status.code.blame, status.describe()


def test_a_missing_library_is_not_fixed_by_a_restart() -> None:
    assert not ExitStatus(0xC0000135, "win32").code.curable
    assert not ExitStatus(0xC000007B, "win32").code.curable
    assert not ExitStatus(127, "posix").code.curable
    assert ExitStatus(0xC0000005, "win32").code.curable


@pytest.mark.parametrize(("name", "python", "cmd", "git_bash"), SEEN, ids=[row[0] for row in SEEN])
def test_one_crash_has_the_same_name_for_every_observer(name: str, python: int, cmd: int, git_bash: int) -> None:
    for raw in (python, cmd):
        status = ExitStatus(raw, "win32")
        assert (status.name, status.unsigned, status.signed, status.number) == (name, python, cmd, python)
        assert status.hex == f"0x{python:08X}"
    assert git_bash_status(python) == git_bash
    for text in (str(python), str(cmd), f"0x{python:x}", f"{python:,}"):
        explanation = explain_code(text)
        assert name in explanation.readings[0].name, text
        assert dict(explanation.elsewhere)["Git Bash"] == str(git_bash)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (ExitStatus(3221226505, "win32"), "3221226505 (0xC0000409, STATUS_STACK_BUFFER_OVERRUN)"),
        (ExitStatus(1, "win32"), "1"),
        (ExitStatus(3, "win32"), "3 (abort())"),
        (ExitStatus(259, "win32"), "259 (STILL_ACTIVE)"),
        (ExitStatus(0xC0001234, "win32"), "3221230132 (0xC0001234, NTSTATUS 0xC0001234)"),
        (ExitStatus(-11, "posix"), "-11 (SIGSEGV)"),
        (ExitStatus(139, "posix"), "139 (128 + 11, SIGSEGV)"),
        (ExitStatus(-64, "posix"), "-64 (signal 64)"),
        (ExitStatus(127, "posix"), "127 (command or library not found)"),
        (ExitStatus(77, "posix"), "77"),
    ],
)
def test_a_status_has_a_description_in_one_phrase(status: ExitStatus, text: str) -> None:
    assert status.describe() == text


@pytest.mark.parametrize("raw", [-11, 139])
def test_a_wrapper_that_does_not_exec_changes_the_number_and_not_the_signal(raw: int) -> None:
    status = ExitStatus(raw, "posix")
    assert (status.signal, status.code.fault) == (11, "access-violation")


def test_259_is_an_ended_process_with_a_name() -> None:
    assert ExitStatus(259, "win32").name == "STILL_ACTIVE"
    assert "instead of comparing the exit code with 259" in explain_code("259").to_text()


def test_127_has_three_meanings_and_all_are_listed() -> None:
    explanation = explain_code("127")
    shell, git_bash, load_error, *_ = explanation.readings
    assert (shell.kind, git_bash.kind, load_error.kind) == ("loader", "crash", "load-error")
    assert "shell" in shell.seen
    assert "Git Bash" in git_bash.seen
    assert [f"{row.number:X}" for row in git_bash.candidates] == ["C0000409", "C0000374", "C0000139", "C0000135"]
    assert git_bash.name.endswith("or command not found")
    assert load_error.name == "ERROR_PROC_NOT_FOUND"


def test_a_load_error_is_distinguished_from_an_exit_code() -> None:
    assert [reading.kind for reading in explain_code("WinError 127").readings] == ["load-error"]
    assert [reading.kind for reading in explain_code("[WinError 193]").readings] == ["load-error"]
    assert "load-error" not in [reading.kind for reading in explain_code("exit code 127").readings]
    for number in (126, 1114, 1455):
        assert "load-error" in [reading.kind for reading in explain_code(str(number)).readings]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("139", ["SIGSEGV", "STATUS_ACCESS_VIOLATION (0xC0000005)"]),
        ("138", ["SIGUSR1", "STATUS_NO_MEMORY (0xC0000017)"]),
        ("134", ["SIGABRT"]),
        ("137", ["SIGKILL"]),
        ("-11", ["SIGSEGV"]),
        ("-1", ["SIGHUP", "exit -1 (0xFFFFFFFF)"]),
        ("9009", ["cmd: command not found"]),
        ("3", ["abort()"]),
        ("SIGSEGV", ["SIGSEGV"]),
        ("sigabrt", ["SIGABRT"]),
        ("signal 9", ["SIGKILL"]),
        ("STATUS_HEAP_CORRUPTION", ["STATUS_HEAP_CORRUPTION (0xC0000374)"]),
        ("heap_corruption", ["STATUS_HEAP_CORRUPTION (0xC0000374)"]),
        ("C0000005", ["STATUS_ACCESS_VIOLATION (0xC0000005)"]),
        ("Exit status: -1073740791", ["STATUS_STACK_BUFFER_OVERRUN (0xC0000409)"]),
        ("returncode=3221226505.", ["STATUS_STACK_BUFFER_OVERRUN (0xC0000409)"]),
        ("%ERRORLEVEL% -1073741819", ["STATUS_ACCESS_VIOLATION (0xC0000005)"]),
        ("[WinError -1073741795]", ["STATUS_ILLEGAL_INSTRUCTION (0xC000001D)"]),
        ("1002", ["QNN_COMMON_ERROR_MEM_ALLOC (1002)"]),
        ("Code: 1100", ["QNN_COMMON_ERROR_GENERAL (1100)"]),
        ("QNN_DEVICE_ERROR_INVALID_CONFIG", ["QNN_DEVICE_ERROR_INVALID_CONFIG (14001)"]),
        ("14001", ["QNN_DEVICE_ERROR_INVALID_CONFIG (14001)", "ERROR_SXS_CANT_GEN_ACTCTX"]),
        ("216172828217574379", ["QNN_COMMON_ERROR_SYSTEM (1003)"]),
        ("0x0300000abc0003eb", ["QNN_COMMON_ERROR_SYSTEM (1003)"]),
        ("0x80000406", ["FastRPC 0x80000406"]),
        ("0x72", ["FastRPC 0x72", "exit 114"]),
        ("77", ["exit 77"]),
        ("12345", ["exit 12345"]),
    ],
)
def test_a_copied_code_is_parsed(text: str, expected: list[str]) -> None:
    assert names(text) == expected


@pytest.mark.parametrize(
    ("low_byte", "code"), [(5, "C0000005"), (9, "C0000409"), (29, "C000001D"), (253, "C00000FD")]
)
def test_a_linux_parent_of_a_windows_process_gets_the_low_byte(low_byte: int, code: str) -> None:
    # These four pairs were observed with Windows processes under Wine.
    cut = explain_code(str(low_byte)).readings[-1]
    assert "low byte" in cut.seen
    assert code in [f"{row.number:X}" for row in cut.candidates]


@pytest.mark.parametrize(
    "text", ["", "   ", "banana", "0xZZ", "12.5", "--3", "-99999999999", "9" * 30, "exit", "0x"]
)
def test_an_invalid_code_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        explain_code(text)
    assert "0xC0000409" in str(caught.value.fix)


def test_a_misspelt_name_is_recognised() -> None:
    with pytest.raises(OptionError, match="is not an exit code") as caught:
        explain_code("STATUS_HEAP_CORUPTION")
    assert "Did you mean STATUS_HEAP_CORRUPTION?" in str(caught.value.fix)


def test_the_error_for_a_message_refers_to_the_command_that_explains_messages() -> None:
    with pytest.raises(OptionError) as caught:
        explain_code("Empty cache file encountered")
    assert "qnnbridge doctor --explain" in str(caught.value.fix)
    with pytest.raises(OptionError) as caught:
        explain_code("SIGNONE")
    assert "--explain" not in str(caught.value.fix)


def test_an_explanation_can_be_printed_and_stored() -> None:
    explanation = explain_code("127")
    text = explanation.to_text()
    assert "127 has 4 meanings" in text
    assert "0xC0000374 STATUS_HEAP_CORRUPTION" in text
    stored = json.loads(json.dumps(explanation.to_json()))
    assert stored["number"] == 127
    assert stored["readings"][1]["candidates"][0]["hex"] == "0xC0000409"


def test_a_qnn_code_is_found_by_name_before_number() -> None:
    assert find_qnn_code("Error: QNN_GRAPH_ERROR_INVALID_NAME: bad, Code: 1002") == qnn_code(6003)
    assert find_qnn_code("graph execute error, Code: 216172828217574379") == qnn_code(1003)
    assert find_qnn_code("nothing to see, code 77") is None


@pytest.mark.simulator
def test_the_qnn_names_equal_those_of_the_real_library() -> None:
    package = pytest.importorskip("onnxruntime_qnn")
    library = Path(package.get_qnn_htp_path())
    if not library.is_file():
        pytest.skip("this onnxruntime-qnn has no HTP library for this machine")
    content = library.read_bytes()
    assert [row.name for row in QNN_CODES if row.name.encode() not in content] == []
