"""The tools that work on a model: analyze, fix, quantize, optimize, verify, prepare, profiling, inspection."""
