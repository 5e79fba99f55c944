"""`qnnbridge setup`: create an environment for the host, with the onnxruntime-qnn that fits the machine.

`command` parses the options and prints the plan. `plan` makes the decisions, using `this_machine` and, if no
interpreter is suitable, `bring_python`. `steps` executes the plan in a new `environment`, and the doctor examines
the result. `made_host` handles a host that an earlier set-up created.
"""
