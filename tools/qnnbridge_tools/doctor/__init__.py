"""`qnnbridge doctor`: find out what is wrong with a computer, and how to repair it.

`examine.survey` queries a `machine.Machine` and returns `facts.Facts`. `examine.diagnose` runs the checks of
`subjects` on these facts. A check yields `findings.Finding` records, with commands from `fixes`. The rest of
`examine` carries out the command, whose options `__main__` parses. Only the survey accesses a computer, so
everything after it also works on the snapshot of another computer. Everything except the live probe
(`subjects.probe`) needs only the standard library.
"""
