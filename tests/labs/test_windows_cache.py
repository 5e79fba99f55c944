"""The cache of compiled models on Windows x64, under Wine, with the QNN simulator of the Windows package."""

from __future__ import annotations

from pathlib import Path

import lab_models
import numpy as np
import pytest
from labs import HERE, WindowsLab

pytestmark = pytest.mark.simulator


def test_on_windows_entries_are_created_loaded_invalidated_and_evicted(
    windows_python: WindowsLab, tmp_path: Path
) -> None:
    model = lab_models.quantized_convolution(tmp_path)
    np.savez(tmp_path / "in.npz", **lab_models.quantized_convolution_inputs())
    own = lab_models.convolution(tmp_path)
    np.savez(tmp_path / "own.npz", **lab_models.convolution_inputs())
    cache = tmp_path / "Zwischenspeicher 模型 ü"
    report = windows_python.run(
        HERE / "windows_cache.py", model, tmp_path / "in.npz", own, tmp_path / "own.npz", cache
    ).json()
    assert [state.partition(":")[0] for state in report["states"]] == ["miss", "hit", "miss"], report
    assert set(report["results"]) == {report["right"]}
    assert report["set aside"] == ["damaged"]
    assert report["evicted while in use"] is False
    assert report["crashes"] == 0
    assert report["own compared"] == [None, 1]
    assert report["a user's own"] == report["own right"]
    assert report["own crashes"] == 0
    assert report["shrunk"] is True
    assert report["left"] == []
