"""One file per rule over a script's source; ``script_rule.all_script_rules`` imports them all.

Nothing is listed here: a new file is a new rule.
"""
