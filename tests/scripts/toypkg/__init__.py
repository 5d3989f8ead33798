"""A package whose modules are run with -m."""

print("toypkg imported")
