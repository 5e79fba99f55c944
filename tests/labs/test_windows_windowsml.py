"""The real wheel of windowsml under Windows x64, whose DLL this Wine does not load: an error with the fix."""

from __future__ import annotations

from labs import HERE, WindowsLab, demand


def test_a_library_that_windows_cannot_load_is_an_error_with_the_fix(windows_python: WindowsLab) -> None:
    wheel = demand("windowsml/win_amd64", "setup_windowsml.sh")
    error = windows_python.run(HERE / "windows_catalogue.py", wheel).json()["error"]
    assert error["code"] == "model.ProviderUnavailable"
    assert "Microsoft.Windows.AI.MachineLearning.dll" in error["cause"]
    assert "24H2" in error["fix"]
    assert "engine='wheel'" in error["fix"]
