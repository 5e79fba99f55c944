"""Shape buckets: a model with free dimensions, compiled for a few fixed sizes, used as if it took any size.

Theory of operation. When the session is made, the model's description becomes a `BucketPlan`: which input axes are
free, by which name, and which sizes each gets. The smallest variant is made at once, all others with the first
call that needs them. How the outputs' sizes follow from those of the inputs is what the model declares, else what
the model gives when it is run on the CPU with its sizes left free. Such runs also find which padding leaves the
results as they are, where the application says nothing of it.

A call takes one of these ways:

    sizes of the inputs --> fit a variant     --> pad, run, cut the outputs back
                        --> windows (chunk=)  --> windows that overlap, not padded along that axis, joined
                        --> too large, split= --> parts along one axis, each a call, joined
                        --> too large         --> refused, or the model on the CPU (overflow="cpu")

Invariant: an output is cut only where its size is known to follow from the inputs, and every result is compared
with that expectation; another size is an error, never a wrong cut. Padding is another matter: whether it changes
the values depends on the model, so it is tried against the CPU and what it changes is reported (`padding_check`).

Each variant is an ordinary session: deaths, repetition and the cache are its own business.

`session.BucketedSession` puts the parts together: the `arguments`, the `plan` of free dimensions, one call cut
into `batches`, one session per bucket (`variants`), and the check of outputs and padding (`verifying`).
`InferenceSession` makes one if it is given ``buckets=``. Imports the root modules of the bridge and the protocol.
"""
