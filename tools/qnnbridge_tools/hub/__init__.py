"""`qnnbridge pull` and `qnnbridge models`: models from a model hub, by name.

huggingface_hub sends the requests, with tokens, redirects and retries. This package chooses among the files of a
repository, compares checksums, and manages the folder of pulled models.
"""
