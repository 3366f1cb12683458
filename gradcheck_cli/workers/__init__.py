"""Where cases run: both sides of one process boundary."""
