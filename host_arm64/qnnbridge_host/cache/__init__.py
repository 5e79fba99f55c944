"""Compiled models, kept between runs: a model is compiled for QNN once and then loaded in milliseconds.

`model_service` and the tools call it. May import model/, the standard library, filelock and the protocol; it
compiles by a callable of its caller. Nothing here may fail a session: where the cache cannot be used the
session is made without it, which is logged once.

- `lookup`: the cache's work for one session;
- `key`: everything that a compiled model depends on, and which sessions are cached; `memo`: hashes of unchanged
files;
- `entry`, `store`: entries, complete or absent; `files`: small files, written whole; `eviction`: the size limit;
- `locks`: one compiler at a time, entries in use, heartbeats; `negative_entries`: models not worth another try.
"""
