"""Compiled models, kept between runs: a model is compiled for QNN once and then loaded in milliseconds.

Theory of operation. The key is a hash of everything that the compiled model depends on: the model's bytes,
options, chip, versions. Under the key's lock the entry is looked up and its files are checked, every byte
of those that may have changed since. If it is missing, the caller's compiler makes it in a draft beside the
entries, and one rename publishes it. Any number of processes share a folder: one compiles, the others wait for its
lock and watch its heartbeat.

Invariants: an entry is complete or absent, whatever ends a process at whatever moment. An option of unknown effect
is part of the key: at worst a model is compiled twice, never a wrong one loaded. A damaged or deadly entry is
moved aside with its reason, made once more, and then left alone. An entry in use is never evicted.

Nothing here may fail a session: where the cache cannot be used the session is made without it, which is logged
once. Only errors of the model itself, deadlines and cancelling reach the caller.

`create` and the tools call it. May import model/, the standard library, filelock and the protocol.

- `key`: everything that a compiled model depends on, and which sessions are cached;
- `store`: entries, complete or absent, below the size limit;
- `memo`: hashes of unchanged files, models not worth another try or whose weights the NPU cannot map, verdicts on
  numbers;
- `files`: small files, written whole; one compiler at a time, entries in use, heartbeats; temporary folders.
"""
