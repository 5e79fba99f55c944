"""Shape buckets: a model with free dimensions, compiled for a few fixed sizes, used as if it took any size.

- `arguments`: what the application said, checked as far as that goes without the model;
- `model_axes`: where the sizes are in the inputs of the model; `plan`: both together, and what does not fit;
- `sizes`: the sizes of one call, and the bucket for them; `padding`: inputs grown to a bucket;
- `relation`: how a dimension of an output follows from a size; `probing`: finding that out on the CPU;
- `cutting`: outputs cut back; `splitting`: a call that is done in several parts;
- `variants`: one ordinary session per bucket, made when it is needed or by `warm`;
- `status`: what happened so far; `verifying`: whether padding changes what the model answers;
- `session`: `BucketedSession`, which puts them together; `api`: how `InferenceSession` gets there.
"""
