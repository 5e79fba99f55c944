"""Grade a recording with speechmos (DNSMOS)."""

import json

import numpy as np
from speechmos import dnsmos

RATE = 16000
times = np.arange(4 * RATE) / RATE
voice = sum(np.sin(2 * np.pi * 140 * k * times) / k for k in range(1, 9)) * (1 + np.sin(2 * np.pi * 3 * times))
grades = dnsmos.run((0.1 * voice).astype(np.float32).clip(-1, 1), RATE, return_df=False)
print(json.dumps({name: float(grades[name]) for name in sorted(grades) if name.endswith("mos")}))
