"""The name of a model in front of its modules' paths, where another model has the same ones.

Two Sequentials both have a ``4``. A model that is trained alone keeps its plain names: what has
the same ones beside it is a teacher, an average, a discriminator at rest.

Must not know when a model is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from fp16doctor.schema.variables import variables_beside


class RootVariables:
    """The variables that stand in front of paths."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def in_front_of(self, root: nn.Module, plain: Iterable[nn.Module]) -> str:
        """Return the variable that holds ``root`` where its paths need it in front, else "".

        Args:
            root: a model that is called for the first time.
            plain: the models called before whose paths have nothing in front.
        """
        self._known[id(root)] = name = _name_beside_others(root, plain)
        return name

    def of(self, root: nn.Module) -> tuple[str, bool]:
        """Return the variable that holds a model, "" for none, and whether it is in front."""
        name = self._known.get(id(root), "")
        return (name, True) if name else (_variable(root, variables_beside(root)), False)


def _name_beside_others(root: nn.Module, plain: Iterable[nn.Module]) -> str:
    mine = _paths(root)
    if not mine:
        return ""
    space = variables_beside(root)
    trains = _trains(root)
    models = (v for v in space.values() if isinstance(v, nn.Module))
    beside = (*(m for m in models if _trains(m) or not trains), *plain)
    return _variable(root, space) if any(_is_rival(m, root, mine) for m in beside) else ""


def _variable(root: nn.Module, space: Mapping[str, object]) -> str:
    return next((name for name, value in space.items() if value is root), "")


def heads_of(root: nn.Module) -> frozenset[str]:
    """Return what the paths of modules and parameters below a model begin with."""
    return frozenset(path.partition(".")[0] for path in _paths(root))


def _is_rival(model: nn.Module, root: nn.Module, paths: frozenset[str]) -> bool:
    """Tell whether another model, none around it or inside it, has one of its paths."""
    if model is root or paths.isdisjoint(_paths(model)):
        return False
    return {id(m) for m in root.modules()}.isdisjoint(id(m) for m in model.modules())


def _paths(model: nn.Module) -> frozenset[str]:
    modules = (name for name, _ in model.named_modules() if name)
    return frozenset((*modules, *(name for name, _ in model.named_parameters())))


def _trains(model: nn.Module) -> bool:
    return any(p.requires_grad for p in model.parameters())
