"""What this machine has: installed packages, and the driver of the NPU. Loads nothing native."""
