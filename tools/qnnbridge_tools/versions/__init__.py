"""`qnnbridge versions`: the onnxruntime-qnn releases, and which of them fit a machine.

The table itself is `qnnbridge_host.model.release_table`. `fitness` judges it for a `machines.HostMachine`,
which `here` finds out; `view` shows the result. `generate` and `wheels` make the table, `page_tables` the one
in the docs. The doctor and `setup_host` use `fitness`, `machines`, `here` and `view`.
"""
