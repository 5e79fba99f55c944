"""Whisper in four layouts returns the tokens of transformers' greedy search, and the values of plain numpy."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import needs
from tests.conformance.real_models import SOC_MODEL
from tests.speech import tiny_whisper as tiny

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")

import qnnbridge
from qnnbridge import speech
from qnnbridge.speech._audio import PIECE_S, AudioReader, log_mel
from qnnbridge.speech._decoders import TokenSpan as Span
from qnnbridge.speech._decoders import spans_of, unlimited
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    DeadlineExceeded,
    GenerationFolderInvalid,
    NoSuchFile,
    OptionError,
)

REFERENCE = json.loads(Path(__file__).with_name("reference.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("whisper")
    return {layout: tiny.write_folder(root / layout, layout) for layout in tiny.LAYOUTS}


def tokens_of(recognizer: speech.Recognizer, case: dict[str, Any]) -> tuple[list[int], str | None]:
    """Return the tokens of the first window."""
    with recognizer.stream(
        tiny.sound(case["seed"]), language=case["language"], task=case["task"], timestamps=case["timestamps"]
    ) as found:
        samples = found._audio.window(tiny.WINDOW_S * tiny.RATE)
        encoded = recognizer._begin(samples)
        language = case["language"] or recognizer._detect(encoded)
        prompt = recognizer._prompt(language, case["task"], case["timestamps"])
        tokens, _ = recognizer._tokens(recognizer._sessions.begin(encoded, unlimited), prompt, case["timestamps"])
    return tokens, language


# --- numbers ---


@pytest.mark.parametrize("row", REFERENCE["features"], ids=lambda row: str(row["bins"]))
def test_the_features_equal_those_of_transformers(row: dict[str, Any]) -> None:
    found = log_mel(tiny.sound(7, 1.3), row["bins"], tiny.FRAMES)
    assert found.shape == (1, row["bins"], tiny.FRAMES)
    np.testing.assert_allclose(found.reshape(-1)[:: row["step"]], row["values"], atol=1e-5)


@pytest.mark.process
@pytest.mark.parametrize("layout", needs.some(tiny.LAYOUTS))
def test_every_layout_gives_the_tokens_of_transformers(
    layout: str, folders: dict[str, Path], host: qnnbridge.Host
) -> None:
    with speech.load(folders[layout], host=host, provider="cpu") as recognizer:
        assert recognizer.layout == layout
        assert recognizer.languages == tuple(sorted(tiny.LANGUAGES))
        # In the short form two layouts use one half of the cases, and the others use the other half.
        stride = needs.length(2, 1)
        for case in REFERENCE["cases"][tiny.LAYOUTS.index(layout) % stride :: stride]:
            assert tokens_of(recognizer, case) == (case["tokens"], case["found"]), case


def test_plain_numpy_gives_the_tokens_of_transformers() -> None:
    """A second reference: a search without ONNX and without a cache returns the same."""
    weights = tiny.weights()
    case = next(one for one in REFERENCE["cases"] if one["seed"] == 3 and not one["timestamps"])
    encoded = tiny.encode(weights, log_mel(tiny.sound(3), tiny.BINS, tiny.FRAMES))
    ids = [tiny.START, tiny.IDS["<|fr|>"], tiny.IDS["<|translate|>"], tiny.IDS["<|notimestamps|>"]]
    for number in range(20):
        scores = tiny.scores_after(weights, encoded, ids)
        scores[list(tiny.SUPPRESSED)] = -np.inf
        if number == 0:
            scores[list(tiny.SUPPRESSED_FIRST)] = -np.inf
        ids.append(int(scores.argmax()))
    assert ids[4:] == case["tokens"][:20]


@pytest.mark.process
@pytest.mark.simulator
def test_encoder_and_fixed_decoder_run_on_qnn(folders: dict[str, Path], host: qnnbridge.Host) -> None:
    pytest.importorskip("onnxruntime_qnn")
    with speech.load(folders["fixed"], host=host, provider_options={"soc_model": SOC_MODEL}) as recognizer:
        for part in recognizer.placement.values():
            assert part.qnn_nodes
            assert not part.cpu_nodes
        encoder = recognizer._sessions.encoder
        features = log_mel(tiny.sound(1), tiny.BINS, tiny.FRAMES)
        assert encoder.verify({"input_features": features}).state == "agrees"
        out = recognizer.transcribe(tiny.sound(1), language="en", timestamps=False)
        assert out.segments[0].tokens


# --- windows and crashes ---


def test_a_model_with_very_short_segments_reaches_the_end_and_loses_no_words() -> None:
    first = 100
    tokens = [first, 1, first + 1, first + 1, 2]  # one segment of 0.02 s, then a word without an end
    windows: list[int] = []
    owner: Any = SimpleNamespace(
        _sessions=SimpleNamespace(frames=200, begin=lambda *_: None),
        _begin=lambda samples, _: windows.append(samples.size),
        _prompt=lambda *_: [],
        _tokens=lambda *_: (list(tokens), False),
        _vocabulary=SimpleNamespace(no_timestamps=first - 1),
        _text=lambda found: "".join("ab"[token - 1] for token in found if token < first),
    )
    reader = AudioReader(tiny.sound(1, 10.0))
    found = list(speech.Transcription(owner, reader, "en", "transcribe", True))
    assert len(windows) <= 12, "500 without the guard"
    assert "".join(one.text for one in found).count("ab") >= 5, "the rest of a window stays where it ends"
    assert all(a.start <= b.start for a, b in itertools.pairwise(found))
    del tokens[-1]  # no word after the last time
    found = list(speech.Transcription(owner, AudioReader(tiny.sound(1, 4.0)), "en", "transcribe", True))
    assert {one.text for one in found} == {"a"}, "no segment without words"


def test_segments_follow_the_timestamps() -> None:
    def at(*steps: int | str) -> list[int]:
        return [100 + step if isinstance(step, int) else ord(step) for step in steps]

    one, two = tuple(at(0, "a", 5)), tuple(at(5, "b", 9))
    assert spans_of([*one, *two, *at(9, "c")], 100) == ([Span(0, 5, one), Span(5, 9, two)], 9)
    assert spans_of([*one, *two], 100) == ([Span(0, 5, one), Span(5, 9, two)], None)
    assert spans_of(list(one), 100) == ([Span(0, 5, one)], None)
    assert spans_of(at(0, "a"), 100) == ([Span(0, None, tuple(at(0, "a")))], None)


@pytest.mark.process
def test_a_host_that_crashes_in_the_middle_only_delays_the_transcript(folders: dict[str, Path]) -> None:
    audio = tiny.sound(5, 7.0)
    for layout in ("merged", "fixed"):
        with qnnbridge.Host() as own, speech.load(folders[layout], host=own, provider="cpu") as recognizer:
            truth = recognizer.transcribe(audio, language="en", timestamps=False)
            assert len(truth.segments) == 4
            assert truth.duration == 7.0
            with recognizer.stream(audio, language="en", timestamps=False) as found:
                segments = [next(found)]
                os.kill(own.info.pid, signal.SIGKILL)
                segments += found
            assert tuple(segments) == truth.segments
            assert recognizer._sessions.encoder.generation == 2


@pytest.mark.process
def test_a_crash_of_the_host_between_two_tokens_changes_no_token(folders: dict[str, Path]) -> None:
    case = next(one for one in REFERENCE["cases"] if not one["timestamps"])
    with qnnbridge.Host() as own, speech.load(folders["fixed"], host=own, provider="cpu") as recognizer:
        encoded = recognizer._begin(tiny.sound(case["seed"]))
        decoder = recognizer._sessions.begin(encoded, unlimited)
        step, calls = decoder.step, []

        def killing(tokens: Any) -> Any:
            calls.append(tokens)
            if len(calls) == 9:
                os.kill(own.info.pid, signal.SIGKILL)
            return step(tokens)

        decoder.step = killing  # type: ignore[method-assign]
        prompt = recognizer._prompt(case["language"], case["task"], False)
        assert recognizer._tokens(decoder, prompt, False)[0] == case["tokens"]
        assert recognizer._sessions.decoders[0].generation == 2


# --- audio ---


APART = """
import io, sys, wave
import numpy as np
import soundfile
from qnnbridge.speech._audio import AudioReader

