"""A package without a __main__ module."""
