"""Walks: random calls in any order, compared with onnxruntime in process. No call may affect later calls.

Tests of single calls cannot detect wrong state that a session keeps between calls. A walk makes many calls with the
same sessions, values and arrays, and compares each with the same call in process, bit for bit: outputs, error
classes, and results that are kept and checked again later.

`models` defines the models and `steps` the steps. `machine` lets Hypothesis choose the steps and shrink failures.
`conversations` and `more` walk over objects other than sessions. `crowd` walks with threads, kills and the daemon,
where shrinking does not help. ``python -m lab.walk`` is the long form.
"""
