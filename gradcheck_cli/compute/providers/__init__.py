"""The layers on trial, and how each is built."""
