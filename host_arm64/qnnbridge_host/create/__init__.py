"""From a request with a model to a session: key, look-up, compiling in a worker process, publishing, loading.

Theory of operation. One record goes down, `order.Creation`, with the `WorkOrder` that every piece of work carries:
who may stop it, until when, where its progress goes. One comes back up, `session.MadeSession`. The calls are
straight: `service` (the operations, and how their requests are read) -> `session` (entry, model or rewritten copy)
-> `lookup` (finds the entry or makes it) -> `compiler` (judges what was made) -> `worker` (the client of a fresh
host process, which compiles and ends).

Beside it: `replaced` (what a session is made from in place of the model: a rewritten copy, the model around a bare
context binary, a copy beside binaries that a function of the application has); for `model.compile` `orchestrate`,
which also runs the result beside the original on the CPU, and `publish` (input and result of a compilation, names
of files, the move as a whole).

A fresh process each time, because the precision of one compilation leaks into the next, because QNN keeps memory
of each, and because a compiler that dies must not take open sessions with it. The worker's death is `WorkerDied`:
exit code, phase and versions travel to the application, which explains and books it like the death of a host.

Invariants: the worker is gone when a call returns, and also when the serving host dies. Files are made in a folder
that only this compilation has, and moved as a whole: no .onnx without its binary, and no half-written file, is
ever at the destination. A model that is written to meanwhile is compiled from a copy. Never imports onnxruntime.
"""
