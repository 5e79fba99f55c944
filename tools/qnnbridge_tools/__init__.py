"""The `qnnbridge` command, the only user interface of the project: one module or package for each subcommand.

`cli` lists the subcommands, which share `output`, `reporting`, `arguments`, `command_line` and `options`. The
package imports the bridge, the daemon, the protocol, and, from the host, only `model/` and `cache/`. A command
module imports only typer and the standard library at its top; everything else is imported when the command runs.
"""
