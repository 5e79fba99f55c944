"""`qnnbridge profile`: where the time goes, from loading the model to each operator on the NPU.

`recording` runs a model with both profiles switched on and reads what was written; `evaluate` makes a
`ProfileResult` of that; `report` and `page` show it. `commands` calls them.
"""
