"""Imported by its siblings."""


def greeting():
    return "hello from a sibling"
