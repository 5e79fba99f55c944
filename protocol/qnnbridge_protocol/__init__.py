"""The wire protocol between the application and the host, without I/O; see `docs/dev/protocol.md`.

Only this module contains the version of the distribution. The marker PYTEST_DONT_REWRITE keeps pytest from
rewriting the assertions in all packages of the distribution, which contains a pytest plugin.
"""

__version__ = "0.2.0"
