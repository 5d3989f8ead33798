"""Pickles objects of its own classes, at once and when the interpreter ends."""

import atexit
import pickle
from dataclasses import dataclass


@dataclass
class Batch:
    size: int


def report():
    copy = pickle.loads(pickle.dumps(Batch(8)))
    print(copy, type(copy) is Batch, type(copy).__module__)


report()
atexit.register(report)
