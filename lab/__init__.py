"""Programs that are no tests: attacks, measurements and long walks, run by hand and in CI's long form. See README.md."""
