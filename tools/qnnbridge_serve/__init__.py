"""`qnnbridge serve`: models over HTTP in the Open Inference Protocol v2 (KServe, Triton).

`options` reads the command line, `server` has the command, listens and ends, `app` holds the endpoints,
`repository` the models. `infer` knows the form of requests and answers, the modules `openai_*` those of OpenAI's
interface; `http_protocol`, `transport` and `errors` carry them.
"""
