"""Attacks, measurements and long walks, which are run by hand and in CI's long form. See README.md."""
