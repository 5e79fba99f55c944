"""`qnnbridge serve`: models over HTTP in the Open Inference Protocol v2 (KServe, Triton).

`command` and `options` read the command line, `server` listens and ends, `app` holds the endpoints,
`repository` and `folder_models` the models. `infer` and `tensors` know the form of requests and answers, the
modules `openai_*` those of OpenAI's interface; `http_protocol`, `transport` and `errors` carry them. Nothing but
`command` is imported before the command runs.
"""
