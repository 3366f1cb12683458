"""The nouns: frozen, JSON-able records that import nothing but each other."""
