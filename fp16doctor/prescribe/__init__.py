"""From findings to cures: what is proposed, and what the trial of it showed.

Must not know how findings are found (``diagnose``) or shown (``report``).
"""
