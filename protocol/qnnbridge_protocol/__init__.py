"""The wire protocol between the application side and the host, without I/O: see `docs/dev/protocol.md`.

This module is the only place that contains the version of the distribution. The distribution has a plugin for
pytest, which would rewrite the assertions of all its packages: PYTEST_DONT_REWRITE.
"""

__version__ = "0.2.0"
