"""Cache of compiled models: a model is compiled for QNN once and then loaded in milliseconds.

Theory of operation. The key is a hash of everything on which the compiled model depends: the model's bytes,
options, chip, versions. Under the key's lock the entry is looked up and its files are verified; files that may have
changed are read completely. If the entry is missing, the caller's compiler creates it in a draft next to the
entries, and one rename publishes it. Any number of processes share a folder: one process compiles an entry, the
others wait for the lock and check the compiling process's heartbeat.

Invariants: an entry is complete or absent, even if a process is killed at any time. An option of unknown effect is
part of the key: at worst a model is compiled twice, but a wrong compiled model is never loaded. An entry that is
damaged or crashes the host is set aside with the reason and created once more; if the new entry fails too, the
model is not cached any more. An entry in use is never evicted.

The cache never makes a session fail: if the cache cannot be used, the session is created without it, which is
logged once. Only errors of the model itself, deadlines and cancellation reach the caller.

`create` and the tools call this package. It may import model/, the standard library, filelock and the protocol.

- `key`: everything that a compiled model depends on, and which sessions are cached;
- `store`: entries, complete or absent, below the size limit;
- `memo`: hashes of unchanged files, models that are not compiled again or whose weights the NPU cannot map,
  verdicts on results;
- `files`: small files, written atomically; one compiler at a time, entries in use, heartbeats; temporary folders.
"""
