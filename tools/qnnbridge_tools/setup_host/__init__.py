"""`qnnbridge setup-host`: makes an environment for the host, with the onnxruntime-qnn that fits the machine.

`command` reads the options, `plan` decides (`interpreters`), `report` shows the plan, `steps` carries it out in a
new `environment`, and the doctor examines the result. Only `cli` imports this package.
"""
