"""Compare QNN's results of every operator with the CPU's, for many shapes, attributes, types and values.

`python -m lab.sweep --help`. Its findings are stored in `qnnbridge_host/model/known_wrong.json`.
"""
