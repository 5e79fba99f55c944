"""The log-mel front end of Whisper in numpy; the numbers are those of transformers' `WhisperFeatureExtractor`."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

RATE: Final = 16000
HOP: Final = 160
WINDOW: Final = 400
_BELOW: Final = 8.0  # decades under the loudest bin at which a window is cut off


@functools.lru_cache(maxsize=4)
def mel_filters(bins: int) -> Array:
    """Slaney's triangles with areas of one, ``(WINDOW / 2 + 1, bins)``: below 1 kHz linear, above logarithmic."""
    step = np.log(6.4) / 27.0
    top = 15.0 + np.log(RATE / 2 / 1000.0) / step
    mels = np.linspace(0.0, top, bins + 2)
    edges = np.where(mels >= 15.0, 1000.0 * np.exp(step * (mels - 15.0)), mels * 200.0 / 3.0)
    frequencies = np.linspace(0.0, RATE / 2, WINDOW // 2 + 1)
    slopes = edges[np.newaxis, :] - frequencies[:, np.newaxis]
    widths = np.diff(edges)
    triangles = np.maximum(0.0, np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]))
    return np.asarray(triangles * (2.0 / (edges[2:] - edges[:-2]))[np.newaxis, :])


def log_mel(samples: Array, bins: int, frames: int) -> Array:
    """The features of one window, ``(1, bins, frames)`` float32. samples: mono at `RATE`, padded with silence."""
    padded = np.zeros(frames * HOP, np.float64)
    padded[: samples.size] = samples
    half = WINDOW // 2
    padded = np.pad(padded, half, mode="reflect")
    window = np.hanning(WINDOW + 1)[:-1]
    # The frame behind the last sample is not made, as Whisper drops it.
    pieces = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames]
    power = np.abs(np.fft.rfft(pieces * window, axis=1)) ** 2
    logs = np.log10(np.maximum(power @ mel_filters(bins), 1e-10)).T
    logs = np.maximum(logs, logs.max() - _BELOW)
    return np.asarray((logs + 4.0) / 4.0, np.float32)[np.newaxis]
