"""Shows a Diagnosis: one self-contained HTML page, or text for a terminal.

A pure function of the Diagnosis; must not import torch, and must not decide anything.
"""
