"""Read the text in a picture with rapidocr-onnxruntime, as its users do."""

import json

from PIL import Image, ImageDraw
from rapidocr_onnxruntime import RapidOCR

picture = Image.new("RGB", (320, 200), "white")
ImageDraw.Draw(picture).text((20, 80), "NPU 2026 bridge", fill="black", font_size=28)
picture.save("text.png")
# Its default enlarges the picture 14 times, which takes two minutes on the simulator of the NPU.
result, _ = RapidOCR(det_limit_side_len=200)("text.png")
print(json.dumps([[box, text, float(score)] for box, text, score in result or []]))
