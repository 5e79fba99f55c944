"""Subjects of an examination, one module each: `survey_...` functions query a computer, checks evaluate the facts.

A survey uses only `machine.Machine`. A check is a pure function of `facts.Facts`. `doctor.examine` calls these
modules; they do not import it.
"""
