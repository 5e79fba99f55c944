"""Compiling models for QNN into EPContext models, each in a host process of its own that is thrown away.

- `job`: what is to be compiled, as data that also travels to another machine, and what came of it;
- `compiler`: does a job in a disposable host and leaves whole files in a folder, or an error;
- `compile`: `qnnbridge.compile`, which also validates, writes a manifest and moves the files to their place;
- `bundle`: several models with shared weights; `matrix`: models times chips; `cluster`: the same on a Dask cluster.
"""
