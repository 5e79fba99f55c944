"""The `qnnbridge` command. Runs on the application side; the entry point is `qnnbridge_tools.cli:main`."""
