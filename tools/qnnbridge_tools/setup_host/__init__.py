"""`qnnbridge setup-host`: makes an environment for the host, with the onnxruntime-qnn that fits the machine.

`command` reads the options and shows the plan, `plan` decides by `this_machine`, `steps` carries it out in a new
`environment`, and the doctor examines the result.
"""
