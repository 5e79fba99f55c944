"""`qnnbridge serve`: models over HTTP in the Open Inference Protocol v2 (KServe, Triton).

`command` reads the options, `server` listens and ends, `app` holds the endpoints, `repository` the models,
`infer_request`, `tensors` and `infer_reply` the form of requests and answers. Nothing but `command` is imported
before the command runs.
"""
