"""How the script uses loss scaling, clipping and autocast, one file per kind of fact.

Must not know which uses are faults (``diagnose``).
"""
