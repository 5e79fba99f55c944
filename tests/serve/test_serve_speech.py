"""`qnnbridge serve --speech` with the real `openai` package, compared with the results of the library itself."""

from __future__ import annotations

import http.client
import io
import itertools
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("python_multipart")

from serving import PRIVATE, Answer, Server, refused, serving
from tests import needs
from tests.speech import tiny_whisper as tiny

from qnnbridge import Host, speech
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_serve.errors import Refused
from qnnbridge_serve.form_reading import MOST_PARTS, MOST_TEXT_BYTES, FormReader, boundary_of
from qnnbridge_serve.openai_speech import read_speech
from qnnbridge_serve.server import require_packages
from qnnbridge_tools.transcribe import SPEECH_FORMATS, verbose_document, written

openai = needs.package("openai")

WAIT_TIMEOUT_S = 60.0
LONG_S = 90.0


def wav(samples: Any, rate: int = tiny.RATE) -> bytes:
    data = np.round(samples * 32767).clip(-32768, 32767).astype("<i2").tobytes()
    return header(len(data), rate, 2) + data


def header(size: int, rate: int = tiny.RATE, width: int = 1) -> bytes:
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * width, width, width * 8)
    return struct.pack("<4sI4s", b"RIFF", size + 36, b"WAVE") + form + struct.pack("<4sI", b"data", size)


SHORT_S = 3.0
SHORT = wav(tiny.sound(5, SHORT_S))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp("hearing") / "tiny", "merged")


@pytest.fixture(scope="module")
def server(private_temporary_folder: Path, folder: Path) -> Iterator[Server]:
    with serving(*PRIVATE, "--speech", f"tiny={folder}", "--max-request", "8M", "--drain", "1") as running:
        yield running
        assert running.end() == 0, running.errors()


@pytest.fixture(scope="module")
def library(private_temporary_folder: Path, folder: Path) -> Iterator[speech.Recognizer]:
    with Host() as host, speech.load(folder, host=host, provider="cpu") as found:
        yield found


def client_of(server: Server) -> Any:
    return openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="k", max_retries=0, timeout=WAIT_TIMEOUT_S)


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with client_of(server) as found:
        yield found


def transcribe(client: Any, audio: bytes = SHORT, **options: Any) -> Any:
    given = {"model": "tiny", "language": "en", "file": ("talk.wav", audio), **options}
    return client.audio.transcriptions.create(**given)


def form_of(fields: list[tuple[str, str | bytes]], boundary: str = "xyz") -> bytes:
    parts = []
    for name, value in fields:
        named = f'Content-Disposition: form-data; name="{name}"'
        if isinstance(value, bytes):
            named += '; filename="a.wav"\r\nContent-Type: audio/wav'
        data = value if isinstance(value, bytes) else value.encode()
        parts.append(f"--{boundary}\r\n{named}\r\n\r\n".encode() + data + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode()


def post(server: Server, body: bytes, kind: str = "multipart/form-data; boundary=xyz", **headers: str) -> Answer:
    return server.ask("POST", "/v1/audio/transcriptions", body, {"Content-Type": kind, **headers})


def figure(server: Server, name: str, **labels: str) -> float:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(server.ask("GET", "/metrics").body.decode()):
        for sample in family.samples:
            if sample.name == f"qnnbridge_speech_{name}" and labels.items() <= sample.labels.items():
                return float(sample.value)
    return 0.0


def until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + WAIT_TIMEOUT_S
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.02)


# --- answers ---


@pytest.mark.process
def test_every_format_equals_that_of_the_library(client: Any, library: speech.Recognizer) -> None:
    truth = library.transcribe(io.BytesIO(SHORT), language="en")
    assert len(truth.segments) > 1
    assert truth.text
    for form in SPEECH_FORMATS:
        found = transcribe(client, response_format=form)
        if form == "json":
            assert found.text == truth.text
        elif form == "verbose_json":
            assert found.to_dict() == json.loads(json.dumps(verbose_document(truth)))
            assert (found.duration, found.language) == (SHORT_S, "en")
            assert [(one.start, one.end) for one in found.segments] == [
                (one.start, one.end) for one in truth.segments
            ]
        else:
            assert found == written(form, truth)
    assert transcribe(client, temperature=0, timestamp_granularities=["segment"]).text == truth.text
    whole = library.transcribe(io.BytesIO(SHORT))
    found = transcribe(client, language=openai.omit, response_format="verbose_json")
    assert (found.language, found.text) == (whole.language, whole.text), "the language is found out"


