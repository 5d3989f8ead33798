"""Leaves by sys.exit with the argument named on the command line."""

import sys

ARGUMENTS = {
    "nothing": None,
    "zero": 0,
    "three": 3,
    "true": True,
    "wraps": 256,
    "negative": -1,
    "text": "the data folder is empty",
    "tuple": (1, 2),
}
print("before")
sys.exit(ARGUMENTS[sys.argv[1]])
