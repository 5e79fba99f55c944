"""`qnnbridge versions`: the onnxruntime-qnn releases, and which of them fit a machine.

The table itself is `qnnbridge_host.model.release_table`, which `scripts/makers` makes. `fitness` judges it for a
`HostMachine`, which `setup_host.this_machine` finds out; `view` shows the result, `packages` gives what pip takes
to install it. The doctor and `setup_host` stand on this package.
"""
