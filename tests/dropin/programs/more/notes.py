"""Transcribe the notes of a recording with basic-pitch."""

import json
import wave

import numpy as np
from basic_pitch import ICASSP_2022_MODEL_PATH
from basic_pitch.inference import Model, predict

RATE = 22050
times = np.arange(RATE) / RATE
audio = np.concatenate([0.5 * np.sin(2 * np.pi * hertz * times) for hertz in (261.63, 329.63, 392.0)])
with wave.open("notes.wav", "wb") as file:
    file.setparams((1, 2, RATE, 0, "NONE", ""))
    file.writeframes((audio * 32767).astype(np.int16).tobytes())
model = Model(str(ICASSP_2022_MODEL_PATH).replace("nmp.tflite", "nmp.onnx"))
_, _, notes = predict("notes.wav", model)
print(
    json.dumps(
        sorted([round(float(begin), 3), round(float(end), 3), int(pitch)] for begin, end, pitch, *_ in notes)
    )
)
