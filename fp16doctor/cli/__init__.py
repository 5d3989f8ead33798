"""The command line: one file per command, and ``main`` that turns errors into exit statuses.

Holds no logic of recording, diagnosing or rendering, and imports them only inside a command.
"""
