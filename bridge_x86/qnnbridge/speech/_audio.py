"""Read audio as mono samples at 16 kHz, and compute the features of windows. Audio is read in pieces, so that a
long recording is never completely in memory."""

from __future__ import annotations

import functools
import os
import re
import struct
from typing import Any, BinaryIO, Final, Protocol

import numpy as np

from qnnbridge_os.missing import why_missing
from qnnbridge_protocol.errors import BridgeError, NoSuchFile, OptionError
from qnnbridge_protocol.installing import extra_fix
from qnnbridge_protocol.shown import with_article

# --- log-mel features: the values equal those of `WhisperFeatureExtractor` of transformers ---

Array = np.ndarray[Any, np.dtype[Any]]

RATE: Final = 16000
HOP: Final = 160
WINDOW: Final = 400
_BELOW: Final = 8.0  # minimum of the features, in decades below the largest feature


@functools.lru_cache(maxsize=4)
def mel_filters(bins: int) -> Array:
    """Return Slaney's mel filters with area 1, ``(WINDOW / 2 + 1, bins)``: linear below 1 kHz, logarithmic
    above."""
    # Slaney's scale has 3 mels per 200 Hz up to 1 kHz (mel 15), and 27 mels per factor of 6.4 above.
    step = np.log(6.4) / 27.0
    top = 15.0 + np.log(RATE / 2 / 1000.0) / step
    mels = np.linspace(0.0, top, bins + 2)
    edges = np.where(mels >= 15.0, 1000.0 * np.exp(step * (mels - 15.0)), mels * 200.0 / 3.0)
    frequencies = np.linspace(0.0, RATE / 2, WINDOW // 2 + 1)
    slopes = edges[np.newaxis, :] - frequencies[:, np.newaxis]
    widths = np.diff(edges)
    triangles = np.maximum(0.0, np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]))
    # With the height 2 / width each triangle has the area 1, so that wide filters are not louder.
    return np.asarray(triangles * (2.0 / (edges[2:] - edges[:-2]))[np.newaxis, :])


def log_mel(samples: Array, bins: int, frames: int) -> Array:
    """Return the features of one window, ``(1, bins, frames)`` float32. `samples` are mono at `RATE`, and are
    extended with silence."""
    padded = np.zeros(frames * HOP, np.float64)
    padded[: samples.size] = samples
    half = WINDOW // 2
    # Half a window on each side centres the frames on their samples, as torch.stft does.
    padded = np.pad(padded, half, mode="reflect")
    # Without its last value, numpy's symmetric Hann window equals the periodic one that Whisper was trained with.
    window = np.hanning(WINDOW + 1)[:-1]
    # The frame after the last sample is omitted, as in Whisper.
    pieces = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames]
    power = np.abs(np.fft.rfft(pieces * window, axis=1)) ** 2
    # 1e-10 keeps the logarithm of silence finite.
    logs = np.log10(np.maximum(power @ mel_filters(bins), 1e-10)).T
    logs = np.maximum(logs, logs.max() - _BELOW)
    return np.asarray((logs + 4.0) / 4.0, np.float32)[np.newaxis]


# --- audio ---

PIECE_S: Final = 10
_RATES: Final = (1000, 768000)
# Maximum number of values in one read, in all channels together, because a header may declare many channels.
_PIECE_VALUES: Final = 2**22

Audio = str | os.PathLike[str] | BinaryIO | Array


class _Source(Protocol):
    """Source of mono float32 samples. `read` returns an empty array at the end of the audio. `rate` is in Hz."""

    rate: int

    def read(self, samples: int) -> Array: ...
    def close(self) -> None: ...


class _ArraySource:
    def __init__(self, samples: Array, rate: int) -> None:
        if samples.ndim > 1 or samples.dtype.kind != "f":
            raise OptionError(
                f"The audio is an array of type {samples.dtype} and shape {samples.shape}.",
                cause="Audio must be an array of floats between -1 and 1 with one channel.",
                fix="Use samples.astype(numpy.float32) / 32768 for int16, samples.mean(axis=1) for two channels.",
            )
        self.rate, self._left = rate, samples

    def read(self, samples: int) -> Array:
        piece, self._left = self._left[:samples], self._left[samples:]
        return np.asarray(piece, np.float32)

    def close(self) -> None:
        self._left = self._left[:0]


