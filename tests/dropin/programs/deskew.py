"""Detect a page's orientation and its probability with occular-deskew."""

import json

import numpy as np
from occular_deskew.orient_onnx import OriNetOrientation
from PIL import Image, ImageDraw

page = Image.new("RGB", (400, 400), "white")
for line in range(8):
    ImageDraw.Draw(page).text((20, 20 + 44 * line), f"{line}: some words in a row", fill="black", font_size=24)
engine = OriNetOrientation()
answers = [engine.orientation_deg(np.asarray(page.rotate(turn))) for turn in (0, 90, 180)]
print(json.dumps([[int(degrees), float(sure)] for degrees, sure in answers]))
