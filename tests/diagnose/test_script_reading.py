"""What the reader of scripts knows of names, values and order, and what it says it does not."""

from __future__ import annotations

import ast
import textwrap

import pytest

from fp16doctor.diagnose.script_engine import lint_script
from fp16doctor.diagnose.script_reading.amp import autocasts, in_force, is_scaler, scaled_backwards
from fp16doctor.diagnose.script_reading.flows import is_half
from fp16doctor.diagnose.script_reading.order import always_before, follows
from fp16doctor.diagnose.script_reading.patch import diff, swap, with_argument
from fp16doctor.diagnose.script_reading.products import factors
from fp16doctor.diagnose.script_reading.reaching import assignment
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_reading.training import is_module, stored_format
from fp16doctor.diagnose.script_reading.tree import receiver, spelled
from fp16doctor.diagnose.script_rule import ScriptRule


def read(text: str) -> Script:
    return Script(textwrap.dedent(text), "train.py")


def name(script: Script, called: str) -> ast.Name:
    """The last place in the file that reads the name."""
    found = [n for n in script.tree.nodes if isinstance(n, ast.Name) and n.id == called]
    return max(found, key=lambda n: (n.lineno, n.col_offset))


@pytest.mark.parametrize(
    ("head", "called"),
    [
        ("import torch.nn.functional as F", "F.relu"),
        ("from torch.nn import functional", "functional.relu"),
        ("import torch", "torch.nn.functional.relu"),
        ("from torch.nn.functional import relu as f", "f"),
    ],
)
def test_a_name_is_known_by_what_was_imported(head: str, called: str) -> None:
    script = read(f"{head}\n{called}(x)\n")
    assert [n for _, n in script.dotted_calls] == ["torch.nn.functional.relu"]


def test_a_name_bound_to_something_else_as_well_is_not_known() -> None:
    script = read("from torch.nn.functional import relu\nrelu = wrap(relu)\nrelu(x)\n")
    assert script.dotted_calls == []


def test_a_parameter_has_the_values_of_the_calls_in_the_file() -> None:
    script = read(
        """
        def step(rate, scale=2.0):
            use(rate, scale)

        step(0.5)
        step(0.5, scale=2.0)
        """
    )
    rate, scale = next(c for c in script.calls if spelled(c.func) == "use").args
    assert script.number(rate) == 0.5
    assert script.number(scale) == 2.0


def test_a_parameter_of_a_function_called_with_stars_is_unknown() -> None:
    script = read("def step(rate):\n    use(rate)\n\nstep(*given)\n")
    (rate,) = next(c for c in script.calls if spelled(c.func) == "use").args
    assert script.number(rate) is None


def test_two_values_are_no_value() -> None:
    script = read("a = 1.0\nif b:\n    a = 2.0\nuse(a)\n")
    assert script.number(name(script, "a")) is None


def test_a_name_bound_to_itself_ends() -> None:
    script = read("x = x * 2\nself.y = self.y\nuse(x)\n")
    assert script.number(name(script, "x")) is None
    assert lint_script("import torch\n" + script.text, "train.py")[1] == ()


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("model = Net().half()", "float16"),
        ("model = Net()\nmodel = model.to('cuda')\nmodel = model.half()", "float16"),
        ("model = Net()\nmodel.to(torch.bfloat16)", "bfloat16"),
        ("model = copy.deepcopy(Net()).to(dtype=torch.half)", "float16"),
        ("model = Net().to(device)", None),
        ("model = Net().half()\nmodel.float()", None),
        ("model = load()", None),
        ("model = Net()", "float32"),
    ],
)
def test_the_format_of_a_model(made: str, expected: str | None) -> None:
    head = "import copy\nimport torch\n\nclass Net(torch.nn.Module):\n    pass\n\n"
    script = read(f"{head}{made}\nuse(model)\n")
    assert stored_format(script, name(script, "model")) == expected


def test_a_class_of_the_file_is_a_module_by_its_base() -> None:
    script = read(
        "from torch import nn\n\nclass Net(nn.Module): ...\n\nnet = Net().cuda()\nuse(net)\n"
    )
    assert is_module(script, name(script, "net"))


def test_opposite_sides_of_a_condition_do_not_follow_each_other() -> None:
    script = read("if a:\n    one()\nelse:\n    two()\nif not a:\n    three()\nfour()\n")
    one, two, three, four = (script.place(c) for c in script.calls)
    assert not follows(one, two)
    assert not follows(one, three)
    assert follows(two, three)
    assert follows(one, four)
    assert not always_before(one, four)


def test_nothing_follows_a_side_that_leaves() -> None:
    script = read("for x in y:\n    if a:\n        one()\n        continue\n    two()\n")
    one, two = (script.place(c) for c in script.calls)
    assert not follows(one, two)


def test_a_scaler_is_one_by_how_it_was_made_or_by_use() -> None:
    script = read(
        """
        from torch.amp import GradScaler

        class Trainer:
            def __init__(self, amp):
                self.scaler = GradScaler() if amp else None

            def step(self, loss):
                self.scaler.scale(loss).backward()

        def outside(loss, optimizer, other):
            other.scale(loss).backward()
            other.step(optimizer)
        """
    )
    assert len(scaled_backwards(script)) == 2
    off = read("from torch.amp import GradScaler\ns = GradScaler(enabled=False)\ns.update()\n")
    assert not is_scaler(off, receiver(off.methods("update")[0]))


