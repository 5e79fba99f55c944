"""The one place where the version of the distribution is written down."""

__version__ = "0.1.0"
