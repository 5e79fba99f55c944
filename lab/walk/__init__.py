"""Walks: random calls in any order beside onnxruntime in process. A call gives what was asked for, whatever came before.

Tests of single calls cannot see what a session remembers between calls. A walk makes many calls over the same
sessions, values and arrays, and compares each with the same call in process, bit for bit: outputs, classes of errors,
and results that were kept and are looked at again later.

`models` are the models, `steps` what one step does, `machine` lets Hypothesis choose the steps and shrink what it
finds, `conversations` and `more` have walks over what is no session, `crowd` walks with threads, kills and through the daemon, where shrinking does not help. ``python -m lab.walk``
is the long form.
"""
