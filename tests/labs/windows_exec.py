"""Run `qnnbridge exec --report PROGRAM ARGS` in the Windows lab, without typer, which Wine 8 cannot load."""

from __future__ import annotations

import sys

from qnnbridge_tools.exec_command import Program, environment_for, run_program

if __name__ == "__main__":
    program = Program(None, sys.argv[2:], script=sys.argv[1])
    program.check()
    environ, has_folder = environment_for("as-requested", {})
    sys.exit(run_program(program.command(has_folder=has_folder), environ, report=True))
