"""The `qnnbridge` command, the only user interface of the project: one module or package for each subcommand.

`cli` lists the subcommands; `output`, `reporting`, `arguments`, `command_line` and `options` are what they share.
Imports the bridge, the daemon, the protocol, and of the host only `model/` and `cache/`. A command module
imports only typer and the standard library at its top; the rest is imported when the command runs.
"""
