"""Finding the host's interpreter, starting it, collecting what it says on stderr."""

from __future__ import annotations

from qnnbridge._launch.command import host_command, host_environment
from qnnbridge._launch.interpreter import HostInterpreter, configuration_file, find_host
from qnnbridge._launch.machine import computer_machine, executable_machine, process_machine
from qnnbridge._launch.stderr import StderrCollector

__all__ = [
    "HostInterpreter",
    "StderrCollector",
    "computer_machine",
    "configuration_file",
    "executable_machine",
    "find_host",
    "host_command",
    "host_environment",
    "process_machine",
]
