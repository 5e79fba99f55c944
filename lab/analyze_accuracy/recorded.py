"""QNN's recorded results for the node tests of onnx, to check the rules of `qnnbridge analyze` without QNN."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

from lab.analyze_accuracy.simulator import Truth

FILE = Path(__file__).with_name("node_tests.json.gz")


def write(truths: Mapping[str, Truth]) -> None:
    content = {
        name: [truth.status, sorted(truth.places.items()), truth.error[:140] if truth.status == "error" else ""]
        for name, truth in truths.items()
    }
    text = json.dumps(content, separators=(",", ":")).encode()
    FILE.write_bytes(gzip.compress(text, 9, mtime=0))


def read() -> dict[str, Truth]:
    content = json.loads(gzip.decompress(FILE.read_bytes()))
    return {name: Truth(status, dict(places), error) for name, (status, places, error) in content.items()}
