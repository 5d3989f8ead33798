"""Run by -m toypkg: relative imports work."""

from . import helper

print(helper.greeting(), __name__, __package__)
