"""Models (float models of `tests/models`, a generated one, models of packages) and realistic samples.

A quantizer that is calibrated with noise is accurate for noise only. Therefore pictures have areas and edges, and
sound has vowels and pauses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator
Feeds = dict[str, Any]

SAMPLES = 30


@dataclasses.dataclass(frozen=True)
class TruthCase:
    """A model with its samples.

    Args:
        package: `name==version`; empty for a model of `tests/models`.
        file: path of the ONNX file, or the last components of the path.
        make: returns a sample.
        samples: number of samples, the last of which are used for the comparison.
    """

    name: str
    file: str
    make: Callable[[Rng], Feeds]
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    package: str = ""
    samples: int = SAMPLES


def picture(rng: Rng, *shape: int) -> Any:
    """Return pictures [N, C, H, W] in -1 to 1 with areas of one colour, edges and some noise."""
    coarse = rng.random((*shape[:2], -(-shape[2] // 8), -(-shape[3] // 8)))
    areas = np.kron(coarse, np.ones((8, 8)))[:, :, : shape[2], : shape[3]]
    return ((0.85 * areas + 0.15 * rng.random(shape)) * 2 - 1).astype(np.float32)


def nhwc(pictures: Any) -> Any:
    """Return pictures [N, C, H, W] as [N, H, W, C]."""
    return np.ascontiguousarray(pictures.transpose(0, 2, 3, 1))


def text_line(rng: Rng, height: int, width: int) -> Any:
    """Return a picture of a text line: dark strokes on a light background."""
    line = np.full((1, 3, height, width), 0.8)
    for start in range(4, width - 8, 10):
        for _ in range(3):
            x, y = start + rng.integers(6), rng.integers(height // 6, height // 2)
            line[:, :, y : y + rng.integers(2, height // 2), x : x + 2] = -0.7
            line[:, :, y : y + 2, start : start + 7] = -0.6
    return (line + 0.05 * rng.standard_normal(line.shape)).clip(-1, 1).astype(np.float32)


def sound(rng: Rng, count: int, rate: int = 16000) -> Any:
    """Return a sound of vowels with random pitch, pauses and a little noise."""
    t = np.arange(count) / rate
    made = 0.003 * rng.standard_normal(count)
    length = int(0.5 * rate)
    for start in range(int(rng.integers(1, rate // 2)), count, rate):
        piece = slice(start, min(start + length, count))
        tt = t[piece] - t[start]
        pitch = 100 + 120 * rng.random()
        voice = sum(np.sin(2 * np.pi * pitch * h * tt * (1 + 0.02 * np.sin(25 * tt))) / h for h in range(1, 20))
        made[piece] += 0.2 * (0.1 + rng.random()) * voice * np.hanning(len(tt))
    return made.astype(np.float32)


def spectrum(rng: Rng, frames: int, bins: int) -> Any:
    """Return the logarithmic spectrum of a sound, frame by frame, in about -1 to 1."""
    hop = 160
    wave = sound(rng, frames * hop + 512)
    pieces = np.stack([wave[n * hop : n * hop + 512] * np.hanning(512) for n in range(frames)])
    level = np.log10(np.abs(np.fft.rfft(pieces, axis=1)[:, :bins]) ** 2 + 1e-7)
    return ((level + 3) / 4).astype(np.float32)


def detector_piece(rng: Rng) -> Feeds:
    start = int(rng.integers(8000))
    return {
        "input": sound(rng, 8576)[None, start : start + 576],
        "state": (0.4 * rng.standard_normal((2, 1, 128))).astype(np.float32),
    }


def echo(rng: Rng, width: int) -> Feeds:
    one = np.stack([spectrum(rng, 64, 160) for _ in range(3)])[None]
    return {"input": one, "h0": np.zeros((4, 1, width), np.float32)}


def file_bytes(rng: Rng) -> Feeds:
    """Return the start and end of a file: text, or arbitrary bytes."""
    text = rng.random() < 0.5
    values = rng.integers(32, 127, (1, 2048)) if text else rng.integers(0, 256, (1, 2048))
    return {"bytes": values.astype(np.int32)}


def boxes(rng: Rng) -> Feeds:
    return {"x": (picture(rng, 1, 3, 64, 64) + 1) / 2}


def _shared() -> list[TruthCase]:
    return [
        TruthCase("text direction (PaddleOCR)", "ch_ppocr_mobile_v2.0_cls_infer.onnx",
                  lambda rng: {"x": text_line(rng, 48, 192)}, {"x:0": 1, "x:2": 48, "x:3": 192}),
        # Use 200 samples: with 20, the calibrated ranges are too narrow for the loudest of the ten compared
        # samples.
        TruthCase("speech detection (Silero)", "silero_vad_openvino_16k.onnx", detector_piece, samples=200),
        TruthCase("speech quality (DNSMOS)", "model_v8.onnx",
                  lambda rng: {"input_1": spectrum(rng, 900, 120)[None]}, {"N": 1}),
        TruthCase("MTCNN P", "pnet.onnx", lambda rng: {"input_1": nhwc(picture(rng, 1, 3, 32, 24))},
                  {"N": 1, "M1": 32, "M2": 24}),
        TruthCase("MTCNN R", "rnet.onnx", lambda rng: {"input_2": nhwc(picture(rng, 1, 3, 24, 24))}, {"N": 1}),
        TruthCase("MTCNN O", "onet.onnx", lambda rng: {"input_3": nhwc(picture(rng, 1, 3, 48, 48))}, {"N": 1}),
        TruthCase("Mul", "mul_1.onnx", lambda rng: {"X": rng.standard_normal((3, 2)).astype(np.float32)}),
        TruthCase("Sigmoid", "sigmoid.onnx", lambda rng: {"x": rng.standard_normal((3, 4, 5)).astype(np.float32)}),
        TruthCase("iris (classic)", "logreg_iris.onnx",
                  lambda rng: {"float_input": rng.standard_normal((3, 2)).astype(np.float32)}),
        TruthCase("boxes and scores (made here)", "", boxes),
    ]  # fmt: skip


def _packaged() -> list[TruthCase]:
    rapid, mos = "rapidocr-onnxruntime==1.4.4", "speechmos==0.0.1.1"
    page = {"p2o.DynamicDimension.0": 1, "p2o.DynamicDimension.1": 160, "p2o.DynamicDimension.2": 160}
    line = {"x:0": 1, "x:2": 48, "x:3": 160}
    echoes = {"batch_size": 1, "frames": 64}
    silero = {"batch": 1, "sequence": 576}
    return [
        TruthCase("text detection (PP-OCRv4)", "ch_PP-OCRv4_det_infer.onnx",
                  lambda rng: {"x": np.tile(text_line(rng, 40, 160), (1, 1, 4, 1))}, page, rapid),
        TruthCase("text recognition (PP-OCRv4)", "ch_PP-OCRv4_rec_infer.onnx",
                  lambda rng: {"x": text_line(rng, 48, 160)}, line, rapid),
        TruthCase("file type (Magika)", "standard_v3_3/model.onnx", file_bytes, {"unk__214": 1}, "magika==1.0.3"),
        TruthCase("speech detection (Silero, half)", "silero_vad_half.onnx", detector_piece, silero,
                  "silero-vad==6.2.3"),
        TruthCase("DNSMOS signal", "dnsmos_models/sig.onnx",
                  lambda rng: {"input_1": spectrum(rng, 901, 161)[None]}, {"N": 1}, mos),
        TruthCase("DNSMOS background", "dnsmos_models/bak_ovr.onnx",
                  lambda rng: {"input_1": spectrum(rng, 901, 161)[None]}, {"N": 1}, mos),
        TruthCase("DNSMOS P.835", "pdnsmos_models/sig_bak_ovr.onnx",
                  lambda rng: {"input_1": sound(rng, 144160)[None]}, {"N": 1}, mos),
        TruthCase("AECMOS 1", "Run_1663829550_Stage_0.onnx", lambda rng: echo(rng, 64), echoes, mos),
        TruthCase("AECMOS 2", "Run_1663915512_Stage_0.onnx", lambda rng: echo(rng, 64), echoes, mos),
        TruthCase("AECMOS 3", "Run_1668423760_Stage_0.onnx", lambda rng: echo(rng, 96), echoes, mos),
        TruthCase("PLCMOS", "plcmos_v2.onnx",
                  lambda rng: {"degraded_audio": spectrum(rng, 64, 257)[None, None],
                               "rater_embed": rng.standard_normal((1, 64)).astype(np.float32)},
                  {"batch_size": 1, "frames": 64}, mos),
        TruthCase("captcha (ddddocr)", "common_old.onnx", lambda rng: {"input1": picture(rng, 1, 1, 64, 128)},
                  {"image_width": 128}, "ddddocr-basic==1.5.6.post3"),
    ]  # fmt: skip


CASES = _shared()
PACKAGED = _packaged()


def found(case: TruthCase, shared: Path, packages: Path | None) -> Path | None:
    """Return the file of a case; None if its package is not unpacked."""
    if not case.package:
        return shared / case.file
    if packages is None:
        return None
    return next((path for path in sorted(packages.rglob("*.onnx")) if path.as_posix().endswith(case.file)), None)
