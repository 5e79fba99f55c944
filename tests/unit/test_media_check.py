"""Images and audio are checked before onnxruntime-genai reads them."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from tests.genai.tiny_multimodal import chunk, picture, sound

from qnnbridge_host.genai.media_check import MOST_SCANS, check_picture, check_sound
from qnnbridge_protocol.errors import PromptRefused

Image = pytest.importorskip("PIL.Image")


def jpeg(
    mode: str = "RGB", *, progressive: bool = False, subsampling: int = 2, size: tuple[int, int] = (40, 30)
) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(
        stream, "JPEG", progressive=progressive, subsampling=subsampling, quality=90
    )
    return stream.getvalue()


def part(data: bytes, marker: int) -> int:
    """Return the position of the contents of the first segment of this kind."""
    return data.index(bytes((0xFF, marker))) + 4


def changed(data: bytes, at: int, *values: int) -> bytes:
    return data[:at] + bytes(values) + data[at + len(values) :]


BASE, PROGRESSIVE = jpeg(), jpeg(progressive=True)
FRAME, TABLE, QUANTISATION, SCAN = (part(BASE, marker) for marker in (0xC0, 0xC4, 0xDB, 0xDA))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_a_complete_jpeg_is_accepted(mode: str, progressive: bool, subsampling: int) -> None:
    check_picture(jpeg(mode, progressive=progressive, subsampling=subsampling), 1)


def test_unknown_segments_of_a_jpeg_are_skipped() -> None:
    comment = b"\xff\xfe\0\x06text"
    thumbnail = b"\xff\xe1" + (len(BASE) + 2).to_bytes(2, "big") + BASE  # a whole JPEG in it, as cameras write
    check_picture(BASE[:2] + comment + thumbnail + b"\xff\xff" + BASE[2:] + b"rubbish", 1)
    check_picture(BASE[:2] + b"\xff\xdd\0\x04\0\x05" + BASE[2:], 1)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_png_is_accepted(mode: str) -> None:
    stream = io.BytesIO()
    made = Image.fromarray(np.zeros((9, 7), np.uint16)) if mode == "I;16" else Image.new(mode, (7, 9))
    made.save(stream, "PNG")
    check_picture(stream.getvalue(), 1)


DAMAGED = {
    "cut off in a part": BASE[: TABLE + 5],
    "cut off in front of a size": BASE[:TABLE][:-3],
    "cut off in the picture": BASE[: len(BASE) - 40],
    "without its end": BASE[:-2],
    "an end at once": BASE[:2] + b"\xff\xd9",
    "only a beginning": BASE[:2],
    "a second picture": BASE[: FRAME - 4] + BASE[FRAME - 4 : FRAME + 15] + BASE[FRAME - 4 :],
    "another beginning": BASE[:2] + b"\xff\xd8" + BASE[2:],
    "bytes between the parts": BASE[:2] + b"x" + BASE[2:],
    "a size of one": BASE[:2] + b"\xff\xe1\0\x01" + BASE[2:],
    "a part of a wrong kind": BASE[:2] + b"\xff\x02\0\x02" + BASE[2:],
    "arithmetic coding": BASE[:2] + b"\xff\xcc\0\x04\0\0" + BASE[2:],
    "a lossless picture": changed(BASE, FRAME - 3, 0xC3),
    "a depth of 12 bits": changed(BASE, FRAME, 12),
    "no height": changed(BASE, FRAME + 1, 0, 0),
    "no width": changed(BASE, FRAME + 3, 0, 0),
    "two colours": changed(BASE, FRAME + 5, 2),
    "sampling by three, for which libjpeg waits for ever": changed(BASE, FRAME + 7, 0x23),
    "no sampling": changed(BASE, FRAME + 7, 0x02),
    "one colour twice": changed(BASE, FRAME + 9, BASE[FRAME + 6]),
    "too many blocks": changed(changed(BASE, FRAME + 7, 0x44), FRAME + 10, 0x44),
    "a Huffman table of a third class": changed(BASE, TABLE, 0x20),
    "a fifth Huffman table": changed(BASE, TABLE, 0x04),
    "a Huffman table that is not a code": changed(BASE, TABLE + 1, *[255] * 16),
    "two codes of one bit": changed(BASE, TABLE + 1, 2, 0),
    "a symbol beyond 15": changed(BASE, TABLE + 17, 200),
    "a fifth table of quantisation": changed(BASE, QUANTISATION, 4),
    "a wide table in a short part": changed(BASE, QUANTISATION, 0x10),
    "a table of quantisation that is not there": changed(BASE, FRAME + 8, 3),
    "a Huffman table that is not there": changed(BASE, SCAN + 2, 0x33),
    "a scan of an unknown colour": changed(BASE, SCAN + 1, 99),
    "a scan of no colour": changed(BASE, SCAN, 0),
    "a colour twice in a scan": changed(BASE, SCAN + 3, BASE[SCAN + 1]),
    "a scan in front of the picture": BASE[:2] + BASE[SCAN - 4 : SCAN + 10] + b"\xff" + BASE[3:],
    "coefficients backwards": changed(
        PROGRESSIVE, part(PROGRESSIVE, 0xDA) + PROGRESSIVE[part(PROGRESSIVE, 0xDA)] * 2 + 1, 5, 2
    ),
    "a refinement by two bits": changed(
        PROGRESSIVE, part(PROGRESSIVE, 0xDA) + PROGRESSIVE[part(PROGRESSIVE, 0xDA)] * 2 + 3, 0x31
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_jpeg_is_refused(what: str) -> None:
    with pytest.raises(PromptRefused, match=r"Picture 3 cannot be decoded.*|has no pixels") as caught:
        check_picture(DAMAGED[what], 3)
    assert caught.value.details == {"picture": 3}


def test_a_jpeg_with_many_scans_is_refused() -> None:
    at = part(BASE, 0xDA) - 4
    scan = BASE[at:-2]
    check_picture(BASE[:at] + scan * MOST_SCANS + b"\xff\xd9", 1)
    with pytest.raises(PromptRefused, match="cannot be decoded"):
        check_picture(BASE[:at] + scan * (MOST_SCANS + 1) + b"\xff\xd9", 1)


def test_no_jpeg_makes_the_check_slow() -> None:
    """Each of these files would take minutes or hours if all its segments were read, or read repeatedly."""
    many_parts = BASE[:2] + b"\xff\xfe\0\2" * 2**22
    tables = (b"\0" + bytes(16)) * 3000
    many_tables = BASE[:2] + (b"\xff\xc4" + (len(tables) + 2).to_bytes(2, "big") + tables) * 300
    for data in (many_parts, many_tables, BASE[:-2] + b"\xff" * 2**24, BASE[:2] + b"\xff" * 2**22):
        with pytest.raises(PromptRefused, match="cannot be decoded"):
            check_picture(data, 1)
    check_picture(BASE[:2] + b"\xff\xfe\0\2" * 1000 + BASE[2:], 1)
    check_picture(BASE[:-2] + b"\xff" * 2**20 + b"\xff\xd9", 1)


def test_random_damage_raises_only_the_typed_error() -> None:
    rng = random.Random(7)
    for _ in range(3000):
        data = bytearray(rng.choice((BASE, PROGRESSIVE, picture(), sound(0.01))))
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(2, len(data))] = rng.randrange(256)
        cut = bytes(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)
        for check in (check_picture, check_sound):
            try:
                check(cut, 1)
            except PromptRefused:
                continue


@pytest.mark.parametrize(
    ("width", "height"), [(16_385, 1), (1, 16_385), (10_001, 10_000), (0, 5), (5, 0), (2**31, 2**31)]
)
def test_the_size_of_an_image_is_limited(width: int, height: int) -> None:
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    data = picture()[:8] + chunk(b"IHDR", head) + picture()[33:]
    with pytest.raises(PromptRefused, match=f"{width} x {height} pixels"):
        check_picture(data, 1)
    if 0 < width < 2**16 and 0 < height < 2**16:
        sized = changed(BASE, FRAME + 1, *height.to_bytes(2, "big"), *width.to_bytes(2, "big"))
        with pytest.raises(PromptRefused, match=f"{width} x {height} pixels"):
            check_picture(sized, 1)


def test_the_largest_allowed_images_are_accepted() -> None:
    for width, height in ((16_384, 6_103), (10_000, 10_000)):
        head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
        check_picture(picture()[:8] + chunk(b"IHDR", head) + picture()[33:], 1)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"BM", b"RIFF\0\0\0\0WEBP", b"II*\0", b"<svg>", b"\x89PNG"])
def test_other_formats_are_refused(data: bytes) -> None:
    with pytest.raises(PromptRefused, match="neither PNG nor JPEG"):
        check_picture(data, 1)


def test_a_png_without_a_header_is_refused() -> None:
    for data in (picture()[:20], picture()[:8] + picture()[33:]):
        with pytest.raises(PromptRefused, match="cannot be decoded"):
            check_picture(data, 1)


class TestSound:
    def test_known_audio_formats_are_accepted(self) -> None:
        soundfile = pytest.importorskip("soundfile")
        samples, rate = soundfile.read(io.BytesIO(sound(0.2)))
        for kind in ("WAV", "FLAC", "MP3"):
            stream = io.BytesIO()
            soundfile.write(stream, samples, rate, format=kind)
            check_sound(stream.getvalue(), 1)
        check_sound(b"ID3" + bytes(100), 1)

    @pytest.mark.parametrize("data", [b"", b"\xff", b"RIFF\0\0\0\0AVI ", b"OggS" + bytes(50), bytes(100), b"fLaC"])
    def test_unknown_audio_formats_are_refused(self, data: bytes) -> None:
        with pytest.raises(PromptRefused, match="Sound 2 cannot be decoded"):
            check_sound(data, 2)

    def test_audio_that_would_use_all_memory_is_refused(self) -> None:
        """A day of silence takes 20 kB in a FLAC."""

        def flac(samples: int, channels: int) -> bytes:
            head = (16_000 << 44 | (channels - 1) << 41 | 15 << 36 | samples).to_bytes(8, "big")
            return b"fLaC\0\0\0\x22" + bytes(10) + head + bytes(30)

        check_sound(flac(2**28, 1), 1)
        for data in (flac(2**28 + 1, 1), flac(2**27 + 1, 2), flac(2**36 - 1, 8), flac(0, 1)):
            with pytest.raises(PromptRefused):
                check_sound(data, 1)
        with pytest.raises(PromptRefused, match="cannot be decoded"):
            check_sound(b"ID3" + bytes(12 * 2**20), 1)
