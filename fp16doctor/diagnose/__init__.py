"""Rules over recordings and replay traces: what the facts of a run mean.

Must not know how facts are gathered (``record``, ``replay``) or shown (``report``); no torch here.
"""
