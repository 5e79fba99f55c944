"""With QNN's own library, read the graphs of context binaries that have no model, and build models for them."""
