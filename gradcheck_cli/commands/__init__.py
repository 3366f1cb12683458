"""What can be typed? One module for each kind of command; `cli.py` collects them."""
