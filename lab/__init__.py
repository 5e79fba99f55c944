"""Attacks, measurements and long random tests, run by hand or in the long CI job. See README.md."""