def test_autocast_reaches_the_forward_of_a_module_called_in_it() -> None:
    script = read(
        """
        import torch

        class Inner(torch.nn.Module):
            def forward(self, x):
                return deep(x)

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = torch.nn.Sequential(Inner(), Inner())

            def forward(self, x):
                return self.blocks(x)

        net = Net()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            net(x)
        """
    )
    (deep,) = [c for c in script.calls if spelled(c.func) == "deep"]
    around = in_force(script, deep)
    assert around is not None
    assert (around.device, around.dtype, around.enabled) == ("cuda", "bfloat16", True)


@pytest.mark.parametrize(
    ("call", "device", "dtype", "enabled"),
    [
        ("torch.cuda.amp.autocast()", "cuda", "float16", True),
        ("torch.autocast('cpu')", "cpu", "bfloat16", True),
        ("torch.autocast(device.type, torch.float16)", "cuda", "float16", True),
        ("torch.amp.autocast('cuda', enabled=args.amp)", "cuda", "float16", None),
        ("torch.autocast(where)", None, None, True),
    ],
)
def test_autocast_is_read_with_its_defaults(
    call: str, device: str | None, dtype: str | None, enabled: bool | None
) -> None:
    script = read(f"import torch\ndevice = torch.device('cuda:0')\nwith {call}:\n    pass\n")
    (found,) = autocasts(script)
    assert (found.device, found.dtype, found.enabled) == (device, dtype, enabled)


def test_a_change_keeps_what_stands_beside_it() -> None:
    script = read('é = f("ü", 1)  # ä\n')
    (call,) = script.calls
    assert '+é = f("ü", 1, a=2)  # ä' in diff(
        "t", script.lines, [with_argument(script.lines, call, "a=2")]
    )
    assert '+é = f("ü", 3)  # ä' in diff("t", script.lines, swap(script.lines, (call.args[1], "3")))


def test_what_is_no_python_is_told_and_a_failing_rule_stops_no_other() -> None:
    _, unread = lint_script("import torch\nif :\n", "train.py")
    assert [(u.file, u.line) for u in unread] == [("train.py", 2)]

    def fail(script: Script) -> None:
        raise ZeroDivisionError("by rule")

    broken = ScriptRule("FD799", "broken-rule", "", fail)  # type: ignore[arg-type]
    found, failed = lint_script("import torch\n", "train.py", [broken])
    assert found == ()
    assert [u.reason for u in failed] == ["check FD799 failed: ZeroDivisionError: by rule"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = a\nx = b\nuse(x)\n", "x = b"),
        ("x = a\nx *= b\nuse(x)\n", "x *= b"),
        ("x = a\nif c:\n    x = b\nuse(x)\n", None),
        ("if c:\n    x = b\n    use(x)\n", "x = b"),
        ("x = a\nfor x in y:\n    use(x)\n", None),
        ("x, z = a\nuse(x)\n", None),
        ("use(x)\nx = a\n", None),
        ("x = a\ndef f():\n    use(x)\n", None),
        ("x = a\nfor i in y:\n    use(x)\n    x = b\n", None),
        ("x = a\nfor i in y:\n    use(x)\n", "x = a"),
        ("for i in y:\n    x = a\n    use(x)\n    x = b\n", "x = a"),
        ("with a as x:\n    use(x)\n", None),
    ],
)
def test_the_assignment_that_certainly_reaches_a_name(text: str, found: str | None) -> None:
    script = read(text)
    used = next(c for c in script.calls if spelled(c.func) == "use").args[0]
    assert isinstance(used, ast.Name)
    made = assignment(script, used)
    assert (None if made is None else spelled(made)) == found


def test_factors_are_those_of_the_place_where_the_product_is_read() -> None:
    script = read("x = a\nx = x * s\nx /= t\nuse(x)\nx = x * u\n")
    used = next(c for c in script.calls if spelled(c.func) == "use").args[0]
    assert [(spelled(f.node), f.divides) for f in factors(script, used)] == [
        ("a", False),
        ("s", False),
        ("t", True),
    ]


@pytest.mark.parametrize(
    ("inner", "severity"),
    [
        ("p", "warning"),
        ("p + 1e-8", "warning"),  # 0 in fp16
        ("p + 1e-6", "note"),
        ("p.clamp(min=1e-6)", "note"),
        ("torch.clamp(p, 1e-9)", "warning"),
    ],
)
def test_a_logarithm_that_is_kept_off_zero_is_a_note(inner: str, severity: str) -> None:
    text = f"""\
import torch

with torch.autocast("cpu", dtype=torch.float16):
    p = torch.softmax(model(x), -1)
    loss = -torch.log({inner}).mean()
"""
    ((found,), _) = lint_script(text, "train.py")
    assert (found.code, found.severity.value) == ("FD721", severity)


@pytest.mark.parametrize(
    ("made", "half"),
    [
        ("Net().half()", True),
        ("Net().cuda().to(torch.float16)", True),
        ("Net()", False),
        ("Net().half().float()", False),
        ("Net().bfloat16()", False),
    ],
)
def test_the_layers_of_a_module_that_is_cast_are_half(made: str, half: bool) -> None:
    script = read(
        f"""
        import torch
        from torch import nn

        class Part(nn.Module):
            def __init__(self):
                self.fc = nn.Linear(2, 2)

            def forward(self, x):
                return use(self.fc(x))

        class Net(nn.Module):
            def __init__(self):
                self.part = Part()

        net = {made}
        """
    )
    used = next(c for c in script.calls if spelled(c.func) == "use").args[0]
    assert is_half(script, used) is half
