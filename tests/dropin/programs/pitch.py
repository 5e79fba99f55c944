"""Find the pitch of two tones with swift-f0."""

import json

import numpy as np
import swift_f0

RATE = 16000
times = np.arange(RATE) / RATE
audio = np.where(times < 0.5, np.sin(2 * np.pi * 220 * times), np.sin(2 * np.pi * 440 * times)).astype(np.float32)
found = swift_f0.SwiftF0().detect(0.5 * audio, RATE)
names = ("pitch_hz", "confidence", "timestamps")
print(json.dumps({name: np.asarray(getattr(found, name)).astype(float).round(3).tolist() for name in names}))
