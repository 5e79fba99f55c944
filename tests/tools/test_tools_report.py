"""`qnnbridge report` contains no personal data, survives failures, and suffices for a remote diagnosis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import needs

from qnnbridge_tools import bug_report
from qnnbridge_tools.bug_report import CRASH_REPORTS, Outcome, parts, report_text, run_command
from qnnbridge_tools.doctor.examine import read_snapshot
from qnnbridge_tools.personal import Identity, this_identity, without_personal

ANNABELL = Identity(
    homes=(r"C:\Users\Annabell.Meyer", "/data/people/annabell.meyer"),
    users=("Annabell.Meyer",),
    computers=("ANNAS-NB-17", "CONTOSO"),
    secrets=("pa55/w0rd+x",),
)
LEAKS = (
    "annabell",
    "annabe",
    "meyer",
    "annas",
    "contoso",
    "jürgen",
    "rgen",
    "w0rd",
    "s3cr3t",
    "fileserv",
    "schmidt",
)


@pytest.mark.parametrize(
    "text",
    [
        r"C:\Users\Annabell.Meyer\models\a.onnx",
        r'{"path": "C:\\Users\\Annabell.Meyer\\a.onnx"}',
        r'{"log": "{\"path\": \"C:\\\\Users\\\\Annabell.Meyer\\\\a.onnx\"}"}',
        "c:/users/annabell.meyer/lib",
        "file:///C%3A/Users/Annabell.Meyer/a.onnx",
        "C%3A%5CUsers%5CAnnabell.Meyer%5Ca.onnx",
        r"C:\Users\ANNABE~1\AppData\Local\Temp\x",
        r"D:\ANNABE~1\x",
        r"C:\DOCUME~1\ANNABE~1.CON\x",
        "/data/people/annabell.meyer/.cache",
        "/home/annabell.meyer: no such file",
        "/Users/schmidt is full",
        r"C:\Users\Max Schmidt\a.onnx",
        r'{"path": "C:\\Users\\J\u00fcrgen\\a.onnx"}',
        "/home/J%C3%BCrgen/a.onnx",
        r"C:\Users\Jürgen\a.onnx",
        r"\\fileserv\home\Annabell.Meyer\a.onnx",
        r"\\?\UNC\fileserv\annabell.meyer\a.onnx",
        r'{"path": "\\\\fileserv\\share\\a.onnx"}',
        "file://fileserv/share/a.onnx",
        r"CONTOSO\Annabell.Meyer on annas-nb-17.contoso.example",
        r'{"log": "first\nannabell.meyer\tannas-nb-17"}',
        "x=%20annabell.meyer%20",
        "\x1b[31mannabell.meyer\x1b[0m",
        "work_annabell.meyer_2.onnx",
        "~annabell.meyer/x",
        "Annabell.Meyer@contoso.example, someone@schmidt.example",
        "https://bob:s3cr3t@proxy.example:8080/",
        "Authorization: Bearer s3cr3t-s3cr3t",
        '{"token": "s3cr3t-value"}',
        r'{"log": "{\"api_key\": \"s3cr3t-value\"}"}',
        "QNNBRIDGE_SERVE_TOKEN=s3cr3t-value",
        "--token s3cr3t-value",
        "hf_s3cr3tS3cr3tS3cr3t",
        "QNN_hf_s3cr3tS3cr3tS3cr3t",
        "https://bob:p@s3cr3t@proxy.example:8080/",
        "password=schmidt",
        "password: 77s3cr3t",
        '{"password": "my s3cr3t words"}',
        r'{"password": "my \"s3cr3t\" words"}',
        r'{"log": "{\"secret\": \"my s3cr3t words\"}"}',
        "AWS_SECRET_ACCESS_KEY=s3cr3t",
        "https://cdn.example/a?X-Amz-Signature=s3cr3t&x=1",
        "https://cdn.example/a?sig=s3cr3t",
        r"D:\OneDrive - Contoso Schmidt Ltd\models",
        "file:///d/OneDrive%20-%20Fileserv%20Schmidt/models",
        "pa55/w0rd+x and pa55%2Fw0rd%2Bx",
    ],
)
def test_no_spelling_of_a_name_or_secret_remains(text: str) -> None:
    cleaned, counts = without_personal(text, ANNABELL)
    assert not [leak for leak in LEAKS if leak in cleaned.lower()], cleaned
    assert counts


@pytest.mark.parametrize(
    "text",
    [
        "QnnHtp.dll 2.40.0.251225135753_193295 in C:\\Windows\\System32\\DriverStore\\x",
        "max_tokens=512, tokens: 1024, token_ids int64 1x128, tokenizer: WordPiece",
        '{"password": null, "secrets": [], "token": "1024", "credentials": {"a": 1}}',
        "https://github.com/owner/name/issues, http://127.0.0.1:8000/v1",
        r"C:\Users\Public\models\a.onnx",
        r'{"path": "D:\\models\\a.onnx"}',
        "/data/models/homework/users.onnx",
        "/model/layers.0/attn/MatMul // a node",
        r"\\.\pipe\qnnbridge-1",
    ],
)
def test_information_for_maintainers_is_kept(text: str) -> None:
    assert without_personal(text, ANNABELL) == (text, {})


def test_the_rest_of_a_path_stays_readable() -> None:
    text = r'{"path": "C:\\Users\\Annabell.Meyer\\models\\a.onnx"}'
    assert without_personal(text, ANNABELL)[0] == r'{"path": "~\\models\\a.onnx"}'
    assert without_personal("/home/other/models/a.onnx", ANNABELL)[0] == "/home/USER/models/a.onnx"
    assert without_personal("/data/people/annabell.meyer2/x", ANNABELL)[0] == "/data/people/annabell.meyer2/x"


def test_common_words_as_user_names_do_not_garble_the_report() -> None:
    named = Identity(users=("qn", "model"), computers=("host",))
    assert without_personal("qn model host /home/model/x", named)[0] == "qn model host /home/USER/x"
    assert "3 names of users or computers" in report_text([], named)


def test_a_number_may_be_a_password_and_is_not_a_token() -> None:
    assert without_personal('password=123456 "secret": "42" tokens=123456', ANNABELL)[0] == (
        'password=SECRET "secret": "SECRET" tokens=123456'
    )


def test_a_line_of_any_length_is_searched_in_linear_time() -> None:
    begun = time.process_time()
    for text in (
        "x" * 400_000,
        "password=" * 40_000,
        "a.b-" * 100_000,
        "\\" * 400_000,
        "OneDrive - " * 40_000,
        "/users/" * 40_000,
    ):
        without_personal(text, ANNABELL)
    assert time.process_time() - begun < 20


@needs.posix
def test_the_home_folder_behind_a_link_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real" / "qn").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "real")
    home = tmp_path / "home" / "qn"
    monkeypatch.setenv("HOME", str(home))
    found = this_identity({"HOME": str(home)})
    for folder in (home, home.resolve()):
        assert without_personal(f"{folder}/models", found)[0] == "~/models"


def test_secrets_in_the_environment_are_recognised() -> None:
    found = this_identity({"HF_TOKEN": "abcdefgh", "USERNAME": "annabell", "COMPUTERNAME": "NB17", "PATH": "/usr"})
    assert found.secrets == ("abcdefgh",)
    assert "annabell" in found.users
    assert "NB17" in found.computers


def test_a_failing_part_of_the_report_does_not_affect_the_others() -> None:
    def run(words: Sequence[str]) -> Outcome:
        if words[0] == "doctor":
            return Outcome("", "", None, "no end within 3 s")
        if words == ["crashes", "list", "--json"]:
            return Outcome("half a docu", code=-11)
        if words[0] == "cache":
            return Outcome("some entries", "then a fault", -11)
        return Outcome(f"answer of {words[0]}", code=0)

    text = report_text(list(parts(run, Path("model.onnx"))), Identity())
    assert text.count("This part is incomplete: no end within 3 s.") == 2  # findings and snapshot
    assert "some entries\nthen a fault\nThe command ended with exit code -11." in text
    for answered in ("--version", "crashes", "quarantine", "host", "inspect"):
        assert f"answer of {answered}" in text


def test_only_the_newest_crash_reports_are_included() -> None:
    listed = json.dumps({"reports": [{"id": f"id{number}"} for number in range(9)]})
    shown = [part.title for part in parts(lambda words: Outcome(listed, code=0)) if "Crash report" in part.title]
    assert shown == [f"Crash report {number + 1}: id{number}" for number in range(CRASH_REPORTS)]


def test_a_command_that_hangs_is_ended() -> None:
    # This command follows a log until Ctrl+C.
    outcome = run_command(["host", "logs", "--follow"], 3)
    assert outcome.problem == "the command did not end within 3 s"
    assert outcome.code is None


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="needs Python 3.11: older ones import from the current folder first"
)
def test_files_in_the_current_folder_do_not_affect_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert run_command(["--version"], 60).code == 0


def test_a_long_output_keeps_its_end() -> None:
    for text, begin in (
        ("hf_s3cr3t x\n" * bug_report.MAX_PART_CHARS, "hf_"),
        ("s3cr3t " * bug_report.MAX_PART_CHARS, "s3"),
    ):
        shown = next(parts(lambda words, text=text: Outcome("", text + "the end", 0))).text
        assert shown.startswith(f"[...]\n{begin}"), "no part of a name or a secret"
        assert shown.endswith("the end")
        assert len(shown) <= bug_report.MAX_PART_CHARS + len("[...]\n")


def test_the_report_of_this_computer_contains_no_names_and_is_a_snapshot(tmp_path: Path) -> None:
    home = tmp_path / "people" / "Annabell.Meyer"
    state = home / "state"
    (state / "crashes").mkdir(parents=True)
    (state / "quarantine.json").write_text("{ no JSON", encoding="utf-8")
    environment = {
        **os.environ,
        "HOME": str(home),
        "USERPROFILE": str(home),
        "USER": "annabell.meyer",
        "USERNAME": "annabell.meyer",
        "QNNBRIDGE_STATE_DIR": str(state),
        "QNNBRIDGE_CACHE_DIR": str(home / "cache"),
        "QNNBRIDGE_RUNTIME_DIR": str(tmp_path / "run"),
        "HF_TOKEN": "s3cr3t-value",
    }
    path = tmp_path / "report.txt"

    def report(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "qnnbridge_tools", "report", "--quick", "--output", str(path), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    done = report()
    assert done.returncode == 0, done.stderr
    text = path.read_text("utf-8")
    assert not [leak for leak in ("annabell", "meyer", "s3cr3t") if leak in text.lower()]
    assert "No crash reports in ~" in text
    assert read_snapshot(path).application.version == ".".join(map(str, sys.version_info[:3]))
    again = report()
    assert again.returncode == 2
    assert path.read_text("utf-8") == text
