"""Measure the accuracy of the offline rules of `qnnbridge analyze` against QNN's own placement.

`python -m lab.analyze_accuracy [SET ...] [--record]` runs the models of each set on the HTP simulator, applies the
rules to the same models, and prints the share of nodes for which rules and QNN agree. See `__main__`.
"""
