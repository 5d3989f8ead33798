from __future__ import annotations

from making import event, observed, plain, site, trace
from ranged import output, seen_ranges

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rules.growing_residual_stream import growing_residual_stream
from fp16doctor.diagnose.rules.oversized_initial_weights import oversized_initial_weights
from fp16doctor.schema.finding import Fault, Severity
from fp16doctor.schema.layers import LayerGain
from fp16doctor.schema.trace import ReplayTrace


def layers(*growth: float, size: float = 4.0, start: float = 1.0) -> tuple[LayerGain, ...]:
    """Layers of 32 inputs whose weights are ``size`` times He's standard deviation."""
    found, passing = [], start
    for number, factor in enumerate(growth):
        where = site("aten.addmm.default", index=10 * number, module_path=f"layers.{number}")
        weight = f"layers.{number}.weight"
        found.append(LayerGain(where, weight, 32, size / 4, passing, passing * factor * 1.4))
        passing *= factor
    return tuple(found)


def first(*events: object, gains: tuple[LayerGain, ...]) -> ReplayTrace:
    return trace(*events, layers=gains)  # type: ignore[arg-type]


BORN = event(index=60, module_path="layers.6")
FIRING = observed(first(BORN, gains=layers(*[4.0] * 8)), steps=plain(1))
SILENT = observed(first(BORN, gains=layers(*[1.0] * 8, size=1.0)), steps=plain(1))


def test_growth_by_weights_that_overflows_is_an_error_of_the_initialisation() -> None:
    (finding,) = oversized_initial_weights(FIRING)
    assert (finding.fault, finding.severity) == (Fault.INITIALIZATION, Severity.ERROR)
    assert "8 layers in a row" in finding.what
    assert "are 4 times √(2/fan_in): values grow by 4 a layer" in finding.what
    assert finding.site == BORN.site


def test_the_overflow_is_its_consequence() -> None:
    found = [f for f in diagnose(FIRING)[0] if f.severity is not Severity.NOTE]
    assert [f.code for f in found] == ["FD502"]
    assert found[0].subsumes == ("FD101",)
    assert found[0].site == BORN.site


def test_an_overflow_in_front_of_the_layers_is_none() -> None:
    gains = tuple(g for g in layers(*[4.0] * 12) if g.site.index >= 70)
    seen = observed(first(BORN, gains=gains), steps=plain(1))
    (finding,) = oversized_initial_weights(seen)
    assert finding.severity is Severity.NOTE
    assert [f.code for f in diagnose(seen)[0] if f.severity is Severity.ERROR] == ["FD101"]


def test_an_overflow_after_long_training_is_not_theirs() -> None:
    late = trace(event(index=60, step=90, module_path="layers.6"), step=90)
    seen = observed(first(gains=layers(*[4.0] * 8)), late, steps=plain(100))
    (finding,) = oversized_initial_weights(seen)
    assert finding.severity is Severity.NOTE


def test_large_inputs_are_no_large_weights() -> None:
    """The same large values, which no layer makes larger."""
    hot = layers(*[1.0] * 8, size=1.0, start=2e4)
    assert not list(oversized_initial_weights(observed(first(BORN, gains=hot))))
    wide = layers(*[1.0] * 8, size=4.0, start=2e4)  # a normalisation takes the gain back
    assert not list(oversized_initial_weights(observed(first(BORN, gains=wide))))


def test_a_few_layers_are_no_run() -> None:
    assert not list(oversized_initial_weights(observed(first(BORN, gains=layers(*[4.0] * 3)))))


def test_a_layer_that_is_not_fed_by_the_one_before_begins_anew() -> None:
    parts = (*layers(*[4.0] * 3), *layers(*[4.0] * 3, start=1e9))
    assert not list(oversized_initial_weights(observed(first(BORN, gains=parts))))


def test_a_plain_network_is_not_called_a_residual_stream() -> None:
    growing = [output(f"layers.{i}", 4.0**i, cls="Linear") for i in range(8)]
    gains = first(BORN, gains=layers(*[4.0] * 8))
    assert not list(growing_residual_stream(seen_ranges(*growing, traces=(gains,))))
    assert list(growing_residual_stream(seen_ranges(*growing)))
