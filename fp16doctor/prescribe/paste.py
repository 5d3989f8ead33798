"""A keep-list as plain torch to paste: it does what the trial did.

Inputs up, autocast off, outputs left in fp32; in a model that is stored in 16 bits every other
module casts its own inputs, as autocast does elsewhere.

Must not know how a keep-list is found or tried.
"""

from __future__ import annotations

_MODULES = """\
def to(dtype, x):  # tensors in tuples, lists and dicts too
    if torch.is_tensor(x):
        return x.to(dtype) if x.is_floating_point() else x
    if isinstance(x, dict):
        return {k: to(dtype, v) for k, v in x.items()}
    return type(x)(to(dtype, v) for v in x) if type(x) in (tuple, list) else x

def in_fp32(module):
    forward = module.float().forward
    def wide(*args, **kwargs):
        with torch.autocast(DEVICE, enabled=False):
            return forward(*to(torch.float32, args), **to(torch.float32, kwargs))
    module.forward = wide

def in_own_format(module, args):
    return to(next(module.parameters(recurse=False)).dtype, args)

for name in NAMES:
    in_fp32(model.get_submodule(name))
for module in model.modules():  # a model in 16 bits casts where it goes on
    own = {p.dtype for p in module.parameters(recurse=False)}
    if own & {torch.float16, torch.bfloat16}:
        module.register_forward_pre_hook(in_own_format)"""


def pasted(targets: tuple[str, ...], device: str) -> str:
    """Return code for targets ``module:…``, and a comment for each of another kind.

    It expects ``torch`` and ``model`` in place; ``device`` is "cpu" or "cuda".
    """
    names = [t.partition(":")[2] for t in targets if t.startswith("module:")]
    others = [t.partition(":")[2] for t in targets if not t.startswith("module:")]
    code = _MODULES.replace("DEVICE", repr(device)).replace("NAMES", repr(names))
    notes = [
        f"# {place}: call .float() on its inputs, inside torch.autocast({device!r}, enabled=False)"
        for place in others
    ]
    return "\n".join([code, *notes] if names else notes)
