"""Shape buckets: a model with free dimensions, compiled for a few fixed sizes, used as if it took any size.

`session.BucketedSession` puts the parts together: the `arguments`, the `plan` of free dimensions, one call cut
into `batches`, one session per bucket (`variants`), and the check of outputs and padding (`verifying`).
`InferenceSession` makes one if it is given ``buckets=``. Imports the root modules of the bridge and the protocol.
"""
