"""What differs between operating systems on the daemon's side."""
