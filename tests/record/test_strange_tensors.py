"""Tensors and ops out of the ordinary do not stop a recording, and compute what they did."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from watched import Record, short, step_with


def sparse_gradient() -> Tensor:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()))
    loss = table(torch.tensor([0, 3, 3])).square().sum()
    loss.backward()
    optimizer.step()
    return loss.detach()


def sparse_product() -> Tensor:
    a = torch.eye(3).to_sparse()
    return torch.sparse.mm(a, torch.randn(3, 2)).sum() + a.to_sparse_csr().to_dense().sum()


def mkldnn() -> Tensor:
    return torch.randn(2, 2).to_mkldnn().relu().to_dense().sum()


def nested() -> Tensor:
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    return (ragged * 2).to_padded_tensor(0.0).sum()


def meta() -> Tensor:
    big = torch.empty(1 << 40, device="meta").normal_()
    model = nn.Linear(3, 3, device="meta")
    model(torch.empty(2, 3, device="meta"))
    return torch.tensor(float((big + 1).add_(1).dim()))


def quantized() -> Tensor:
    q = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    return (q.dequantize() + torch.clone(q).dequantize()).sum()


def float8() -> Tensor:
    kinds = [torch.float8_e4m3fn, torch.float8_e5m2]
    return torch.stack([torch.randn(4).to(k).float().sum() for k in kinds]).sum()


def complex_numbers() -> Tensor:
    z = torch.fft.rfft(torch.randn(8))
    halves = torch.randn(3, dtype=torch.complex32)
    return (z * z.conj()).abs().sum() + torch.view_as_real(halves * 2).float().sum()


def no_elements() -> Tensor:
    empty = torch.empty(0, 3)
    return empty.sum() + torch.cat([empty, torch.ones(1, 3)]).sum() + empty.new_empty(0).sum()


def no_dimensions() -> Tensor:
    return torch.tensor(2.0).sqrt() + torch.tensor([1.5]).squeeze()


def inference() -> Tensor:
    with torch.inference_mode():
        y = nn.Linear(2, 2)(torch.randn(2, 2)).relu_()
    return y.clone().sum()


def vmap_and_grad() -> Tensor:
    slope = torch.func.vmap(torch.func.grad(lambda x: (x**3).sum()))(torch.randn(4, 2))
    return slope.sum()


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    TRACED = torch.jit.trace(lambda x: x.tanh() * 2, torch.ones(2))  # type: ignore[no-untyped-call]


def scripted() -> Tensor:
    out: Tensor = TRACED(torch.randn(2)).sum()
    return out


def higher_order() -> Tensor:
    x = torch.randn(3)
    out: Tensor = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))
    return out.sum()


def fake() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        (torch.randn(3, 3) @ torch.randn(3, 3)).relu_()
    return torch.zeros(())


def moved_storage() -> Tensor:
    a, b = torch.randn(4), torch.randn(2)
    a.data = b
    c = torch.empty(0).set_(torch.ones(3).untyped_storage(), 0, (3,), (1,))
    c.resize_(5).fill_(1)
    return a.sum() + c.sum()


def other_modes() -> Tensor:
    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    with Counting():
        out = torch.randn(3).exp()
    with torch.autograd.set_detect_anomaly(True), torch.device("cpu"):
        return out.sum() + torch.ones(2).sum()


ODD = [
    *(sparse_gradient, sparse_product, mkldnn, nested, meta, quantized, float8, complex_numbers),
    *(no_elements, no_dimensions, inference, vmap_and_grad, scripted, higher_order, fake),
    *(moved_storage, other_modes),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ODD, ids=lambda f: f.__name__)
def test_a_step_with(loss: Callable[[], Tensor], record: Record) -> None:
    expected = step_with(loss)()
    seen = record(step_with(loss))
    assert seen.result == expected
    assert seen.steps


# -- subclasses ----------------------------------------------------------------------------------


class Wrapped(torch.Tensor):
    """A tensor that holds another one, and has no memory of its own."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made  # type: ignore[return-value]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = torch.utils._pytree.tree_map(
            lambda a: a.inner if isinstance(a, Wrapped) else a, (args, kwargs or {})
        )
        out = func(*plain[0], **plain[1])
        return Wrapped(out) if isinstance(out, Tensor) and out.dim() else out


