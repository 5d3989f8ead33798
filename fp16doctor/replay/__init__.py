"""Stage 2: run a tape again under other precision policies and compare the runs.

Must not know findings or remedies.
"""
