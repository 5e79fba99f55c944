"""Pictures and sound in chat completions and responses, and invalid data that clients send as such."""

from __future__ import annotations

import base64
import http.server
import io
import json
import os
import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Answer, Server, refused, serving
from tests import needs
from tests.genai.tiny_decoders import write_model
from tests.genai.tiny_multimodal import chunk, picture, sound, write_multimodal

import qnnbridge
from qnnbridge import genai
from qnnbridge_serve.errors import Refused
from qnnbridge_serve.openai_media import (
    MediaPart,
    check_media,
    decode_media,
    plain_picture,
    plain_sound,
)
from qnnbridge_serve.options import MediaLimits, MediaSources, read_media_sources

pytest.importorskip("onnxruntime_genai")
Image = pytest.importorskip("PIL.Image")

PRIVATE = ("--host", "private", "--http", "127.0.0.1:0")
QWEN = "<|vision_start|><|image_pad|><|vision_end|>"


def url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def image(content: bytes | str, **further: Any) -> dict[str, Any]:
    found = content if isinstance(content, str) else url(content)
    return {"type": "image_url", "image_url": {"url": found, **further}}


def audio(content: bytes, form: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(content).decode(), "format": form}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def saved(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.open(io.BytesIO(picture(60, 40))).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def pixels(content: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(content)))


# --- decoding ---


class TestPictures:
    @pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "JPEG"])
    def test_an_image_is_passed_on_as_a_png_of_its_pixels(self, kind: str) -> None:
        content = saved(kind, **({"lossless": True} if kind == "WEBP" else {}))
        plain, count = plain_picture(content, 2400, "x")
        assert plain.startswith(b"\x89PNG")
        assert count == 2400
        assert pixels(plain).shape == (40, 60, 3)
        if kind in ("PNG", "WEBP"):
            np.testing.assert_array_equal(pixels(plain), pixels(picture(60, 40)))

    def test_only_pixels_of_an_image_are_passed_on(self) -> None:
        content = picture()
        secret = chunk(b"tEXt", b"Comment\0secret words") + chunk(b"eXIf", b"secret words")
        secret += chunk(b"iCCP", b"secret\0\0" + zlib.compress(b"secret words" * 20)) + chunk(b"gAMA", bytes(4))
        plain, _ = plain_picture(content[:33] + secret + content[33:] + b"secret words", 1200, "x")
        assert b"secret" not in plain
        kinds = {plain[at + 4 : at + 8] for at in _chunks(plain)}
        assert kinds == {b"IHDR", b"IDAT", b"IEND"}

    def test_transparent_pixels_become_white(self) -> None:
        stream = io.BytesIO()
        Image.new("RGBA", (2, 2), (255, 0, 0, 0)).save(stream, "PNG")
        assert (pixels(plain_picture(stream.getvalue(), 4, "x")[0]) == 255).all()
        stream = io.BytesIO()
        Image.new("P", (2, 2), 0).save(stream, "GIF", transparency=0)
        assert (pixels(plain_picture(stream.getvalue(), 4, "x")[0]) == 255).all()

    def test_16_bit_grey_keeps_its_shades(self) -> None:
        stream = io.BytesIO()
        Image.fromarray(np.array([[0, 0x8000, 0xFF00]], np.uint16)).save(stream, "PNG")
        assert pixels(plain_picture(stream.getvalue(), 3, "x")[0])[0, :, 0].tolist() == [0, 128, 255]

    def test_an_image_is_rotated_as_its_exif_data_require(self) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6  # rotated by a quarter turn
        assert pixels(plain_picture(saved("JPEG", exif=exif), 2400, "x")[0]).shape == (60, 40, 3)

    def test_the_first_of_several_frames_is_used(self) -> None:
        frames = [Image.new("RGB", (3, 3), colour) for colour in ("red", "blue")]
        stream = io.BytesIO()
        frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
        assert pixels(plain_picture(stream.getvalue(), 9, "x")[0])[0, 0].tolist() == [255, 0, 0]

    @pytest.mark.parametrize("kind", ["TIFF", "BMP", "ICO", "PPM", "PDF", "SGI", "TGA", "PCX", "DDS"])
    def test_other_decoders_of_pillow_are_not_used(self, kind: str) -> None:
        with pytest.raises(Refused, match="cannot be decoded") as caught:
            plain_picture(saved(kind), 10**6, "messages[0]")
        assert (caught.value.status, caught.value.field) == (400, "messages[0]")

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"hello",
            picture()[:50],
            saved("JPEG")[:300],
            saved("GIF")[:20],
            b"\x89PNG\r\n\x1a\n",
            b"GIF89a" * 9,
        ],
    )
    def test_damaged_images_are_refused(self, content: bytes) -> None:
        with pytest.raises(Refused, match="cannot be decoded"):
            plain_picture(content, 10**6, "x")

    def test_no_image_is_decoded_before_its_size_is_known(self) -> None:
        """60,000 x 60,000 pixels in a file of 10 kB."""
        rows = zlib.compress(bytes(10**7), 9)
        head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
        bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
        with pytest.raises(Refused, match=r"60000 x 60000|cannot be decoded"):
            plain_picture(bomb, 25_000_000, "x")
        with pytest.raises(Refused, match="has 40 x 30 pixels"):
            plain_picture(picture(), 1199, "x")

    def test_without_pillow_the_server_names_the_package_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(Refused, match=r"Pillow is missing[\s\S]*\[pictures\]") as caught:
            plain_picture(picture(), 1200, "x")
        assert caught.value.status == 501


