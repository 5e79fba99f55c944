"""The differences between operating systems on the host's side."""
