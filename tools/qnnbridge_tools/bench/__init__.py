"""`qnnbridge bench`: measure the overhead of the bridge on this machine, compared with ONNX Runtime in one process.

`measuring` contains the contenders (ways to make a call) and their timing; `work` runs the measurements, and starts
and kills hosts; `report` prints the result. `lab.bench` uses all of them.
"""
