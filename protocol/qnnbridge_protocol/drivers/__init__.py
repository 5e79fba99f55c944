"""Drivers move the bytes of a connection; they know nothing of frames. One file for each kind of stream."""
