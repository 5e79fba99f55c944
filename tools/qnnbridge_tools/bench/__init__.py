"""`qnnbridge bench`: measure the overhead of the bridge on this machine, compared with ONNX Runtime in one process.

`measuring` contains the contenders and their clocks, `work` runs the measurements, starts and kills hosts, `report`
prints the result. `lab.bench` uses all of them.
"""
