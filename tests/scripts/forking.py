"""Forks a child that leaves by sys.exit; the parent leaves with the child's status plus one."""

import os
import sys

child = os.fork()
if child == 0:
    print("child")
    sys.exit(6)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("parent")
sys.exit(status + 1)
