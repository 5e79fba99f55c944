"""`qnnbridge setup`: create an environment for the host, with the onnxruntime-qnn that fits the machine.

`command` reads the options and prints the plan. `plan` decides, using `this_machine` and, without an interpreter,
`bring_python`. `steps` carries the plan out in a new `environment`, and the doctor examines the result. `made_host`
handles the host of an earlier set-up.
"""
