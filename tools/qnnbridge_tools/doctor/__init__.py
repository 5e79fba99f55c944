"""`qnnbridge doctor`: find out what is wrong with a computer, and how to repair it.

`examine.survey` queries a `machine.Machine` and returns `facts.Facts`. `examine.diagnose` runs the checks of
`subjects` on these facts. A check yields `findings.Finding` records, with commands from `fixes`. The rest of
`examine` executes the command, whose options `__main__` parses. Only the survey accesses a computer, so all other
code also works on another computer's snapshot. Everything except the live probe (`subjects.probe`) needs only the
standard library.
"""
