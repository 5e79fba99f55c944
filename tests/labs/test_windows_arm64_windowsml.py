"""The real wheel of windowsml under Windows ARM64: its DLL loads there and opens a catalogue, which is empty."""

from __future__ import annotations

from labs import HERE, WindowsArm64Lab, demand


def test_the_real_catalogue_opens_and_is_empty(windows_arm64: WindowsArm64Lab) -> None:
    wheel = demand("windowsml/win_arm64", "setup_windowsml.sh")
    ran = windows_arm64.run(HERE / "windows_catalogue.py", wheel)
    told = ran.json()
    assert told["providers"] == [], told
