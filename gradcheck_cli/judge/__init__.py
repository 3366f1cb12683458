"""What it means: pure functions of records; no torch, no files, no clock. `conclude.conclude` is the way in."""
