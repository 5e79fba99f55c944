"""The sweep: every operator that QNN takes, over shapes, attributes, types and values, beside the CPU.

`python -m lab.sweep --help`. What it finds is kept in `qnnbridge_host/model/known_wrong.json`.
"""
