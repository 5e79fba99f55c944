"""``python -m lab.bench``: ratios of the bridge to named baselines, for developers. See docs/performance.md."""
