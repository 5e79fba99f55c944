"""Pictures and sound in requests for language models: parse, fetch, decode and re-encode them.

Pillow decodes a picture, and native code gets a new PNG that contains only the pixels. Sound is decoded as for
speech recognition and passed on as WAV. Parsing a request is pure; the other functions run in a worker thread.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import http.client
import io
import os
import re
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
import wave
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.installing import extra_fix
from qnnbridge_serve.errors import Refused, error_text, wrong
from qnnbridge_serve.options import MediaLimits

if TYPE_CHECKING:
    from PIL.Image import Image

# Decoders of Pillow that are enabled. Other decoders have had more security bugs, and clients do not send such
# files to models.
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
# Limits for fetching a file: its size in bytes, and the time in seconds.
MOST_FETCHED: Final = 16 * 2**20
FETCH_TIMEOUT_S: Final = 10.0
_FETCH_PIECE: Final = 2**16
# Sample rate of models for sound, in Hz.
RATE: Final = 16_000
_PIECE: Final = 10 * RATE
_DATA: Final = re.compile(r"data:[\w.+-]*/?[\w.+-]*(?:;[\w.+-]+=[\w.+-]*)*;base64,", re.ASCII)
# Maximum length of the header of a data URL. The time of the regular expression grows with the square of the
# length.
_MOST_HEAD: Final = 200
_WORDS: Final = {"image": "pictures", "audio": "sound"}

# Function that returns the seconds that are left for a request; ``None`` for no limit.
LeftS = Callable[[], "float | None"]


@dataclasses.dataclass(frozen=True, slots=True)
class MediaPart:
    """Picture or recording in a message. where: its field in the request. url: URL of a picture, or data URL of
    sound.
    """

    kind: Literal["image", "audio"]
    where: str
    url: str = dataclasses.field(repr=False)


# --- reading a request ---


def read_part(part: Mapping[str, Any], where: str) -> MediaPart | None:
    """Return the picture or recording in a part of a message; ``None`` for a part of another type."""
    kind = part.get("type")
    if kind == "image_url":
        body = part.get("image_url")
        url = body.get("url") if isinstance(body, dict) else None
        if not isinstance(url, str) or not url:
            raise wrong(f'{where}: a picture must be {{"type": "image_url", "image_url": {{"url": ...}}}}.', where)
        return MediaPart("image", where, url)
    if kind == "input_audio":
        body = part.get("input_audio")
        data = body.get("data") if isinstance(body, dict) else None
        if not isinstance(body, dict) or not isinstance(data, str) or body.get("format") not in ("wav", "mp3"):
            raise wrong(
                f'{where}: sound must be {{"type": "input_audio", "input_audio": {{"data": ..., "format": '
                '"wav"}}; '
                'the format is "wav" or "mp3".',
                where,
            )
        return MediaPart("audio", where, f"data:audio/{body['format']};base64,{data}")
    return None


def check_media(media: Sequence[MediaPart], model: str, modalities: Sequence[str], limits: MediaLimits) -> None:
    """Raise `Refused` for media that the model does not support or the server does not allow."""
    for part in media:
        if part.kind not in modalities:
            raise wrong(f"The model {model} does not accept {_WORDS[part.kind]}; leave this part out.", part.where)
    if len(media) > limits.most_parts:
        text = f"A request may have {limits.most_parts} pictures and recordings, but this request has {len(media)}."
        raise wrong(text, media[limits.most_parts].where)


# --- fetching and decoding ---


def decode_media(media: Sequence[MediaPart], limits: MediaLimits, left_s: LeftS) -> list[bytes]:
    """Return a PNG for each picture and a WAV for each recording. Raise `Refused`, or an error of `left_s`."""
    pixels, seconds, found = limits.most_pixels, limits.most_seconds, []
    for part in media:
        content = _content(part, limits, left_s)
        if part.kind == "image":
            plain, used = plain_picture(content, pixels, part.where)
            pixels -= used
        else:
            plain, length = plain_sound(content, seconds, part.where)
            seconds -= length
        found.append(plain)
    return found


def _content(part: MediaPart, limits: MediaLimits, left_s: LeftS) -> bytes:
    head = _DATA.match(part.url[:_MOST_HEAD])
    if head is not None:
        try:
            return base64.b64decode(part.url[head.end() :], validate=True)
        except (binascii.Error, ValueError):
            raise wrong(f"{part.where}: the data are not valid base64.", part.where) from None
    scheme = part.url.partition(":")[0].lower()
    if scheme in ("http", "https"):
        return _fetched(part, limits, left_s)
    if scheme == "file":
        return _file(part, limits)
    raise wrong(f"{part.where}: the url has to be a data URL with base64: data:image/png;base64,...", part.where)


def _fetched(part: MediaPart, limits: MediaLimits, left_s: LeftS) -> bytes:
    try:
        address = urllib.parse.urlsplit(part.url)
        origin = f"{address.scheme}://{address.netloc}".lower()
    except ValueError:
        origin = ""
    if origin not in limits.sources.origins:
        raise _not_allowed(part, "addresses")
    left = left_s()
    timeout_s = FETCH_TIMEOUT_S if left is None else min(left, FETCH_TIMEOUT_S)
    until = time.monotonic() + timeout_s
    content = bytearray()
    try:
        # Also limit the total time: the connection's timeout begins again at each piece, which may be a single
        # byte.
        with urllib.request.build_opener(_NoRedirect).open(part.url, timeout=timeout_s) as answer:
            while (piece := answer.read1(_FETCH_PIECE)) and len(content) <= MOST_FETCHED:
                content += piece
                if time.monotonic() > until:
                    raise TimeoutError
    # Do not include the server's address and answer in the error: on this machine's network, they may be
    # confidential.
    except (OSError, ValueError, http.client.HTTPException) as error:
        status = f" (status {error.code})" if isinstance(error, urllib.error.HTTPError) else ""
        raise wrong(f"{part.where}: the picture cannot be fetched{status}.", part.where) from None
    return _bounded(bytes(content), part)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that refuses redirects, which may lead to a forbidden server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _file(part: MediaPart, limits: MediaLimits) -> bytes:
    try:
        address = urllib.parse.urlsplit(part.url)
        # Resolve links: a link in an allowed folder must not give access to files outside of it.
        path = os.path.realpath(urllib.request.url2pathname(address.path))
        allowed = address.netloc in ("", "localhost") and any(
            os.path.commonpath((path, folder)) == str(folder) for folder in limits.sources.folders
        )
    except (ValueError, OSError):
        allowed, path = False, ""
    if not allowed:
        raise _not_allowed(part, "files")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError
        with open(path, "rb") as file:
            content = file.read(MOST_FETCHED + 1)
    except OSError:
        raise wrong(f"{part.where}: the file cannot be read.", part.where) from None
    return _bounded(content, part)


def _bounded(content: bytes, part: MediaPart) -> bytes:
    if len(content) > MOST_FETCHED:
        raise wrong(f"{part.where}: a picture may have {MOST_FETCHED:,} bytes at most.", part.where)
    return content


def _not_allowed(part: MediaPart, what: str) -> Refused:
    return wrong(f"{part.where}: only data URLs and {what} allowed by --media-from can be used.", part.where)


def plain_picture(content: bytes, most_pixels: int, where: str) -> tuple[bytes, int]:
    """Return a picture as an upright PNG in RGB, and its number of pixels.

    Raise `Refused` if it cannot be decoded.
    """
    try:
        from PIL import Image
    except ImportError:
        raise Refused(
            501,
            f"{where}: this server cannot decode pictures: the package Pillow is missing.\n"
            f"Fix: On the server: {extra_fix('pictures')}",
            field=where,
        ) from None
    try:
        # `open` reads only the header, so the size is checked before the pixels are decoded.
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > most_pixels:
                raise wrong(
                    f"{where}: the picture has {width} x {height} pixels, but the request's limit leaves "
                    f"only {most_pixels:,} pixels. Send a smaller picture: models scale pictures down in any case.",
                    where,
                )
            opened.seek(0)
            # Rotate the picture: cameras record the orientation as EXIF data, which the PNG does not contain.
            picture = _flat(_upright(opened))
    except Refused:
        raise
    except Exception:  # noqa: BLE001 - decoders raise any error for invalid files
        kinds = ", ".join(FORMATS)
        raise wrong(f"{where}: the picture cannot be decoded. It has to be one of {kinds}.", where) from None
    picture.info.clear()  # drop metadata such as a colour profile
    stream = io.BytesIO()
    picture.save(stream, "PNG", compress_level=1)
    return stream.getvalue(), width * height


def _upright(picture: Image) -> Image:
    """Return the picture rotated according to its EXIF data."""
    from PIL import ImageOps

    picture.load()
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # noqa: BLE001 - the EXIF data are damaged, but not the picture
        return picture


def _flat(picture: Image) -> Image:
    """Return the picture in RGB, with a white background where it is transparent."""
    from PIL import Image

    if picture.mode in ("I;16", "I;16B", "I"):  # 16-bit greyscale, which `convert` would clip at 255
        return picture.convert("I").point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    ground = Image.new("RGBA", picture.size, "white")
    ground.alpha_composite(picture.convert("RGBA"))
    return ground.convert("RGB")


def plain_sound(content: bytes, most_seconds: float, where: str) -> tuple[bytes, float]:
    """Return sound as a WAV of 16 kHz with one channel, and its length in seconds.

    Raise `Refused` if it is invalid.
    """
    import numpy as np

    from qnnbridge.speech._audio import AudioReader

    try:
        reader = AudioReader(io.BytesIO(content))
    except BridgeError as error:
        raise wrong(f"{where}: the sound cannot be decoded.\n{error_text(error)}", where) from None
    stream, samples = io.BytesIO(), 0
    try:
        with wave.open(stream, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            while (piece := reader.window(_PIECE)).size:
                samples += piece.size
                if samples > most_seconds * RATE:
                    text = f"{where}: the sound is longer than {most_seconds:g} s (what is left of the limit)."
                    raise wrong(text, where)
                file.writeframes((np.clip(piece, -1, 1) * 32767).astype("<i2").tobytes())
                reader.advance(piece.size)
    except BridgeError as error:
        raise wrong(f"{where}: the sound cannot be decoded.\n{error_text(error)}", where) from None
    finally:
        reader.close()
    return stream.getvalue(), samples / RATE
