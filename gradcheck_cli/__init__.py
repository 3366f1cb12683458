"""gradcheck: did every gradient of a grouped linear layer arrive where it must, and is it right?"""

__version__ = "0.1.0"
