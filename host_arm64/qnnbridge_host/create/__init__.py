"""Creation of sessions: cache key, cache look-up, compilation in a worker process, publishing, loading.

Theory of operation. Each function passes the same record to the next one: an `order.Creation`, with a `WorkOrder`
that contains the stop signal, the deadline and the receiver of progress events. The result is a
`session.MadeSession`. The layers of calls are `service` (the operations; reads their requests) ->
`session` (creates the session) -> `lookup` (finds or creates the cache entry) -> `compiler` (checks the compiled
files) -> `worker` (the client of a fresh host process, which compiles and ends). `choose` decides in advance which
model is loaded: as given, or a copy.

Further modules: `replaced` provides the files that are loaded instead of the model (a rewritten copy, a model built
for a bare context binary, a copy with context binaries that a function of the application returns). For
`model.compile`, `orchestrate` also compares the result with the original on the CPU, and `publish` defines the
input and the result of a compilation, names the files, and moves them to the destination.

Each compilation uses a fresh process, because the precision of one compilation leaks into the next, because QNN
leaks memory in each, and because a compiler that crashes must not end open sessions. The crash of a worker is a
`WorkerDied` with exit code, phase and versions: the application explains it and blames a model, as it does when a
host crashes.

Invariants: the worker has ended when a call returns, and it also ends if the serving host crashes. Files are
written to a folder that only this compilation uses, and moved together: the destination never contains an .onnx
file without its binary, or a half-written file. A model that changes during its compilation is compiled from a
copy. This package never imports onnxruntime.
"""
