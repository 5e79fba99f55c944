"""`qnnbridge host`: the daemon that several applications share, from its start to its end.

`command` and `options` are the command line, `actions` the work. `link` reaches the daemon, `figures` reads its
status document, `figures_text` and `metrics` show it, `logs` follows its log, `service` writes a file for
service managers. `top`, `serve` and the doctor use `link`, `figures` and `metrics`.
"""
