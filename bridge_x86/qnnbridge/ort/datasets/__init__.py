"""``onnxruntime.datasets``: the example models of ONNX Runtime's documentation, from the host's package."""

from __future__ import annotations

import os

from qnnbridge import ort


def get_example(name: str) -> str:
    """Return the absolute path of an example. Raise `FileNotFoundError` if no example has this name."""
    from qnnbridge._host import default_host

    full = os.path.join(default_host().info.ort_folder, "datasets", os.path.basename(name))
    if not os.path.exists(full):
        raise FileNotFoundError(f"Unable to find example '{name}'")
    return full


ort.set_module(get_example, "datasets")
