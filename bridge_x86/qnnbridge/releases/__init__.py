"""The onnxruntime-qnn releases: what is inside each published wheel, and which of them fit a machine.

`table` reads the data, `machines` describes a machine, `fitness` holds the two against each other. Works with the
base install of any state: no numpy, no onnxruntime, no network.
"""

from __future__ import annotations
