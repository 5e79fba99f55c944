"""`qnnbridge transcribe`: the library's results in all formats, crashes, Ctrl+C, bad input."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests import needs
from tests.fakes.commands import qnnbridge as command_line
from tests.fakes.pages import program_of
from tests.speech import tiny_whisper as tiny

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")

import qnnbridge
from qnnbridge import speech
from qnnbridge_tools.transcribe import written

TIMEOUT_S = 120


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of the layouts, and audio."""
    root = tmp_path_factory.mktemp("transcribe")
    for layout in tiny.LAYOUTS:
        tiny.write_folder(root / layout, layout)
    tiny.write_folder(root / "bare", "fixed", tokenizer=False)
    tiny.write_wav(root / "a.wav", tiny.sound(5, 3.0))
    tiny.write_wav(root / "b.wav", tiny.sound(6, 2.5))
    tiny.write_wav(root / "long.wav", np.tile(tiny.sound(5, 7.0), 3))
    tiny.write_wav(root / "header.wav", np.zeros(0))
    tiny.write_wav(root / "odd.wav", tiny.sound(1), rate=100)
    (root / "other").mkdir()
    tiny.write_wav(root / "other" / "a.wav", tiny.sound(5))
    (root / "empty.wav").touch()
    (root / "text.wav").write_text("no audio at all")
    (root / "nothing").mkdir()
    (root / "a.srt").write_text("there")
    return root


def invoke(*arguments: str | Path) -> Any:
    return command_line("transcribe", *arguments)


