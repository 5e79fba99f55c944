"""A daemon on one Python and applications on another, in both combinations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from labs import HERE, run_program

MODEL = HERE.parent / "models" / "mul_1.onnx"
GRACE_S = 30.0


@pytest.mark.parametrize(("daemon", "application"), [("3.11", "3.10"), ("3.10", "3.11")])
def test_a_daemon_and_an_application_on_different_pythons_work_together(
    daemon: str, application: str, python310: Path, host_pythons: Mapping[str, str]
) -> None:
    pythons = {"3.10": python310, "3.11": Path(host_pythons["3.11"])}
    env = {**os.environ, "QNNBRIDGE_HOST_PYTHON": host_pythons["3.11"]}
    starter = run_program(pythons[daemon], HERE / "daemon_application.py", MODEL, "start", env=env).json()
    process = psutil.Process(starter["daemon"])
    guest = run_program(pythons[application], HERE / "daemon_application.py", MODEL, "stop", env=env).json()
    process.wait(GRACE_S)

    assert starter["python"].startswith(f"{daemon}.")
    assert guest["python"].startswith(f"{application}.")
    assert guest["daemon"] == starter["daemon"]
    assert guest["daemon python"].startswith(f"{daemon}.")
    assert guest["same"]
    assert guest["result"] == starter["result"]
    assert guest["shared memory"]