@pytest.mark.process
def test_a_translation_equals_that_of_the_library(client: Any, library: speech.Recognizer) -> None:
    truth = library.transcribe(io.BytesIO(SHORT), task="translate")
    for form in ("text", "verbose_json"):
        found = client.audio.translations.create(model="tiny", file=("a.wav", SHORT), response_format=form)
        assert (found if form == "text" else found.text) == truth.text + ("\n" if form == "text" else "")
    assert found.task == "translate"
    assert truth.text != library.transcribe(io.BytesIO(SHORT), language=truth.language).text


@pytest.mark.process
def test_a_stream_has_the_text_in_pieces(client: Any, library: speech.Recognizer) -> None:
    truth = library.transcribe(io.BytesIO(SHORT), language="en")
    events = list(transcribe(client, stream=True))
    assert [one.type for one in events] == ["transcript.text.delta"] * (len(events) - 1) + ["transcript.text.done"]
    assert len(events) > 2
    assert "".join(one.delta for one in events[:-1]) == events[-1].text == truth.text


@pytest.mark.process
def test_another_sample_rate_is_resampled_and_reported(client: Any, library: speech.Recognizer) -> None:
    pytest.importorskip("soxr")
    audio = wav(tiny.sound(3, 3.0, 44100), 44100)
    truth = library.transcribe(io.BytesIO(audio), language="en")
    found = transcribe(client, audio, response_format="verbose_json")
    assert (found.text, found.audio_rate, found.duration) == (truth.text, 44100, truth.duration)


@pytest.mark.process
def test_concurrent_clients_get_the_same_texts_as_a_single_one(server: Server, library: speech.Recognizer) -> None:
    audio = [wav(tiny.sound(seed, 2.0)) for seed in range(4)]
    alone = [library.transcribe(io.BytesIO(one), language="en").text for one in audio]

    def ask(number: int) -> str:
        with client_of(server) as client:
            if number % 2:
                return "".join(getattr(one, "delta", "") for one in transcribe(client, audio[number], stream=True))
            return str(transcribe(client, audio[number]).text)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == alone


