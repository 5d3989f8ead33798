"""Raises, in the way named on the command line."""

import json
import sys


class Unprintable(Exception):
    """Its text cannot be had."""

    def __str__(self):
        raise RuntimeError("no text")


def plain():
    raise ValueError("the loss is not finite")


def caused():
    try:
        plain()
    except ValueError as error:
        raise RuntimeError("training failed") from error


def in_a_library():
    json.loads("{")


def during_another():
    try:
        plain()
    except ValueError:
        in_a_library()


def unprintable():
    raise Unprintable


def own_hook():
    sys.excepthook = lambda kind, error, trace: print("hook:", kind.__name__, error)
    plain()


def hook_that_exits():
    def hook(kind, error, trace):
        sys.exit(5)

    sys.excepthook = hook
    plain()


def hook_that_fails():
    def hook(kind, error, trace):
        raise KeyError("in the hook")

    sys.excepthook = hook
    plain()


def last_value():
    def hook(kind, error, trace):
        print("last:", sys.last_value is error, sys.last_traceback is trace)

    sys.excepthook = hook
    plain()


print("before")
globals()[sys.argv[1]]()