# First bytes of the formats that are passed to libsndfile. Other files are refused, because a native decoder that
# guesses formats may crash the process. The formats are WAV in four variants (riff: Sony's Wave64), AIFF, AU, CAF,
# FLAC, OGG, and MP3, which starts with a tag, or with the eleven set bits at the start of each frame.
_BEGINS = re.compile(rb"RIFF|RIFX|RF64|riff|FORM|\.snd|caff|fLaC|OggS|ID3|\xff[\xe0-\xff]")


class _SoundFile:
    """Audio in any format that libsndfile supports: WAV, FLAC, OGG, MP3."""

    def __init__(self, module: Any, audio: Any, name: str) -> None:
        try:
            self._file = module.SoundFile(audio)
        # soundfile raises RuntimeError, TypeError and other errors for header values that it does not support.
        except (RuntimeError, ValueError, TypeError) as error:
            raise _no_audio(name, str(error)) from None
        except SystemError as error:  # raised by cffi
            raise BridgeError(
                f"soundfile cannot read from an open file in this process: {error}.",
                cause="A library with its own copy of libffi, such as QNN's libQnnHtp.so for Linux, was loaded "
                "before cffi, and cffi calls that copy.",
                fix="Import soundfile before QNN is loaded in this process, or pass the path of the file.",
            ) from None
        self._name = name
        self.rate = int(self._file.samplerate)
        # libsndfile counts frames. A frame contains one value per channel.
        self._most = max(1, _PIECE_VALUES // self._file.channels)

    def read(self, samples: int) -> Array:
        try:
            found = self._file.read(min(samples, self._most), dtype="float32", always_2d=True)
        except (RuntimeError, ValueError) as error:  # libsndfile's own error is a RuntimeError
            raise _no_audio(self._name, str(error)) from None
        return np.asarray(found.mean(axis=1, dtype=np.float32))

    def close(self) -> None:
        self._file.close()


class _WaveFile:
    """Reader of WAV files with PCM or float samples of one to four bytes. Raise `OptionError` for any other
    file."""

    def __init__(self, audio: Any, name: str) -> None:
        self._owned = not hasattr(audio, "read")
        self._stream: Any = open(audio, "rb") if self._owned else audio  # noqa: SIM115 - closed by `close`
        try:
            found = _wave_head(self._stream)
        except _NoWave as error:
            self.close()
            raise _no_audio(name, f"{error}; without soundfile only PCM in WAV is read") from None
        except BaseException:
            self.close()
            raise
        self.rate, self._channels, self._width, self._floats, size = found
        if size is not None:
            self._stream = _Limited(self._stream, size)

    def read(self, samples: int) -> Array:
        wanted = min(samples, max(1, _PIECE_VALUES // self._channels))
        # Ignore the number of samples in the header, because a header that was written into a pipe does not contain
        # it.
        data = self._stream.read(wanted * self._width * self._channels)
        # A truncated file may end in the middle of a frame.
        data = data[: len(data) // (self._width * self._channels) * self._width * self._channels]
        if self._floats:
            given = np.frombuffer(data, "<f4").reshape(-1, self._channels)
            return np.asarray(given.mean(axis=1, dtype=np.float32))
        # In WAV files, samples of one byte are unsigned, and larger samples are signed.
        if self._width == 1:
            values = (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
        else:
            # Copy the bytes of a sample to the upper bytes of an int32.
            wide = np.zeros((len(data) // self._width, 4), np.uint8)
            wide[:, 4 - self._width :] = np.frombuffer(data, np.uint8).reshape(-1, self._width)
            values = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
        return np.asarray(values.reshape(-1, self._channels).mean(axis=1, dtype=np.float32))

    def close(self) -> None:
        if self._owned:
            self._stream.close()


class _NoWave(Exception):
    """Raised for a file that is not a WAV file with PCM."""


class _Limited:
    """Reader of at most the next `size` bytes of a stream."""

    def __init__(self, stream: Any, size: int) -> None:
        self._stream, self._left = stream, size
        self.close = stream.close

    def read(self, size: int) -> bytes:
        found: bytes = self._stream.read(min(size, self._left))
        self._left -= len(found)
        return found


_PCM, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE
# Maximum size of everything before the samples of a WAV file.
_MOST_HEAD_BYTES: Final = 2**20


def _wave_head(stream: Any) -> tuple[int, int, int, bool, int | None]:
    """Read the header up to the first sample. Return rate, channels, bytes per sample, whether samples are floats,
    and the number of bytes of all samples.

    The last value is `None` if the header does not contain it, because the file was written into a pipe or the
    recording was interrupted. Then the samples extend to the end of the file.

    Raises:
        _NoWave: the file is not WAV with PCM.
    """
    head = stream.read(12)
    # Ignore the size after RIFF: it is often wrong, and the size of the samples is more useful.
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        raise _NoWave("it does not begin with a WAV header")
    form: tuple[int, int, int, bool] | None = None
    passed = 0
    while True:
        chunk = stream.read(8)
        if len(chunk) < 8:
            raise _NoWave("it has no samples" if form else "the file is truncated")
        kind, size = chunk[:4], int.from_bytes(chunk[4:], "little")
        if kind == b"data":
            if form is None:
                raise _NoWave("its samples come before the format chunk")
            return (*form, None if size in _UNKNOWN_SIZES else size)
        passed += size
        if passed > _MOST_HEAD_BYTES:
            raise _NoWave("its header is too long")
        # Chunks begin at even offsets.
        body = stream.read(size + size % 2)
        if kind == b"fmt ":
            form = _wave_form(body)


# Values that programs write to the header if they do not know the size: zero, or a maximum.
_UNKNOWN_SIZES: Final = (0, 0x7FFFFFFF, 0xFFFFFFFF)


def _wave_form(body: bytes) -> tuple[int, int, int, bool]:
    if len(body) < 16:
        raise _NoWave("its format chunk is cut off")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if kind == _EXTENSIBLE and len(body) >= 26:
        kind = int.from_bytes(body[24:26], "little")
    width = (bits + 7) // 8
    fits = 1 <= width <= 4 if kind == _PCM else kind == _FLOATS and bits == 32
    if not fits or not channels:
        raise _NoWave(f"it has the WAV format {kind}, {width} bytes per sample, and {channels} channels")
    return rate, channels, width, kind == _FLOATS


class AudioReader:
    """Audio as a stream of windows.

    Args:
        sampling_rate: sampling rate of an array in Hz; the header of a file contains the file's rate.

    Raises:
        OptionError: the audio cannot be read.
        NoSuchFile: the file does not exist.
    """

    def __init__(self, audio: Audio, sampling_rate: int | None = None) -> None:
        self._source, self._name = _source_of(audio, sampling_rate)
        self.rate = self._source.rate
        self._held = np.zeros(0, np.float32)
        self._ended = False
        self.passed = 0
        try:
            self._resampler = _resampler(self.rate, self._name) if self.rate != RATE else None
            # Read the first piece now, so that a file with a valid header but without data raises an error here and
            # not in the first window.
            if not self.window(1).size:
                raise OptionError(
                    f"{self._name} has no samples.",
                    cause="The file is empty or contains only a header.",
                    fix="Record or copy the audio again.",
                )
        except BaseException:
            self.close()
            raise

    def window(self, samples: int) -> Array:
        """Return the next samples, fewer at the end of the audio. Only `advance` removes samples."""
        while self._held.size < samples and not self._ended:
            piece = self._source.read(self.rate * PIECE_S)
            self._ended = not piece.size
            # A single NaN would spread to the whole window through the loudest bin, and to neighbouring samples
            # through the resampler.
            if not np.isfinite(piece).all():
                raise OptionError(
                    f"{self._name} has samples that are not numbers (NaN or infinite).",
                    fix="Create the audio again from its source.",
                )
            if self._resampler is not None:
                # Pass the empty piece at the end, too, because it flushes the samples inside the filter.
                piece = self._resampler.resample_chunk(piece, last=self._ended)
            self._held = np.concatenate([self._held, piece])
        return self._held[:samples]

    def advance(self, samples: int) -> None:
        """Drop samples from the front."""
        samples = min(samples, self._held.size)
        self.passed += samples
        # Copy the slice, because a view would keep the preceding samples in memory.
        self._held = self._held[samples:].copy()

    def close(self) -> None:
        self._source.close()


def _source_of(audio: Audio, sampling_rate: int | None) -> tuple[_Source, str]:
    if isinstance(audio, np.ndarray):
        rate = RATE if sampling_rate is None else sampling_rate
        if not _RATES[0] <= rate <= _RATES[1]:
            raise OptionError(
                f"sampling_rate={rate!r} is not a valid sampling rate.", fix="Pass samples per second: 16000."
            )
        return _ArraySource(audio, rate), "The array"
    if sampling_rate is not None:
        raise OptionError("sampling_rate= is for arrays.", cause="A file contains its sampling rate.")
    if isinstance(audio, (str, os.PathLike)):
        path = os.fspath(audio)
        if not os.path.isfile(path):
            raise NoSuchFile(
                f"There is no audio file {path}.", **why_missing(path, "Pass the path of a recording.")
            )
        if os.path.getsize(path) == 0:
            raise OptionError(f"{path} is empty.", fix="Record or copy the audio again.")
        given: Any = path
        name = path
    elif hasattr(audio, "read"):
        given, name = audio, "The audio"
    else:
        raise OptionError(
            f"audio= cannot be {with_article(type(audio).__name__)}.",
            fix="Pass a path, an open file, or a numpy array of floats.",
        )
    source = _plain_wave(given, name) or _other_file(given, name)
    if not _RATES[0] <= source.rate <= _RATES[1]:
        source.close()
        raise _no_audio(name, f"its header declares {source.rate} samples per second")
    return source, name


def _plain_wave(audio: Any, name: str) -> _Source | None:
    """Return a reader for PCM in WAV, the most common format, which needs no native decoder; ``None`` for any
    other file."""
    start = audio.tell() if hasattr(audio, "read") else 0
    try:
        return _WaveFile(audio, name)
    except OptionError:
        if hasattr(audio, "read"):
            audio.seek(start)
        return None


def _other_file(audio: Any, name: str) -> _Source:
    if not _BEGINS.match(_first_bytes(audio)):
        raise _no_audio(name, "it does not begin with a header of WAV, AIFF, AU, CAF, FLAC, OGG or MP3")
    try:
        import soundfile
    except ImportError:
        return _WaveFile(audio, name)  # raises an error: without soundfile only WAV is supported
    except OSError as error:  # libsndfile is missing
        raise BridgeError(f"soundfile cannot be loaded: {error}.", fix=extra_fix("speech")) from None
    return _SoundFile(soundfile, audio, name)


def _first_bytes(audio: Any) -> bytes:
    if not hasattr(audio, "read"):
        with open(audio, "rb") as file:
            return file.read(4)
    start = audio.tell()
    found = bytes(audio.read(4))
    audio.seek(start)
    return found


def _resampler(rate: int, name: str) -> Any:
    try:
        import soxr
    except ImportError:
        raise BridgeError(
            f"{name} has {rate} samples per second, Whisper needs {RATE}, and soxr, which resamples, is missing.",
            fix=f"{extra_fix('speech')}   Or resample the audio.",
        ) from None
    return soxr.ResampleStream(rate, RATE, 1, dtype="float32")


def _no_audio(name: str, why: str) -> OptionError:
    return OptionError(
        f"{name} cannot be read as audio.",
        cause=why.strip().rstrip(".") + ".",
        fix="Convert the audio to WAV or FLAC: ffmpeg -i IN -ar 16000 -ac 1 OUT.wav",
    )
