"""Check whether two computations of a model agree: values for its inputs, comparison of its outputs, verdict."""
