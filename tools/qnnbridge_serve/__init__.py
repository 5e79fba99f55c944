"""`qnnbridge serve`: models over HTTP in the Open Inference Protocol v2 (KServe, Triton).

`command` and `options` read the command line, `server` listens and ends, `app` holds the endpoints,
`repository` the models and their sessions. `infer` and `tensors` know the form of requests and answers;
`transport`, `responses`, `errors` and `http_protocol` carry them. Nothing but `command` is imported before the
command runs.
"""
