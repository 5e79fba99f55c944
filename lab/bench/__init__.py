"""``python -m lab.bench``: the bridge's times relative to baselines, for developers. See docs/performance.md."""
