"""``python -m tests.bench``: ratios of the bridge to named baselines, for developers. See docs/performance.md."""