def _chunks(content: bytes) -> Iterator[int]:
    at = 8
    while at < len(content):
        yield at
        at += 12 + int.from_bytes(content[at : at + 4], "big")


class TestSound:
    @pytest.mark.parametrize(("rate", "kind"), [(16000, "WAV"), (8000, "WAV"), (44100, "WAV"), (16000, "MP3")])
    def test_audio_is_passed_on_as_a_plain_wav(self, rate: int, kind: str) -> None:
        content = sound(1.0, rate=rate)
        if kind == "MP3":
            soundfile = pytest.importorskip("soundfile")
            samples, _ = soundfile.read(io.BytesIO(content))
            stream = io.BytesIO()
            soundfile.write(stream, samples, rate, format=kind)
            content = stream.getvalue()
        if rate != 16000:
            pytest.importorskip("soxr")
        plain, seconds = plain_sound(content, 2, "x")
        assert plain[:4] == b"RIFF"
        assert struct.unpack_from("<HHI", plain, 20) == (1, 1, 16000)
        assert seconds == pytest.approx(1.0, abs=0.1)

    def test_samples_equal_those_of_the_file(self) -> None:
        plain, _ = plain_sound(sound(0.5), 1, "x")
        ours, theirs = (np.frombuffer(one[44:], "<i2").astype(int) for one in (plain, sound(0.5)))
        assert abs(ours - theirs).max() <= 1

    def test_audio_that_is_too_long_is_refused(self) -> None:
        with pytest.raises(Refused, match="longer than 2 s"):
            plain_sound(sound(2.1), 2, "x")

    @pytest.mark.parametrize("content", [b"", b"x" * 100, sound()[:40], b"RIFF", b"fLaC" + bytes(50)])
    def test_damaged_audio_is_refused(self, content: bytes) -> None:
        with pytest.raises(Refused, match="cannot be decoded") as caught:
            plain_sound(content, 10, "messages[0]")
        assert (caught.value.status, caught.value.field) == (400, "messages[0]")


