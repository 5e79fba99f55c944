"""`qnnbridge host`: the daemon that several applications share, from its start to its end.

`command` and `options` are the command line, `actions` the work; it also follows the log. `link` reaches the
daemon, `figures` reads its status document and writes it as text, `metrics` for Prometheus; `service` writes a file
for service managers. `top`, `serve` and the doctor use `link`, `figures` and `metrics`.
"""
