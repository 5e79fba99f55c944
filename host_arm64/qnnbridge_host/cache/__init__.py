"""Compiled models, kept between runs: a model is compiled for QNN once and then loaded in milliseconds.

- `settings`: where, how much, whether at all; `policy`: which sessions;
- `key`: all that a compiled model depends on; `memo`: hashes of files that have not changed since;
- `manifest`, `store`: entries, whole or not there; `locks`: who compiles, who uses; `eviction`: the size limit;
- `notes`: models that are not worth trying again; `files`: small files, written whole;
- `build`: compiles into an entry; `loadable`: an entry in its model's place;
- `session_cache`: what one session has to do with all this; `waiting`, `status`: words for those who wait and ask.

Nothing here may fail a session: where the cache cannot be used the session is made without it, which is said once.
"""
