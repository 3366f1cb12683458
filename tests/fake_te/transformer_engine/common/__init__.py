"""The part of the stand-in that knows no framework."""
