"""`qnnbridge host`: control the daemon that several applications share.

`command` is the command line, `actions` the work, including following the log. `link` connects to the daemon,
`figures` reads its status document and formats it as text, `metrics` for Prometheus; `service` writes a file for
service managers. `top`, `serve` and the doctor use `link`, `figures` and `metrics`.
"""
