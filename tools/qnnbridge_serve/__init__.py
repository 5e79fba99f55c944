"""`qnnbridge serve`: models over HTTP in the Open Inference Protocol v2 (KServe, Triton).

`options` reads the command line. `server` contains the command, and starts and ends the server. `app` contains the
endpoints, and `repository` the models. `infer` reads requests and writes answers of the Open Inference Protocol;
the modules `openai_*` do so for OpenAI's interface. `http_protocol`, `transport` and `errors` serve all endpoints.
"""
