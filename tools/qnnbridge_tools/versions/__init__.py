"""`qnnbridge versions`: the onnxruntime-qnn releases, and which of them fit a machine.

The table itself is `qnnbridge_host.model.release_table`. `fitness` judges it for a `machines.HostMachine`, which
`doctor.here` finds out; `view` shows the result, `requirements` gives what pip takes to install it. `generate` and
`wheels` make the table and read each `library` in it. The doctor and `setup_host` stand on this package.
"""
