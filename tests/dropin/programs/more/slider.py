"""Find the gap of a slider captcha with captcha-recognizer (a segmentation model)."""

import json

import numpy as np
from captcha_recognizer.slider import Slider
from PIL import Image, ImageDraw

picture = Image.new("RGB", (340, 212), (90, 140, 180))
draw = ImageDraw.Draw(picture)
for x in range(0, 340, 20):
    draw.line([(x, 0), (340 - x, 212)], fill=(40 + x // 2, 120, 90), width=3)
draw.rectangle([200, 80, 250, 130], fill=(30, 40, 50), outline="white", width=2)
box, sure = Slider().identify(source=np.asarray(picture)[:, :, ::-1])
print(json.dumps([[float(side) for side in box], float(sure)]))
