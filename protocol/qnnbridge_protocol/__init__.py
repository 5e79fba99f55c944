"""The wire protocol that the application side and the host share. Sans-IO: see `docs/protocol.md`."""

from qnnbridge_protocol._version import __version__

__all__ = ["__version__"]