@pytest.mark.process
def test_speech_models_are_listed_and_counted_in_the_metrics(client: Any, server: Server) -> None:
    assert [one.id for one in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").kind == "speech model"
    before = figure(server, "audio_seconds_total", model="tiny")
    transcribe(client)
    assert figure(server, "audio_seconds_total", model="tiny") == pytest.approx(before + SHORT_S)
    assert figure(server, "work_seconds_total", model="tiny") > 0
    assert figure(server, "requests_total", model="tiny", outcome="ok") >= 1
    assert figure(server, "requests_running", model="tiny") == 0
    assert server.ask("GET", "/v2/health/ready").status == 200


# --- invalid requests ---


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prompt": "names"}, "prompt"),
        ({"temperature": 0.2}, "temperature"),
        ({"timestamp_granularities": ["word"], "response_format": "verbose_json"}, "timestamp_granularities"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"stream": True, "response_format": "srt"}, "stream"),
        ({"include": ["logprobs"]}, "include"),
        ({"extra_body": {"stream": "perhaps"}}, "stream"),
        ({"file": ("a.wav", b"")}, "file"),
        ({"language": "xx"}, None),
        ({"file": ("a.wav", b"RIFF no audio")}, None),
        ({"file": ("a.wav", header(0))}, None),
        ({"file": ("a.wav", wav(np.zeros(50), 50))}, None),
    ],
)
def test_the_error_for_an_invalid_field_names_the_field(
    client: Any, options: dict[str, Any], field: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        transcribe(client, **options)
    assert caught.value.param == field
    assert "Traceback" not in str(caught.value)
    assert "Unexpected" not in str(caught.value)


@pytest.mark.process
def test_an_unknown_speech_model_is_refused(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        transcribe(client, model="whisper-1")
    assert caught.value.code == "model_not_found"


@pytest.mark.process
def test_invalid_forms_are_refused(server: Server) -> None:
    whole = form_of([("model", "tiny"), ("file", SHORT)])
    packed = {"Content-Encoding": "gzip"}
    for answer, status, words in (
        (post(server, whole[:-9]), 400, "its end is missing"),
        (post(server, b""), 400, "its end is missing"),
        (post(server, b"no form at all"), 400, "cannot be read"),
        (post(server, form_of([("model", "tiny")])), 400, "file with the audio is missing"),
        (post(server, form_of([("file", SHORT)])), 400, "model must be the name"),
        (post(server, form_of([("model", "tiny"), ("file", SHORT), ("file", SHORT)])), 400, "twice"),
        (post(server, form_of([("model", "tiny"), ("model", "tiny"), ("file", SHORT)])), 400, "2 times"),
        (post(server, b"{}", "application/json"), 415, "but is application/json"),
        (post(server, whole, "multipart/form-data"), 400, "no boundary"),
        (post(server, whole, f"multipart/form-data; boundary={'x' * 5000}"), 400, "cannot be read"),
        (post(server, whole, **packed), 415, "without Content-Encoding"),
        (post(server, form_of([("model", "tiny"), ("file", bytes(8 * 1024**2))])), 413, "--max-request"),
        (post(server, form_of([("model", "tiny"), ("note", "x" * 70_000)])), 413, "65536 bytes"),
    ):
        assert answer.status == status, answer.body
        assert words in answer.document["error"]["message"]
    assert post(server, whole).status == 200
    assert figure(server, "requests_running", model="tiny") == 0


@pytest.mark.process
def test_a_client_that_disconnects_within_its_form_leaves_nothing(server: Server) -> None:
    host, port = server.address.split(":")
    whole = form_of([("model", "tiny"), ("file", bytes(4 * 1024**2))])
    process = psutil.Process(server.process.pid)
    before = process.num_fds() if hasattr(process, "num_fds") else 0
    for _ in range(5):
        with socket.create_connection((host, int(port)), WAIT_TIMEOUT_S) as one:
            head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(whole)}\r\n"
            head += "Content-Type: multipart/form-data; boundary=xyz\r\n\r\n"
            one.sendall(head.encode() + whole[: 3 * 1024**2])
    if before:
        until(lambda: process.num_fds() <= before)
    assert post(server, form_of([("model", "tiny"), ("file", SHORT)])).status == 200


# --- disconnects and crashes ---


@pytest.mark.process
def test_a_client_that_disconnects_ends_its_transcription(server: Server, client: Any) -> None:
    def cancelled() -> float:
        return figure(server, "requests_total", model="tiny", outcome="cancelled")

    audio, before, heard = (
        wav(tiny.sound(1, LONG_S)),
        cancelled(),
        figure(server, "audio_seconds_total", model="tiny"),
    )
    stream = transcribe(client, audio, stream=True)
    next(iter(stream))
    stream.close()
    until(lambda: cancelled() == before + 1)
    with pytest.raises(openai.APITimeoutError):
        transcribe(client.with_options(timeout=0.5), audio)
    until(lambda: cancelled() == before + 2)
    assert figure(server, "requests_running", model="tiny") == 0
    assert figure(server, "audio_seconds_total", model="tiny") < heard + LONG_S, "none ran to its end"


@needs.posix
@pytest.mark.process
def test_a_killed_host_only_delays_the_transcription(
    server: Server, client: Any, library: speech.Recognizer
) -> None:
    audio = wav(tiny.sound(6, 8.0))
    truth = library.transcribe(io.BytesIO(audio), language="en")
    found = ""
    for number, one in enumerate(transcribe(client, audio, stream=True)):
        found += getattr(one, "delta", "")
        if number == 0:
            os.kill(server.host().pid, signal.SIGKILL)
    assert found == truth.text


@needs.posix
@pytest.mark.process
def test_four_hours_of_audio_use_little_memory_and_the_deadline_is_kept(folder: Path) -> None:
    """The end of the server also ends a running transcription."""
    limits = ("--answer-timeout", "2", "--drain", "1")
    with serving(*PRIVATE, "--speech", f"tiny={folder}", *limits) as server:
        host, port = server.address.split(":")
        seconds = 4 * 3600
        before, after = form_of([("model", "tiny"), ("language", "en"), ("file", b"@")]).split(b"@")
        before += header(seconds * tiny.RATE)
        size = len(before) + seconds * tiny.RATE + len(after)
        process, most = psutil.Process(server.process.pid), [0]
        start, done = process.memory_info().rss, threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                most[0] = max(most[0], process.memory_info().rss)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_TIMEOUT_S)
            silence = itertools.repeat(b"\x80" * (16 * tiny.RATE), seconds // 16)
            body = itertools.chain([before], silence, [after])
            kind = {"Content-Type": "multipart/form-data; boundary=xyz", "Content-Length": str(size)}
            connection.request("POST", "/v1/audio/transcriptions", body, kind)
            response = connection.getresponse()
            status, words = response.status, response.read().decode()
            connection.close()
        finally:
            done.set()
            watching.join()
        assert status == 504
        assert "s of the audio" in words
        assert most[0] - start < 100 * 1024**2, f"{(most[0] - start) >> 20} MB for 230 MB of audio"
    with serving(*PRIVATE, "--speech", f"tiny={folder}", *limits[2:]) as server, client_of(server) as client:
        stream = iter(transcribe(client, wav(tiny.sound(1, LONG_S)), stream=True))
        next(stream)
        begun = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, stream)
            assert server.end() == 0, server.errors()
            assert time.monotonic() - begun < 20
            with pytest.raises(openai.APIError, match=r"The server is ending|Connection error"):
                rest.result()
        assert "Traceback" not in server.errors()


