"""``python -m lab.bench``: ratios of the bridge to baselines, for developers. See docs/performance.md."""