class Named(torch.Tensor):
    """A tensor that counts the calls of functions on it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Named.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_the_inner_ops_of_a_wrapper_are_seen(record: Record) -> None:
    def loss() -> Tensor:
        return (Wrapped(torch.full((3,), 2.0)).tanh() * 3).sum()

    seen = record(step_with(loss))
    assert "tanh" in [short(op.op) for op in seen.ops]


def test_a_subclass_does_not_hear_of_us(record: Record) -> None:
    def calls() -> int:
        Named.calls = 0

        def loss() -> Tensor:
            x = torch.randn(3).as_subclass(Named)
            x.mul_(2)
            return (x.exp() + x).sum().as_subclass(Tensor)

        step_with(loss)()
        return Named.calls

    assert record(calls).result == calls()


# -- compiled code -------------------------------------------------------------------------------


def test_a_compiled_function_stays_compiled(record: Record) -> None:
    compiled = [0]

    def backend(graph: Any, inputs: Any) -> Any:
        compiled[0] += 1
        return graph.forward

    @torch.compile(backend=backend)
    def function(x: Tensor) -> Tensor:
        return x.sin().cos().sum()

    step = step_with(lambda: function(torch.randn(3)))
    first = record(step, cautions=("compiled-regions",))
    assert compiled == [1]
    assert record(step).result == first.result == step()
    assert compiled == [1]


def test_a_compiled_model_is_not_disturbed(record: Record) -> None:
    """Compiling traces global hooks: ours get out of the way. Names are those of the model."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled = torch.compile(model, backend="eager")

    def run() -> list[float]:
        torch.manual_seed(0)
        losses = []
        for _ in range(2):
            loss = compiled(torch.randn(2, 3)).square().sum()
            model.zero_grad()
            loss.backward()
            losses.append(loss.item())
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return losses

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        seen = record(run, cautions=("compiled-regions",))
        assert list(warnings.filters) == before
    assert {leaf.name for leaf in seen.tapes[0].leaves.values() if leaf.is_parameter} == {
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    }
    assert len(seen.steps) == 1


def test_a_zero_tensor_has_no_memory_to_look_at(record: Record) -> None:
    """The gradient of sgn is a tensor without storage behind it; reading it would crash."""
    w = torch.randn(4, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)

    def train() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            torch.sgn(w).sum().backward()
            optimizer.step()

    watched = record(train)
    assert len(watched.steps) == 2
    assert not watched.recorder.cautions


def test_a_conjugated_argument_makes_an_op_opaque(record: Record) -> None:
    z = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    optimizer = torch.optim.SGD([z], lr=0.1)

    def train() -> None:
        optimizer.zero_grad()
        (z.conj() @ z).real.backward()
        optimizer.step()

    watched = record(train)
    assert any(call.opaque for call in watched.ops)


class TestNames:
    @staticmethod
    def paths(record: Record, model: nn.Module, *cautions: str) -> set[str | None]:
        def step() -> None:
            model(torch.ones(2, 3)).sum().backward()

        seen = record(step, cautions=cautions)
        return {op.site.module_path for op in seen.tapes[0].ops if "addmm" in op.op}

    def test_a_compiled_model_that_cannot_be_counted_is_watched(self, record: Record) -> None:
        """``len`` of torch.compile's wrapper raises where the model has none."""

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(3, 2)

            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = self.head(x)
                return out

        compiled = torch.compile(Model(), backend="aot_eager")
        assert self.paths(record, compiled, "compiled-regions") == {""}

    def test_a_model_that_counts_no_children_is_watched(self, record: Record) -> None:
        class Empty(nn.Linear):
            def __len__(self) -> int:
                return 0

        assert self.paths(record, Empty(3, 2)) == {""}
