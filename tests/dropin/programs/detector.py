"""Detect objects in a picture with nudenet, as its users do."""

import json

from nudenet import NudeDetector
from PIL import Image

Image.radial_gradient("L").convert("RGB").resize((320, 320)).save("gradient.png")
print(json.dumps(NudeDetector().detect("gradient.png"), default=float))
