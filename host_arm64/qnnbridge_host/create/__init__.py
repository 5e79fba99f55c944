"""From a request with a model to a session: key, look-up, compiling in a worker process, publishing, loading.

`service` has the operations `model.identify`, `session.create` and `model.compile`; `requests` reads their
requests. `session` makes a session from an entry, the model or a copy, which `fixed_source` has made; `lookup`
finds or makes the entry; `wrapped` makes the model around a bare context binary.

Theory of operation of compiling. A model and its options come in; a folder with an .onnx, its context binaries and
their description goes out. The serving host starts a worker, a fresh host process, and sends it the job; the worker
compiles and ends. The serving host then judges the files: they must be whole and name each other, the model must
not have changed, and nodes that stay on the CPU must be allowed. `model.compile` also runs the result beside the
original on the CPU before it delivers it.

A fresh process each time, because the precision of one compilation leaks into the next, because QNN keeps memory
of each, and because a compiler that dies must not take open sessions with it. The worker's death is `WorkerDied`:
exit code, phase and versions travel to the application, which explains and books it like the death of a host.

Invariants: the worker is gone when a call returns, and also when the serving host dies. Files are made in a folder
that only this compilation has, and moved as a whole: no .onnx without its binary, and no half-written file, is
ever at the destination. A model that is written to meanwhile is compiled from a copy.

In the serving host `worker` is the client of a fresh host process, `compiler` compiles
in one and judges the files, `validation` tries them, `publish` moves them into their place, `orchestrate` does all
of it for `model.compile`, `entry` for the cache. Never imports
onnxruntime.
"""
