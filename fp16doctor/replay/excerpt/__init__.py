"""Cuts a few ops out of a step so that they show its fault by themselves.

``find`` looks for them, ``shrink`` cuts what they are given. Every excerpt that leaves this package
was run: as recorded, and in the wider format beside it.
"""
