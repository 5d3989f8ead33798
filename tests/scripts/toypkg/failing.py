"""Raises an ImportError of its own: not the same as the module being absent."""

import a_module_that_does_not_exist  # noqa: F401