class TestLimits:
    def test_the_limits_of_a_request_apply_to_all_its_parts_together(self) -> None:
        one = MediaPart("image", "x", url(picture()))
        assert len(decode_media([one, one], MediaLimits(most_pixels=2400), lambda: None)) == 2
        with pytest.raises(Refused, match="only 1,199 pixels"):
            decode_media([one, one], MediaLimits(most_pixels=2399), lambda: None)
        two = MediaPart("audio", "x", url(sound(), "audio/wav"))
        assert len(decode_media([two, two], MediaLimits(most_seconds=2), lambda: None)) == 2
        with pytest.raises(Refused, match=r"longer than 0\.5 s"):
            decode_media([two, two], MediaLimits(most_seconds=1.5), lambda: None)

    def test_the_number_and_kind_of_media_are_limited(self) -> None:
        parts = [MediaPart("image", f"messages[{number}]", "") for number in range(3)]
        check_media(parts, "tiny", ("image",), MediaLimits(most_parts=3))
        with pytest.raises(Refused, match="may have 2") as caught:
            check_media(parts, "tiny", ("image",), MediaLimits(most_parts=2))
        assert caught.value.field == "messages[2]"
        with pytest.raises(Refused, match="tiny does not accept pictures"):
            check_media(parts, "tiny", ("audio",), MediaLimits())

    @pytest.mark.parametrize(
        "given",
        [
            "data:,x",
            pytest.param("data:" + "a" * 10**6, id="long"),
            "data:image/png,abc",
            "picture.png",
            "ftp://a/b",
            "",
            "javascript:1",
        ],
    )
    def test_other_url_schemes_are_refused(self, given: str) -> None:
        with pytest.raises(Refused, match="data URL"):
            decode_media([MediaPart("image", "x", given)], MediaLimits(), lambda: None)

    @pytest.mark.parametrize("given", ["!!!", "QUJ", "QQ==QQ==", "Q Q=="])
    def test_bad_base64_is_refused(self, given: str) -> None:
        with pytest.raises(Refused, match="not valid base64"):
            decode_media([MediaPart("image", "x", f"data:image/png;base64,{given}")], MediaLimits(), lambda: None)


