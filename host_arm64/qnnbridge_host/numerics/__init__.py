"""Whether two computations of a model agree: values for its inputs, comparison of its outputs, and the verdict."""
