"""Torch lives here: imported in workers only, by dotted string."""
