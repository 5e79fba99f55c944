"""Compiled models (EPContext): what they are, whether they can run here, and what must not be done with them.

Everything here looks at files and never loads QNN, so it is safe and quick on any machine:

- `scan`: what a model file holds, deep and streaming;
- `guard`: refuses a compiled model where only an original one can be worked on;
- `sidecar`: whether the files that a compiled model names are there, are its own and may be opened;
- `blob`: what a QNN context binary says of itself;
- `compatibility`: the string in which a compiled model says what it was made for;
- `fitness`: whether it can run on a host, in words;
- `native_path`: how QNN can open a context binary on Windows;
- `gate`: what a session asks before the host sees a model;
- `manifest`: the file that qnnbridge puts beside the models that it compiles.
"""
