"""`qnnbridge bench`: what the bridge costs on this machine, against ONNX Runtime in one process.

`measuring` has the contenders and their clocks, `work` runs the races, starts and kills, `report` shows the result.
`lab.bench` uses all of them.
"""
