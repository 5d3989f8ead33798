"""Is interrupted as by Ctrl-C, in the middle of its loop."""

import os
import signal
import sys

print("step 0", flush=True)
if len(sys.argv) > 1:
    import torch

    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (weight * 2).sum().backward()
    optimizer.step()
os.kill(os.getpid(), signal.SIGINT)
print("not reached")
