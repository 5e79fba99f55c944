"""Which computer this is: its real machine type, the chip of its NPU."""

from __future__ import annotations

from qnnbridge_host.model.chips import chip_of_processor
from qnnbridge_tools.doctor.facts import Computer, Driver
from qnnbridge_tools.doctor.machine import Machine, text_of

_PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
_LINUX_MODEL = ("/proc/device-tree/model", "/sys/firmware/devicetree/base/model")


def survey_computer(machine: Machine, driver: Driver) -> Computer:
    processor = _processor(machine)
    # The NPU's own name has the chip in it, too, where Windows does not know the processor yet.
    chips = (chip_of_processor(name) for name in (driver.device, processor) if name)
    chip = next((chip for chip in chips if chip is not None), None)
    return Computer(
        system=machine.system,
        machine=machine.machine,
        windows_build=machine.windows_build(),
        processor=processor,
        chip=chip.name if chip else None,
        arch=chip.arch if chip else None,
    )


def _processor(machine: Machine) -> str | None:
    if machine.system == "Windows":
        name = machine.registry("HKLM", _PROCESSOR, "ProcessorNameString")
        return name.strip() if isinstance(name, str) else None
    for path in _LINUX_MODEL:
        text = text_of(machine, path, 256)
        if text:
            return text.strip("\0 \n")
    return None
