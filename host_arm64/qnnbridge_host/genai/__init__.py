"""Text generation: the only package of the host that uses onnxruntime-genai.

`object_kinds` defines the objects that an application can create here (`serve/handlers.py`), such as models and
generators. The package is imported when the first object is created, so a host that does not generate text saves
the import. The package may import `model/` and `engine/`.
"""
