"""The sweep: compare every operator of QNN with the CPU over shapes, attributes, types and values.

`python -m lab.sweep --help`. Its findings are stored in `qnnbridge_host/model/known_wrong.json`.
"""
