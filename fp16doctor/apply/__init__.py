"""Cures on a live model: what a user pastes, and what a confirming run patches in from outside.

Must not know how a cure is found or tried by replay.
"""
