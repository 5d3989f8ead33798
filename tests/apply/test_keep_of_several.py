"""A keep-list whose paths begin with a variable reaches the model that the variable holds alone."""

from __future__ import annotations

from torch import nn

from fp16doctor.apply.keep_list import _name_below


def test_the_variable_in_front_is_the_model_s_own() -> None:
    first, second = (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    assert _name_below(first, "first.1") == "1"
    assert _name_below(second, "first.1") == ""
    assert _name_below(second, "1") == "1"
    assert _name_below(first, "none.1") == ""


def test_a_module_that_is_called_like_the_model_comes_first() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 2))

    net = Net()
    assert _name_below(net, "net.0") == "net.0"
