"""The application's way to a daemon: finds it, starts it, proves itself at its door and holds the connection."""
