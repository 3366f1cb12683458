"""Faults, each defined once: as an alteration of what was observed, and as the way of a layer that has it."""
