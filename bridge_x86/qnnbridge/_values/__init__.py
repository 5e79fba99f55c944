"""Inputs and outputs of calls, in the types that the application passes and receives.

`feed_rules` contains the rules for inputs and outputs of a model. `feeds` checks and converts the inputs of a call.
`ort_value` contains `OrtValue` and `SparseTensor`.
"""
