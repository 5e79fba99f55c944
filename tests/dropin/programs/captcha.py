"""Reads and finds letters, with ddddocr as its users do."""

import io
import json

import ddddocr
from PIL import Image, ImageDraw

picture = Image.new("RGB", (160, 60), "white")
ImageDraw.Draw(picture).text((10, 10), "x7kq", fill="black", font_size=36)
data = io.BytesIO()
picture.save(data, "PNG")
read = ddddocr.DdddOcr(show_ad=False).classification(data.getvalue())
found = ddddocr.DdddOcr(det=True, ocr=False, show_ad=False).detection(data.getvalue())
print(json.dumps([read, found], default=float))
