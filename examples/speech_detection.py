"""Prints where a recording contains speech, with Silero's detector on the NPU.

The recording is a WAV file of 16 kHz, one channel, 16 bits:

    python speech_detection.py silero_vad_openvino_16k.onnx talk.wav
"""

from __future__ import annotations

import sys
import wave
from collections.abc import Iterator

import numpy as np

import qnnbridge

RATE = 16000
# Each call takes the last samples of the call before it, and 32 ms of new ones.
CONTEXT, STEP = 64, 512
SPEECH_FROM = 0.5


def read_samples(path: str) -> np.ndarray:
    with wave.open(path, "rb") as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            sys.exit(f"{path} is not a WAV file of 16 kHz, one channel, 16 bits.")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def probabilities(session: qnnbridge.InferenceSession, samples: np.ndarray) -> Iterator[float]:
    """Yield the probability of speech for each 32 ms."""
    state = np.zeros((2, 1, 128), np.float32)
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), samples])
    for start in range(0, len(samples) - STEP + 1, STEP):
        frame = padded[None, start : start + CONTEXT + STEP]
        probability, state = session.run(None, {"input": frame, "state": state})
        yield float(probability.reshape(-1)[0])


def main() -> None:
    model, recording = sys.argv[1:]
    # The chip is for the simulator, which is slow without one. An NPU has its own.
    qnn = ("QNNExecutionProvider", {"soc_model": "60"})
    samples = read_samples(recording)
    with qnnbridge.InferenceSession(model, providers=[qnn]) as session:
        print(f"{session.placement.qnn_nodes} nodes on QNN, {session.placement.cpu_nodes} on the CPU")
        for number, probability in enumerate(probabilities(session, samples)):
            if probability >= SPEECH_FROM:
                print(f"{number * STEP / RATE:6.2f} s  {probability:.2f}")


if __name__ == "__main__":
    main()
