"""`qnnbridge bench`: what the bridge costs on this machine, against ONNX Runtime in one process.

`work` runs the races, `hosts` holds the contenders, `measuring` and `moments` the clocks, `report` shows the
result. `lab.bench` uses all of them.
"""
