"""Text generation: the only room of the host that knows onnxruntime-genai.

`kinds` are the objects that an application has here (`serve/handlers.py`): models and their generators. They
are loaded with the first one, so a host that generates no text pays nothing. May import `model/` and `engine/`.
"""
