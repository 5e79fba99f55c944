"""The subjects of an examination, one module each: `survey_...` asks a computer, a `Check` judges the facts.

A survey talks to `machine.Machine` only. A check is a pure function of `facts.Facts`. `doctor.examine`
calls these modules; they do not import it.
"""
