"""Find sleep spindles in an EEG with brainmaze-eeg-models."""

import json

import numpy as np
from brainmaze_eeg_models.spindles import SpindleDetector

RATE = 256
random = np.random.default_rng(0)
times = np.arange(60 * RATE) / RATE
burst = np.exp(-(((times % 10) - 5) ** 2) / 0.2) * np.sin(2 * np.pi * 13 * times)
signal = (
    20 * burst
    + 8 * np.cumsum(random.standard_normal(len(times))) / np.sqrt(len(times))
    + random.standard_normal(len(times))
)
found = SpindleDetector().detect(signal, RATE)
print(json.dumps(np.asarray(found.to_array(), dtype=float).round(4).tolist()))
