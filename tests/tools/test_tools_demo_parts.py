"""The demo's model, images and drawing, without a host."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from qnnbridge_tools.demo import compute
from qnnbridge_tools.demo.report import GLYPHS, preview

ASSETS = Path(compute.__file__).parent / "assets"


def test_the_lines_are_images_of_the_height_that_the_model_takes() -> None:
    asked = compute.load_lines()
    assert len(asked) == 6
    assert 0 < sum(line.upside_down for line in asked) < 6
    for line in asked:
        assert line.image.dtype == np.uint8
        assert line.image.shape[0] == 48
        assert line.image.shape[1] <= 192
        assert line.image.shape[2] == 3
    assert min(line.image.shape[1] for line in asked) < 192, "one line must be shorter: padding has to be shown"


def test_pixels_are_scaled_as_in_training_and_the_rest_is_zero() -> None:
    image = np.zeros((48, 100, 3), np.uint8)
    image[:, :, 1] = 255
    tensor = compute.model_input(image)
    assert tensor.shape == (1, 3, 48, 192)
    assert tensor.dtype == np.float32
    assert (tensor[0, 0, :, :100] == -1).all()
    assert (tensor[0, 1, :, :100] == 1).all()
    assert (tensor[..., 100:] == 0).all()


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="48 pixels high"):
        compute.model_input(np.zeros((32, 100, 3), np.uint8))
    with pytest.raises(ValueError, match="at most 192 wide"):
        compute.model_input(np.zeros((48, 193, 3), np.uint8))


def test_the_answer_is_the_more_probable_of_both_ways() -> None:
    assert compute.answer_of(np.array([[0.25, 0.75]])) == compute.LineAnswer(upside_down=True, sure=0.75)
    assert compute.answer_of(np.array([[0.9, 0.1]])) == compute.LineAnswer(upside_down=False, sure=0.9)


def test_the_model_tells_every_line_right_and_also_turned_around() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    with compute.model_file() as path:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for line in compute.load_lines():
        for image, upside_down in (
            (line.image, line.upside_down),
            (np.ascontiguousarray(line.image[::-1, ::-1]), not line.upside_down),
        ):
            (probabilities,) = session.run(None, {compute.INPUT_NAME: compute.model_input(image)})
            assert compute.answer_of(probabilities).upside_down is upside_down, line.text


def test_licence_origin_and_generator_ship_with_the_model() -> None:
    notice = (ASSETS / "NOTICE.md").read_text(encoding="utf-8")
    generator = (ASSETS.parent / "make_assets.py").read_text(encoding="utf-8")
    assert "Apache License" in (ASSETS / "LICENSE-Apache-2.0.txt").read_text(encoding="utf-8")
    (source_digest,) = set(re.findall(r"\b[0-9a-f]{64}\b", notice))
    assert source_digest in generator
    assert "rapidocr-onnxruntime 1.4.4" in notice


def test_the_model_is_the_published_one_apart_from_its_dimensions() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(ASSETS / "text_direction.onnx"))
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == list(compute.INPUT_SHAPE)
    # Put the published dimensions back: then it is the published file again, byte for byte.
    for dim in dims:
        dim.Clear()
    dims[0].dim_value, dims[1].dim_value, dims[2].dim_param, dims[3].dim_param = -1, 3, "?", "?"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    notice = (ASSETS / "NOTICE.md").read_text(encoding="utf-8")
    assert hashlib.sha256(model.SerializeToString()).hexdigest() in notice


def test_a_line_is_drawn_in_half_blocks_two_pixels_to_a_cell() -> None:
    image = np.full((48, 30, 3), 255, np.uint8)
    image[12:15, 6:9] = 0  # one preview pixel, in the upper half of its cell
    image[18:24, 12:15] = 0  # two of them, one upon the other
    image[27:30, 0:3] = 0  # one in the lower half
    assert preview(image) == ["  ▀", "    █", "▄"]
    assert set("".join(preview(compute.load_lines()[0].image))) <= set(GLYPHS)


def test_light_ink_on_dark_paper_is_drawn_as_ink() -> None:
    image = np.zeros((48, 30, 3), np.uint8)
    image[24:27, 3:6] = 255
    assert preview(image) == [" ▀"]
