"""Which cases are there? Matrices, what their combinations must not be, and covers of them."""
