"""``onnxruntime.capi._ld_preload``: empty in builds without CUDA; native libraries are loaded in the host."""
