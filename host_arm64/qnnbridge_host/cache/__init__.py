"""Cache of compiled models: a model is compiled for QNN once and then loaded in milliseconds.

Theory of operation. The key is a hash of everything that the compiled model depends on: the model's bytes, options,
chip, versions. Under the key's lock the entry is looked up and its files are verified; files that may have changed
are read completely. If the entry is missing, the caller's compiler creates it in a draft next to the entries, and
one rename publishes it. Any number of processes share a folder: one compiles, the others wait for its lock and
watch its heartbeat.

Invariants: an entry is complete or absent, whatever ends a process at any time. An option of unknown effect is part
of the key: at worst a model is compiled twice, but a wrong one is never loaded. An entry that is damaged or crashes
the host is moved aside with the reason, created once more, and then not used any more. An entry in use is never
evicted.

The cache never makes a session fail: if the cache cannot be used, the session is created without it, which is
logged once. Only errors of the model itself, deadlines and cancellation reach the caller.

`create` and the tools call this package. It may import model/, the standard library, filelock and the protocol.

- `key`: everything that a compiled model depends on, and which sessions are cached;
- `store`: entries, complete or absent, below the size limit;
- `memo`: hashes of unchanged files, models that are not compiled again or whose weights the NPU cannot map,
verdicts on
  numbers;
- `files`: small files, written atomically; one compiler at a time, entries in use, heartbeats; temporary folders.
"""
