"""Inputs and outputs of calls, as the application passes and gets them.

`feed_rules` has the rule for each input and output of a model. `feeds` checks and converts the inputs of a call.
`ort_value` has `OrtValue` and `SparseTensor`.
"""
