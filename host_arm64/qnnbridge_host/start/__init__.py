"""The start of a host process: HELLO is answered, the parent is watched, the parts are put together."""
