"""Creation of sessions: cache key, cache look-up, compilation in a worker process, publishing, loading.

Theory of operation. The callers pass one record down, `order.Creation`, with a `WorkOrder`: the stop signal, the
deadline and the receiver of progress events. The result is one record, `session.MadeSession`. The layers of calls
are `service` (the operations, and the reading of their requests) -> `session` (creates the session) -> `lookup`
(finds or creates the cache entry) -> `compiler` (checks the compiled files) -> `worker` (the client of a fresh host
process, which compiles and ends). `choose` decides in advance which model is loaded: as given, or a copy.

Further modules: `replaced` provides substitutes for the model (a rewritten copy, the model around a bare context
binary, a copy together with context binaries from a function of the application). For `model.compile`,
`orchestrate` also compares the result with the original on the CPU, and `publish` has the input and result of a
compilation, file naming, and the move to the destination.

Each compilation uses a fresh process, because the precision of one compilation leaks into the next, because QNN
leaks memory in each, and because a compiler that crashes must not end open sessions. The crash of a worker is a
`WorkerDied`: the application gets exit code, phase and versions, and explains and attributes the crash like that of
a host.

Invariants: the worker has ended when a call returns, and it also ends if the serving host crashes. Files are
written to a folder that only this compilation uses, and moved together: the destination never contains an .onnx
file without its binary, or a half-written file. A model that changes during its compilation is compiled from a
copy. This package never imports onnxruntime.
"""
