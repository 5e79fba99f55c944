"""Compiling models for QNN into EPContext models, each in a worker process that is used once.

`model_service` calls it in the serving host: `worker` is the client of a fresh host process, `compiler` compiles
in one and judges the files, `validation` tries them, `publish` moves them into their place, `orchestrate` does
all of it for `model.compile`, `entry` for the cache. May import model, cache and the protocol, and numpy; never
onnxruntime.
"""
