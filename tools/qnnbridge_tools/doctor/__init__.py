"""`qnnbridge doctor`: what is wrong with this machine, and how to mend it.

`examine.survey` asks a `machine.Machine` and gives `facts.Facts`; `examine.diagnose` lets the checks of `subjects`
judge these. They give a `findings.Finding`, with commands from `fixes`. The rest of `examine` is the command
without its command line. Only a survey touches a computer, so everything after it works on another one's snapshot,
too. Everything but the live probe (`subjects.probe`) works with the standard library alone.
"""
