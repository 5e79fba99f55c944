"""The one place where the version of the distribution is written down."""

__version__ = "0.2.0"
