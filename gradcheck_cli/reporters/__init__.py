"""Who is told? Views of the records, and the journal that all of them can be rebuilt from."""
