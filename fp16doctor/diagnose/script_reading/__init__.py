"""Reads a script's source with ``ast``: names, values, order of statements, words of torch.

Runs nothing and imports nothing of what it reads.
"""