class TestSources:
    def test_nothing_is_fetched_unless_allowed(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(picture())
        for given in (f"file://{tmp_path}/a.png", "http://127.0.0.1:1/a.png", "https://example.org/a.png"):
            with pytest.raises(Refused, match="--media-from"):
                decode_media([MediaPart("image", "x", given)], MediaLimits(), lambda: None)

    @needs.posix
    def test_only_files_in_allowed_folders_are_read(self, tmp_path: Path) -> None:
        allowed = tmp_path / "allowed"
        allowed.mkdir()
        for place in (tmp_path / "secret.png", allowed / "a b.png"):
            place.write_bytes(picture())
        (allowed / "link.png").symlink_to(tmp_path / "secret.png")
        (allowed / "folder.png").mkdir()
        os.mkfifo(allowed / "pipe.png")
        (tmp_path / "allowed-too").mkdir()
        (tmp_path / "allowed-too" / "a.png").write_bytes(picture())
        limits = MediaLimits(sources=read_media_sources([str(allowed)]))

        def read(given: str) -> list[bytes]:
            return decode_media([MediaPart("image", "x", given)], limits, lambda: None)

        assert len(read(f"file://{allowed}/a%20b.png")) == 1
        assert len(read(f"file://localhost{allowed}/a%20b.png")) == 1
        for given in (
            f"file://{tmp_path}/secret.png",
            f"file://{allowed}/../secret.png",
            f"file://{allowed}/%2e%2e/secret.png",
            f"file://{allowed}/link.png",
            f"file://elsewhere{allowed}/a%20b.png",
            f"file://{tmp_path}/allowed-too/a.png",
            "file:///proc/self/environ",
            "file:a b.png",
            "file://[",
        ):
            with pytest.raises(Refused, match="--media-from"):
                read(given)
        for given in (f"file://{allowed}/absent.png", f"file://{allowed}/folder.png", f"file://{allowed}/pipe.png"):
            with pytest.raises(Refused, match="cannot be read"):
                read(given)

    def test_only_addresses_of_allowed_servers_are_fetched(self) -> None:
        class Pictures(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/moved":
                    self.send_response(302)
                    self.send_header("location", "/a.png")
                    self.end_headers()
                    return
                if self.path == "/large":
                    self.send_response(200)
                    self.end_headers()
                    for _ in range(17):
                        self.wfile.write(bytes(2**20))
                    return
                self.send_response(200 if self.path == "/a.png" else 404)
                self.end_headers()
                self.wfile.write(picture())

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            here = f"http://127.0.0.1:{server.server_port}"
            limits = MediaLimits(sources=read_media_sources([here]))

            def read(given: str) -> list[bytes]:
                return decode_media([MediaPart("image", "x", given)], limits, lambda: None)

            assert len(read(f"{here}/a.png")) == 1
            for given, words in (
                (f"{here}/absent.png", "status 404"),
                (f"{here}/moved", "status 302"),
                (f"{here}/large", "may have"),
                (f"http://user@127.0.0.1:{server.server_port}/a.png", "--media-from"),
                (f"http://localhost:{server.server_port}/a.png", "--media-from"),
                (f"https://127.0.0.1:{server.server_port}/a.png", "--media-from"),
                (f"http://127.0.0.1:{server.server_port}@example.org/a.png", "--media-from"),
                ("http://127.0.0.1/a.png", "--media-from"),
                ("http://[", "--media-from"),
                (f"{here}/a b\r\nx: y", "cannot be fetched"),
            ):
                with pytest.raises(Refused, match=words):
                    read(given)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
        with pytest.raises(Refused, match="cannot be fetched"):
            read(f"{here}/a.png")

    def test_options_for_media_sources_are_read(self, tmp_path: Path) -> None:
        found = read_media_sources([str(tmp_path), "https://Pictures.example.org", "http://localhost:81"])
        assert found == MediaSources((tmp_path.resolve(),), ("https://pictures.example.org", "http://localhost:81"))
        for wrong in ("ftp://a", "https://a/b", "https://u@a", "https://"):
            with pytest.raises(qnnbridge.errors.OptionError, match="not the address"):
                read_media_sources([wrong])
        with pytest.raises(qnnbridge.errors.NoSuchFile, match="no folder"):
            read_media_sources([str(tmp_path / "absent")])


# --- the server ---


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("media")
    found = {"tiny": write_model(root / "tiny", "dynamic")}
    return found | {kind: write_multimodal(root / kind, kind) for kind in ("gemma3", "qwen2_5_vl", "phi4mm")}


@pytest.fixture(scope="module")
def server(private_temporary_folder: Path, folders: dict[str, Path]) -> Iterator[Server]:
    named = [option for name, folder in folders.items() for option in ("--llm", f"{name}={folder}")]
    with serving(*PRIVATE, *named, "--max-pixels", "5000", "--max-audio", "3", "--max-media", "4") as running:
        yield running
        assert running.end() == 0, running.errors()


def ask(server: Server, model: str, *parts: Any, **further: Any) -> Answer:
    messages = [{"role": "user", "content": list(parts)}]
    document = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, **further}
    return server.ask("POST", "/v1/chat/completions", document)


def words_of(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return str(answer.document["choices"][0]["message"]["content"])


def error_of(answer: Answer, status: int = 400) -> dict[str, Any]:
    assert answer.status == status, answer.body
    found = answer.document["error"]
    assert "Traceback" not in found["message"]
    return dict(found)


@pytest.mark.process
class TestServing:
    def expected(self, folder: Path, host: qnnbridge.Host, parts: list[Any]) -> tuple[str, int]:
        model = genai.Model(folder, host=host)
        messages = [{"role": "user", "content": parts}]
        with genai.generate(model, messages, max_tokens=8, temperature=0) as answer:
            return "".join(answer), answer.prompt_tokens

    @pytest.mark.parametrize("model", ["gemma3", "qwen2_5_vl", "phi4mm"])
    def test_a_question_about_an_image_is_answered(
        self, model: str, server: Server, folders: dict[str, Path], direct_host: qnnbridge.Host
    ) -> None:
        answer = ask(server, model, text("a"), image(picture(), detail="low"), text("b"))
        ours: list[Any] = [text("a"), {"type": "image", "image": picture()}, text("b")]
        words, tokens = self.expected(folders[model], direct_host, ours)
        assert words_of(answer) == words
        assert answer.document["usage"]["prompt_tokens"] == tokens
        assert words_of(ask(server, model, text("a"), image(picture(seed=90)), text("b"))) != words

    def test_several_images_in_several_messages_are_answered(self, server: Server) -> None:
        messages = [
            {"role": "user", "content": [image(picture()), text("a")]},
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": [text("b"), image(picture(seed=2)), text("c"), text("d")]},
        ]
        document = {"model": "qwen2_5_vl", "messages": messages, "max_tokens": 4}
        first = server.ask("POST", "/v1/chat/completions", document)
        assert first.status == 200, first.body
        # Further answers use the same images.
        several = server.ask("POST", "/v1/chat/completions", {**document, "n": 3, "temperature": 0})
        texts = {choice["message"]["content"] for choice in several.document["choices"]}
        assert len(several.document["choices"]) == 3
        assert len(texts) == 1

    def test_audio_with_an_image_is_answered(
        self, server: Server, folders: dict[str, Path], direct_host: qnnbridge.Host
    ) -> None:
        answer = ask(server, "phi4mm", image(picture()), audio(sound()), text("b"))
        ours: list[Any] = [
            {"type": "image", "image": picture()},
            {"type": "audio", "audio": plain_sound(sound(), 9, "")[0]},
        ]
        words, tokens = self.expected(folders["phi4mm"], direct_host, [*ours, text("b")])
        assert (words_of(answer), answer.document["usage"]["prompt_tokens"]) == (words, tokens)

    def test_a_streamed_answer_to_an_image_equals_the_complete_one(self, server: Server) -> None:
        parts = (text("a"), image(picture()))
        whole = words_of(ask(server, "gemma3", *parts))
        lines = ask(server, "gemma3", *parts, stream=True).body.decode().split("\n\n")
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "".join(one["choices"][0]["delta"].get("content", "") for one in events) == whole

    def test_the_openai_package_can_send_images(self, server: Server) -> None:
        openai = needs.package("openai")
        client = openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0, timeout=60)
        with client:
            said = client.chat.completions.create(
                model="gemma3",
                messages=[{"role": "user", "content": [text("a"), image(picture())]}],
                max_tokens=8,
                temperature=0,
            )
            parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url(picture())}]
            answered = client.responses.create(
                model="gemma3", input=[{"role": "user", "content": parts}], max_output_tokens=8, temperature=0
            )
        assert answered.output_text == said.choices[0].message.content != ""

    def test_responses_accept_audio(self, server: Server) -> None:
        parts = [audio(sound()), {"type": "input_text", "text": "a"}]
        document = {"model": "phi4mm", "input": [{"role": "user", "content": parts}], "max_output_tokens": 6}
        answer = server.ask("POST", "/v1/responses", {**document, "temperature": 0})
        assert answer.document["output"][0]["content"][0]["text"] == words_of(
            ask(server, "phi4mm", audio(sound()), text("a"), max_tokens=6)
        )

    @pytest.mark.parametrize(
        ("model", "part", "words"),
        [
            ("tiny", image(picture()), "tiny does not accept pictures"),
            ("tiny", audio(sound()), "tiny does not accept sound"),
            ("gemma3", audio(sound()), "gemma3 does not accept sound"),
            ("gemma3", image(picture(100, 60)), "100 x 60 pixels"),
            ("phi4mm", audio(sound(4.0)), "longer than 3 s"),
            ("gemma3", image(b"hello"), "cannot be decoded"),
            ("gemma3", image("https://example.org/a.png"), "--media-from"),
            ("gemma3", image("file:///etc/passwd"), "--media-from"),
            ("phi4mm", audio(b"x" * 50), "cannot be decoded"),
            ("gemma3", {"type": "image_url"}, "a picture must be"),
            ("gemma3", {"type": "image_url", "image_url": "data:,"}, "a picture must be"),
            ("phi4mm", audio(sound(), "flac"), 'format is "wav" or "mp3"'),
            ("gemma3", {"type": "video_url", "video_url": {"url": "x"}}, "each part must have the type"),
        ],
    )
    def test_the_error_for_refused_media_has_a_message_and_its_field(
        self, model: str, part: Any, words: str, server: Server
    ) -> None:
        error = error_of(ask(server, model, text("a"), part))
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
        assert error["param"].startswith("messages[0].content")

    def test_more_images_than_allowed_are_refused(self, server: Server) -> None:
        error = error_of(ask(server, "qwen2_5_vl", *[image(picture(4, 4))] * 5))
        assert "may have 4 pictures" in error["message"]
        assert error["param"] == "messages[0].content[4]"

    def test_placeholders_in_a_text_are_not_images(self, server: Server) -> None:
        error = error_of(ask(server, "qwen2_5_vl", image(picture()), text(QWEN)))
        assert "placeholders" in error["message"]
        error = error_of(ask(server, "phi4mm", image(picture()), text("<|image_" + "1" * 100_000)))
        assert "ten digits" in error["message"]
        # The host has not ended.
        assert words_of(ask(server, "gemma3", text("a"), image(picture())))

    def test_responses_refuse_unsupported_media(self, server: Server) -> None:
        for part in ({"type": "input_image", "file_id": "file-1"}, {"type": "input_file", "file_id": "x"}):
            document = {"model": "gemma3", "input": [{"role": "user", "content": [part]}]}
            error = error_of(server.ask("POST", "/v1/responses", document))
            assert "input_image" in error["message"]
            assert error["param"] == "input[0]"

    def test_a_tool_is_called_for_an_image(self, server: Server) -> None:
        tools = [
            {"type": "function", "function": {"name": "see", "parameters": {"type": "object", "properties": {}}}}
        ]
        answer = ask(server, "gemma3", text("a"), image(picture()), tools=tools)
        # The template of the tiny model has no functions; the test checks that the image was removed before.
        assert "does not support functions" in error_of(answer)["message"]

    def test_an_answer_to_an_image_continues_after_a_crash_of_the_host(self, server: Server) -> None:
        before = words_of(ask(server, "gemma3", text("a"), image(picture()), max_tokens=30))
        server.host().kill()
        assert words_of(ask(server, "gemma3", text("a"), image(picture()), max_tokens=30)) == before

    def test_hostile_images_do_not_crash_the_server(self, server: Server) -> None:
        rng = np.random.default_rng(5)
        seeds = [saved("PNG"), saved("JPEG"), saved("GIF"), saved("WEBP")]
        for number in range(60):
            data = bytearray(seeds[number % 4])
            for _ in range(int(rng.integers(1, 6))):
                data[int(rng.integers(len(data)))] = int(rng.integers(256))
            answer = ask(server, "gemma3", text("a"), image(bytes(data)), max_tokens=1)
            assert answer.status in (200, 400), answer.body
        assert words_of(ask(server, "gemma3", text("a"), image(picture())))


@pytest.mark.process
def test_an_invalid_media_source_is_refused_at_the_start(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", "dynamic")
    result = refused(*PRIVATE, "--llm", f"tiny={folder}", "--media-from", "ftp://example.org")
    assert result.returncode != 0
    assert "is not the address of a server" in result.stderr
