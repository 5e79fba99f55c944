"""Find and read letters with ddddocr, as its users do."""

import io
import json

import ddddocr
from PIL import Image, ImageDraw


def picture(size, font_size, texts):
    image = Image.new("RGB", size, "white")
    for place, text in texts:
        ImageDraw.Draw(image).text(place, text, fill="black", font_size=font_size)
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


read = ddddocr.DdddOcr(show_ad=False).classification(picture((160, 60), 36, [((10, 10), "x7kq")]))
letters = picture((300, 150), 48, [((20, 30), "A"), ((120, 70), "W"), ((220, 40), "Q")])
found = ddddocr.DdddOcr(det=True, ocr=False, show_ad=False).detection(letters)
print(json.dumps([read, sorted(found)]))
