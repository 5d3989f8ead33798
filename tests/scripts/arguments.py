"""Takes options of its own, some of which fp16doctor has as well."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int)
parser.add_argument("-o", dest="out")
parser.add_argument("-v", action="store_true")
print(parser.parse_args())