folder = sys.argv[1]
tone = np.sin(2 * np.pi * 440 * np.arange(44100) / 44100).astype(np.float32) * 0.5
for name in ("a.flac", "float.wav"):
    soundfile.write(f"{folder}/{name}", tone, 44100, subtype="FLOAT" if name == "float.wav" else None)
    reader = AudioReader(f"{folder}/{name}")
    assert reader.rate == 44100
    found = reader.window(20000)
    reader.close()
    assert abs(found.size - 16000) <= 2
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(found.size) / 16000)
    np.testing.assert_allclose(found[500:-500], expected[500:-500], atol=2e-3)
with open(f"{folder}/a.flac", "rb") as file:
    again = AudioReader(io.BytesIO(file.read()))
    np.testing.assert_allclose(again.window(20000), found, atol=1e-4)
    again.close()
print("done")
"""


@pytest.mark.process
def test_audio_with_other_channels_and_sample_rates_is_read_and_resampled(tmp_path: Path) -> None:
    """Run in a separate process, like an application that only does this: decoders are native libraries."""
    pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    done = subprocess.run([sys.executable, "-c", APART, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("with_soundfile", [True, False])
def test_a_wave_file_is_read_by_the_standard_library(
    with_soundfile: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = tiny.sound(1)
    path = tiny.write_wav(tmp_path / "a.wav", samples)
    if not with_soundfile:
        monkeypatch.setitem(sys.modules, "soundfile", None)
    reader = AudioReader(io.BytesIO(path.read_bytes()))
    np.testing.assert_allclose(reader.window(40000), samples, atol=1e-4)
    reader.close()


def test_hours_of_audio_are_read_in_pieces(tmp_path: Path) -> None:
    """The source generates silence for four hours; the memory never exceeds a window and a piece."""
    reader = AudioReader(np.zeros(1, np.float32) + 0.5)
    left = 4 * 3600 * 16000

    class Hours:
        rate = 16000

        def read(self, samples: int) -> Any:
            nonlocal left
            left -= (given := min(samples, left))
            return np.zeros(given, np.float32)

        def close(self) -> None: ...

    reader._source, reader._ended = Hours(), False
    most = 0
    while (window := reader.window(30 * 16000)).size:
        most = max(most, reader._held.size)
        reader.advance(window.size)
    assert most <= (30 + PIECE_S) * 16000 + 1
    assert reader.passed == 4 * 3600 * 16000 + 1


@pytest.mark.parametrize("data", [b"RIFF", b"no audio at all" * 100, b"RIFF\x24\x00\x00\x00WAVEfmt "])
def test_data_that_is_not_audio_is_refused(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.wav").write_bytes(data)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(OptionError, match="cannot be read as audio"):
        AudioReader(tmp_path / "x.wav")


def test_empty_and_odd_audio_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.wav").touch()
    with pytest.raises(OptionError, match="is empty"):
        AudioReader(tmp_path / "empty.wav")
    with pytest.raises(OptionError, match="no samples"):
        AudioReader(tiny.write_wav(tmp_path / "header.wav", np.zeros(0)))
    with pytest.raises(NoSuchFile):
        AudioReader(tmp_path / "none.wav")
    with pytest.raises(OptionError, match="NaN"):
        AudioReader(np.full(10, np.nan, np.float32))
    with pytest.raises(OptionError, match="int16"):
        AudioReader(np.zeros(10, np.int16))
    with pytest.raises(OptionError, match="not a valid sampling rate"):
        AudioReader(np.zeros(10, np.float32), 0)


# --- folders ---


def test_an_incomplete_folder_is_refused(tmp_path: Path) -> None:
    bare = tiny.write_folder(tmp_path / "bare", "fixed", tokenizer=False)
    with pytest.raises(GenerationFolderInvalid, match=r"no tokenizer\.json"):
        speech.load(bare)
    (tmp_path / "empty").mkdir()
    with pytest.raises(GenerationFolderInvalid, match="no encoder"):
        speech.load(tmp_path / "empty")
    with pytest.raises(NoSuchFile):
        speech.load(tmp_path / "gone")
    (bare / "genai_config.json").write_text('{"model": {"type": "phi3"}}')
    with pytest.raises(BridgeError, match="not Whisper"):
        speech.load(bare)


@pytest.mark.process
def test_the_tokenizer_may_be_in_another_folder_and_languages_and_tasks_are_checked(
    tmp_path: Path, folders: dict[str, Path], host: qnnbridge.Host
) -> None:
    bare = tiny.write_folder(tmp_path / "bare", "fixed", tokenizer=False)
    with speech.load(bare, tokenizer=folders["genai"], host=host, provider="cpu") as recognizer:
        out = recognizer.transcribe(tiny.sound(1), language="EN", timestamps=False)
        assert out.language == "en"
        with pytest.raises(OptionError, match="does not support the language"):
            recognizer.stream(tiny.sound(1), language="xx")
        with pytest.raises(OptionError, match="does not support the task"):
            recognizer.stream(tiny.sound(1), task="sing")  # type: ignore[arg-type]


# --- deadlines and invalid audio ---


@pytest.mark.process
def test_a_deadline_and_a_cancellation_end_a_transcription_before_the_next_token(
    folders: dict[str, Path], host: qnnbridge.Host
) -> None:
    with speech.load(folders["merged"], host=host, provider="cpu") as recognizer:
        for audio, timestamps in ((tiny.sound(1, 60.0), False), (tiny.sound(2, 3.0), True)):
            with pytest.raises(DeadlineExceeded, match=r"time limit of the transcription expired"):
                recognizer.transcribe(audio, timestamps=timestamps, timeout=1e-6)
        with recognizer.stream(tiny.sound(1, 60.0), timestamps=False) as found:
            next(found)
            found.cancel()
            with pytest.raises(Cancelled):
                next(found)
        with pytest.raises(OptionError, match="not a number of seconds"):
            recognizer.stream(tiny.sound(1), timeout=-1)
        assert recognizer.transcribe(tiny.sound(1), timeout=60).text


def wave_of(channels: int, width: int, data: bytes, rate: int = 16000) -> bytes:
    form = struct.pack("<HHIIHH", 1, channels, rate, 0, 0, width * 8)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_a_header_with_many_channels_allocates_no_memory_and_odd_widths_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    data = bytes(48 * 1024**2)
    tracemalloc.start()
    try:
        reader = AudioReader(io.BytesIO(wave_of(65535, 1, data)))
        assert reader.window(16000).size == len(data) // 65535
        reader.close()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * len(data) + 80 * 1024**2, "500 MB without the limit"
    with pytest.raises(OptionError, match="8 bytes"):
        AudioReader(io.BytesIO(wave_of(1, 8, bytes(800))))


@pytest.mark.parametrize("start", [b"This is a text.\n" * 9, b"\0" * 100, b"\xff\x00" * 50, b"PK\3\4" * 20])
def test_data_that_does_not_begin_like_audio_reaches_no_native_decoder(
    start: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)  # an import would raise an error about the missing package
    file = tmp_path / "a.wav"
    file.write_bytes(start)
    for audio in (file, io.BytesIO(start)):
        with pytest.raises(OptionError, match="cannot be read as audio") as caught:
            AudioReader(audio)
        assert "does not begin with a header" in str(caught.value)


def test_objects_of_speech_can_be_shown(folders: dict[str, Path], host: qnnbridge.Host) -> None:
    with speech.load(folders["merged"], host=host, provider="cpu") as recognizer:
        placement = recognizer.placement["encoder"]
        shown = repr(recognizer)
        assert shown.startswith(
            f"<Recognizer: layout merged, {len(recognizer.languages)} languages, encoder: 0 of "
        )
        assert f"encoder: {repr(placement).removeprefix('<Placement: ').removesuffix('>')}" in shown
        with recognizer.stream(tiny.sound(3), language="en") as found:
            assert repr(found) == "<Transcription: 0.0 s done, transcribe en>"
            transcript = found.transcript(found)
            assert repr(found).startswith(f"<Transcription: {transcript.duration:.1f} s done, transcribe en")
        assert repr(transcript).startswith(f"<Transcript: {transcript.duration:.1f} s in ")
        assert not re.search(r"\d+, \d+, \d+", repr(transcript)), "no tokens"
    assert repr(recognizer) == shown.replace("<Recognizer: ", "<Recognizer: closed, ")
    spoken = speech.SpeechSegment(1, 2.5, " <b>Good</b> morning", (1, 2, 3))
    assert repr(spoken) == '<SpeechSegment: 1.00 to 2.50 s, "<b>Good</b> morning">'
    whole = speech.Transcript("en", "transcribe", 2.5, 40 * (spoken,), 16000, 1)
    assert repr(whole).startswith(
        '<Transcript: 2.5 s in 40 segments, transcribe en, 1 window cut off, "<b>Good</b> '
    )
    assert repr(whole).endswith('...">')
    assert len(repr(whole)) < 160
    assert "&#9888; <b>1 window cut off</b>" in whole._repr_html_()
    assert whole._repr_html_().count("1.00 to 2.50 s:  &lt;b&gt;Good&lt;/b&gt; morning") == 40
    assert repr(object.__new__(speech.Transcription)) == "<Transcription: facts cannot be read (AttributeError)>"
