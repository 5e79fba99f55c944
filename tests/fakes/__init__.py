"""A host with a scripted engine: the real host process, the real wire, faults on demand."""
