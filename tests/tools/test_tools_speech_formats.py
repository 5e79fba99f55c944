"""Transcripts in the formats of OpenAI's interface."""

from __future__ import annotations

import json

import pytest

from qnnbridge.speech import SpeechSegment, Transcript
from qnnbridge_tools.transcribe import SPEECH_FORMATS, subtitles, text_pieces, written

SEGMENTS = (
    SpeechSegment(0.0, 2.5, " Hello <b>there</b> &\n\n you", (1, 2)),
    SpeechSegment(2.5, 2.5, " -->", (3,)),
    SpeechSegment(2.5, 3.0, "  ", (4,)),
    SpeechSegment(3725.018, 3726.0, " süß. ", (5, 6)),
)
TRANSCRIPT = Transcript("de", "transcribe", 3727.25, SEGMENTS, 44100, 1)
NOTHING = Transcript(None, "translate", 1.0, (), 16000, 0)


def test_srt_has_numbered_segments_with_times() -> None:
    assert written("srt", TRANSCRIPT) == (
        "1\n00:00:00,000 --> 00:00:02,500\nHello <b>there</b> & you\n\n"
        "2\n00:00:02,500 --> 00:00:02,501\n->\n\n"
        "3\n01:02:05,018 --> 01:02:06,000\nsüß.\n\n"
    )


def test_vtt_has_segments_with_times() -> None:
    assert written("vtt", TRANSCRIPT) == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:02.500\nHello &lt;b&gt;there&lt;/b&gt; &amp; you\n\n"
        "00:00:02.500 --> 00:00:02.501\n--&gt;\n\n"
        "01:02:05.018 --> 01:02:06.000\nsüß.\n\n"
    )


def test_text_and_json_have_the_transcript() -> None:
    assert written("text", TRANSCRIPT) == f"{TRANSCRIPT.text}\n"
    assert json.loads(written("json", TRANSCRIPT)) == {"text": TRANSCRIPT.text}


def test_verbose_json_has_segments_and_words() -> None:
    found = json.loads(written("verbose_json", TRANSCRIPT))
    segments = found.pop("segments")
    assert found == {
        "task": "transcribe",
        "language": "de",
        "duration": 3727.25,
        "text": TRANSCRIPT.text,
        "audio_rate": 44100,
        "cut": 1,
    }
    assert [(one["id"], one["start"], one["end"], one["text"], tuple(one["tokens"])) for one in segments] == [
        (number, one.start, one.end, one.text, one.tokens) for number, one in enumerate(SEGMENTS)
    ]
    assert {one["temperature"] for one in segments} == {0.0}
    again = Transcript("en", "transcribe", 1.0, (SpeechSegment(0, 1, "again " * 100, ()),), 16000, 0)
    ratio = json.loads(written("verbose_json", again))["segments"][0]["compression_ratio"]
    assert ratio > 10 > 2 > segments[0]["compression_ratio"] > 0


@pytest.mark.parametrize("form", SPEECH_FORMATS)
def test_a_transcript_without_words_has_every_format(form: str) -> None:
    expected = {"text": "\n", "srt": "", "vtt": "WEBVTT\n\n"}
    if form in expected:
        assert written(form, NOTHING) == expected[form]  # type: ignore[arg-type]
    else:
        assert json.loads(written(form, NOTHING))["text"] == ""  # type: ignore[arg-type]


def test_pieces_are_emitted_one_by_one_and_form_the_text() -> None:
    pieces = list(text_pieces(SEGMENTS))
    assert "".join(pieces) == TRANSCRIPT.text
    assert pieces == ["Hello <b>there</b> &\n\n you", " -->", "   süß."]
    assert list(text_pieces(())) == []
    coming = iter(SEGMENTS)
    next(subtitles("srt", coming))
    assert next(coming) is SEGMENTS[1], "no segment is taken before it is needed"
