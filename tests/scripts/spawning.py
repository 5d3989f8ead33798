"""Starts a process that has to find this file's function again; argument: spawn or fork."""

import multiprocessing
import sys


def square(x):
    return x * x


if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map(square, [1, 2, 3]))