@pytest.mark.process
def test_the_program_of_the_how_to_page_prints_the_same_as_the_command(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {'"whisper-base"': repr(str(place / "merged")), "talk.wav": (place / "a.wav").as_posix()}
    exec(program_of("howto/whisper.md", {**changed, 'fallback="cpu"': 'provider="cpu"'}), {})
    printed = capsys.readouterr().out.splitlines()[1:]
    done = invoke(place / "a.wav", "--model", place / "merged", "--provider", "cpu", "--format", "json", "--json")
    segments = json.loads(done.stdout)["files"][0]["segments"]
    assert printed == [f"{one['start']} {one['end']} {one['text']}" for one in segments]
    assert printed


@pytest.mark.process
@pytest.mark.parametrize("layout", needs.some(tiny.LAYOUTS))
def test_the_command_gives_the_transcript_of_the_library(
    layout: str, place: Path, tmp_path: Path, host: qnnbridge.Host
) -> None:
    files = [place / "a.wav", place / "b.wav"]
    done = invoke(
        *files, "--model", place / layout, "--provider", "cpu", "--json", "--format", "srt", "-o", tmp_path / "out"
    )
    assert done.returncode == 0, done.output
    found = json.loads(done.stdout)
    assert found["layout"] == layout
    assert found["placement"]["encoder"]["cpu_nodes"]
    with speech.load(place / layout, host=host, provider="cpu") as recognizer:
        for file, one in zip(files, found["files"], strict=True):
            truth = recognizer.transcribe(file)
            assert len(truth.segments) > 1
            assert [(s["start"], s["end"], s["text"], tuple(s["tokens"])) for s in one["segments"]] == [
                dataclasses.astuple(segment) for segment in truth.segments
            ]
            assert (one["language"], one["text"], one["cut"]) == (truth.language, truth.text, truth.cut)
            assert (one["duration"], one["audio_rate"]) == (truth.duration, tiny.RATE)
            target = tmp_path / "out" / f"{file.stem}.srt"
            assert one["written"] == str(target)
            assert target.read_bytes().decode() == written("srt", truth)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.srt", "b.srt"], "no parts are left"


@pytest.mark.process
def test_every_format_on_stdout_equals_that_of_the_library(
    place: Path, tmp_path: Path, host: qnnbridge.Host
) -> None:
    given = ["--model", place / "genai", "--provider", "cpu", "--language", "fr", "--task", "translate"]
    with speech.load(place / "genai", host=host, provider="cpu") as recognizer:
        truth = recognizer.transcribe(place / "a.wav", language="fr", task="translate")
        for form in ("verbose_json", "vtt"):
            done = invoke(place / "a.wav", *given, "--format", form)
            assert done.stdout == written(form, truth), done.output  # type: ignore[arg-type]
        plain = recognizer.transcribe(place / "a.wav", language="fr", task="translate", timestamps=False)
    target = tmp_path / "new" / "one.json"
    done = invoke(place / "a.wav", *given, "--format", "json", "--no-timestamps", "-o", target)
    assert (done.returncode, done.stdout) == (0, ""), done.output
    assert json.loads(target.read_text("utf-8")) == {"text": plain.text}
    done = invoke(place / "a.wav", place / "other" / "a.wav", *given)
    parts = done.stdout.split("==> ")
    assert parts[1] == f"{place / 'a.wav'} <==\n{truth.text}\n\n"
    assert parts[2].startswith(f"{place / 'other' / 'a.wav'} <==\n")


@contextlib.contextmanager
def running(place: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command as a program until it has written a part of the text."""
    given = ["--model", place / "merged", "--provider", "cpu", "--language", "en", "--no-timestamps"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "qnnbridge_tools",
            "transcribe",
            *map(str, [place / "long.wav", *given, *arguments]),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # the first read returns only this
        start_new_session=True,  # Ctrl+C reaches only this process
    )
    end = psutil.Process(process.pid)
    try:
        yield process
    finally:
        for one in [*end.children(recursive=True), end] if process.poll() is None else []:
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.communicate(timeout=TIMEOUT_S)


def first_byte(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(process.stdout.read(1)), daemon=True)  # type: ignore[union-attr]
    reader.start()
    reader.join(TIMEOUT_S)
    assert got, "nothing was written in time"
    return got[0]


def host_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    found = psutil.Process(process.pid).children(recursive=True)
    (host,) = [one for one in found if any("qnnbridge_host" in word for word in one.cmdline())]
    return host


@needs.posix
@pytest.mark.process
def test_a_host_killed_in_the_middle_changes_no_letter(place: Path) -> None:
    whole = invoke(
        *[place / "long.wav", "--model", place / "merged", "--provider", "cpu"],
        *["--language", "en", "--no-timestamps"],
    )
    assert whole.returncode == 0, whole.output
    with running(place) as process:
        said = first_byte(process)
        host_of(process).kill()
        assert process.poll() is None
        rest, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    assert (said + rest).decode() == whole.stdout
    assert b"Traceback" not in errors


@needs.posix
@pytest.mark.process
def test_ctrl_c_ends_the_command_and_its_host(place: Path, tmp_path: Path) -> None:
    with running(place) as process:
        first_byte(process)
        host = host_of(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, errors
    assert errors.decode().strip().endswith("Interrupted.")
    assert b"Traceback" not in errors
    with contextlib.suppress(psutil.NoSuchProcess):
        host.wait(timeout=30)


def test_a_partially_written_file_is_removed(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_transcription: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(speech.Transcription, "__next__", broken)
    given = ["--model", place / "merged", "--provider", "cpu", "-o", tmp_path / "x.vtt", "--format", "vtt"]
    done = invoke(place / "a.wav", *given)
    assert done.returncode == 130, done.output
    assert list(tmp_path.iterdir()) == []


# --- bad input ---

BAD = {
    "no file": (["none.wav"], [], 2, "There is no audio file"),
    "empty": (["empty.wav"], [], 2, "is empty"),
    "only a header": (["header.wav"], [], 2, "has no samples"),
    "a text": (["text.wav"], [], 2, "cannot be read as audio"),
    "a rate": (["odd.wav"], [], 2, "100 samples per second"),
    "a folder": (["nothing"], [], 2, "There is no audio file"),
    "second file": (["a.wav", "empty.wav"], [], 2, "empty.wav is empty"),
    "no tokenizer": (["a.wav"], ["--model", "bare"], 2, "has no tokenizer.json"),
    "no whisper": (["a.wav"], ["--model", "nothing"], 2, "no encoder of Whisper"),
    "no folder": (["a.wav"], ["--model", "gone"], 2, "There is no folder"),
    "other tokenizer": (["a.wav"], ["--tokenizer", "nothing"], 2, "has no tokenizer.json"),
    "no times": (["a.wav"], ["--format", "srt", "--no-timestamps"], 2, "--format srt needs times"),
    "several in one": (["a.wav", "b.wav"], ["--format", "vtt"], 2, "cannot be written as one vtt"),
    "is there": (["a.wav"], ["-o", "a.srt"], 2, "exists already"),
    "the audio": (["a.wav"], ["-o", "a.wav", "--overwrite"], 2, "is the input itself"),
    "one name": (["a.wav", "other/a.wav"], ["-o", "nothing"], 2, "transcripts of two files would be written to"),
    "a file as folder": (["a.wav", "b.wav"], ["-o", "a.srt"], 2, "is not a folder"),
    "language": (["a.wav"], ["--language", " "], 2, "--language is empty"),
    "time": (["a.wav"], ["--timeout", "0"], 2, "is not above 0"),
    "option": (["a.wav"], ["--provider-option", "x"], 2, "KEY=VALUE"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_error_with_a_fix(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    files, given, code, words = BAD[name]
    before = sorted(path.name for path in place.rglob("*"))
    model = [] if "--model" in given else ["--model", "merged"]
    form = ["--json"] if name != "several in one" else []
    done = invoke(*files, *model, *given, *form)
    assert done.returncode == code, done.output
    assert words in done.stderr
    assert done.stderr.count("Error: ") == 1
    error = json.loads(done.stdout)["error"] if form else {"fix": "fix" in done.stderr.lower()}
    assert error["fix"]
    assert "Traceback" not in done.output
    assert sorted(path.name for path in place.rglob("*")) == before


@pytest.mark.process
def test_a_language_that_the_model_lacks_is_refused(place: Path) -> None:
    done = invoke(place / "a.wav", "--model", place / "merged", "--provider", "cpu", "--language", "xx")
    assert (done.returncode, done.stdout) == (2, "")
    assert "The model does not support the language 'xx'" in done.stderr


def test_another_sample_rate_is_reported(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("soxr")
    file = tmp_path / "c.wav"
    tiny.write_wav(file, tiny.sound(6, 2.0, 22050), 22050)
    done = invoke(file, "--model", place / "merged", "--provider", "cpu")
    assert done.returncode == 0, done.output
    assert "has 22050 Hz; resampled to 16000." in done.stderr
