"""`qnnbridge setup`: makes an environment for the host, with the onnxruntime-qnn that fits the machine.

`command` reads the options and shows the plan, `plan` decides by `this_machine` and, without an interpreter,
`bring_python`; `steps` carries it out in a new `environment`, and the doctor examines the result. `made_host` is
about the host of an earlier set-up.
"""
