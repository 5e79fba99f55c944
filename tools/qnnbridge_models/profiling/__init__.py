"""`qnnbridge profile`: report where the time goes, from loading the model to each operator on the NPU.

`recording` runs a model with both profiles enabled and reads the result; `evaluate` computes a `ProfileResult` from
it; `report` and `page` print it. `commands` calls them.
"""
