"""What differs between operating systems on the host's side."""
