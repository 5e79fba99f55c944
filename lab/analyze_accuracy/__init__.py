"""How often the offline rules of `qnnbridge analyze` are right: measured against QNN's own placement.

`python -m lab.analyze_accuracy [SET ...] [--record]` runs the models of each set on the HTP simulator, asks the rules about the
same models, and prints what share of the nodes they have where QNN has them. See `__main__`.
"""
