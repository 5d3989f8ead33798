"""Stage 1: record what really happened while a training script ran.

Must not know what a recording means (``diagnose``) or how it is shown (``report``).
"""
