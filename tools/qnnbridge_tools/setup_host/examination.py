"""The doctor's look at a host that was just set up: everything, with a live probe."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qnnbridge_tools.doctor.findings import Report


def examine(python: Path) -> Report:
    """Never raises for what is wrong: that is what the report is about."""
    from qnnbridge_tools.doctor.diagnose import diagnose
    from qnnbridge_tools.doctor.real_machine import RealMachine
    from qnnbridge_tools.doctor.survey import Order, survey

    begun = time.perf_counter()
    facts = survey(RealMachine(), Order(host_python=str(python)))
    return dataclasses.replace(diagnose(facts), seconds=time.perf_counter() - begun)
