"""One file per rule; ``rule.all_rules`` imports them all, in name order.

Nothing is listed here: a new file is a new rule.
"""