# --- the command line ---


@pytest.mark.process
def test_the_command_refuses_an_invalid_model_folder(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = refused(*PRIVATE, "--speech", f"one={tmp_path / 'empty'}")
    assert done.returncode == 2
    assert "no encoder" in done.stderr
    done = refused(*PRIVATE, "--speech", f"one={folder}", "--embed", f"one={folder}")
    assert done.returncode == 2
    assert '--embed and --speech both have a model called "one"' in " ".join(done.stderr.split())


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_packages(speech=True)
    monkeypatch.setitem(sys.modules, "python_multipart", None)
    require_packages()
    with pytest.raises(BridgeError, match="python_multipart") as caught:
        require_packages(speech=True)
    assert "[serve]" in caught.value.fix
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BridgeError, match="tokenizers") as caught:
        require_packages(speech=True)
    assert "[speech]" in caught.value.fix


# --- multipart forms ---


def read(body: bytes, step: int) -> tuple[dict[str, list[str]], bytes]:
    reader = FormReader(b"xyz", "file")
    try:
        for begin in range(0, len(body), step):
            reader.write(body[begin : begin + step])
        reader.end()
        return reader.texts, reader.file.read() if reader.file is not None else b""
    finally:
        reader.close()


@pytest.mark.parametrize("step", [1, 2, 7, 64, 10**6])
def test_a_form_is_read_the_same_in_pieces_of_any_size(step: int) -> None:
    odd = b"\r\n--xy\r\n--xyz-\r\n--xy" + bytes(range(256)) * 3 + b"\r\n"
    fields: list[tuple[str, str | bytes]] = [("a[]", "1"), ("file", odd), ("a[]", "ü"), ("b", ""), ("c", "\r\n--")]
    texts, file = read(form_of(fields), step)
    assert texts == {"a": ["1", "ü"], "b": [""], "c": ["\r\n--"]}
    assert file == odd


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (form_of([("a", "")] * (MOST_PARTS + 1)), "fields"),
        (form_of([("a", "x" * MOST_TEXT_BYTES)]), "bytes"),
        (form_of([("n" * MOST_TEXT_BYTES, "x")]), "bytes|header"),
        (b"--xyz\r\nContent-Type: text/plain\r\n\r\nx\r\n--xyz--\r\n", "no name"),
        (b"--xyz\r\nbad header\r\n\r\nx\r\n--xyz--\r\n", "cannot be read"),
        (form_of([("a", "x")], "other"), "cannot be read"),
        (form_of([("a", "?")]).replace(b"?", b"\xff"), "UTF-8"),
    ],
)
def test_malformed_forms_are_refused(body: bytes, words: str) -> None:
    with pytest.raises(Refused, match=words):
        read(body, 1000)


def test_the_boundary_is_read_from_the_content_type_of_a_form() -> None:
    assert boundary_of('Multipart/Form-Data; charset=utf-8; boundary="a b"') == b"a b"
    for wrong in (None, "", "text/plain; boundary=x", "multipart/form-data; boundary="):
        with pytest.raises(Refused):
            boundary_of(wrong)


def test_fields_of_other_clients_are_accepted() -> None:
    found = read_speech({"model": ["m"], "stream": ["True"], "prompt": [""], "unknown": ["x"]}, "translate")
    assert (found.stream, found.form, found.task, found.language) == (True, "json", "translate", None)
    assert (
        read_speech({"model": ["m"], "temperature": ["0.0"], "response_format": [""]}, "transcribe").form == "json"
    )
    for text in ("nan", "1e-3", "warm"):
        with pytest.raises(Refused, match="temperature"):
            read_speech({"model": ["m"], "temperature": [text]}, "transcribe")
