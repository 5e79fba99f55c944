"""`qnnbridge demo`: a small trained model on real images, computed by QNN in the host process."""
