"""The wire protocol that the application side and the host share. Sans-IO: see `docs/dev/protocol.md`.

The one place where the version of the distribution is written down. The distribution has a plugin for pytest, which
would rewrite the assertions of all its packages: PYTEST_DONT_REWRITE.
"""

__version__ = "0.2.0"
