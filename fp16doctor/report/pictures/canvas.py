"""Matplotlib figures as inline SVG: equal bytes each time, in the colours of the page.

Colours are placeholders while matplotlib draws, and CSS variables of the page afterwards, so that
one picture serves light, dark and print. Must not know what is drawn.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any

# Placeholder -> CSS variable. No two colours of one picture are told apart by colour alone.
INK, SOFT, LINE, WELL = "#010203", "#020304", "#030405", "#040506"
FIRST, SECOND, THIRD, FOURTH = "#050607", "#060708", "#070809", "#08090a"
BAD = "#090a0b"
_VARIABLES = {
    INK: "--ink", SOFT: "--soft", LINE: "--line", WELL: "--well", FIRST: "--first",
    SECOND: "--second", THIRD: "--third", FOURTH: "--fourth", BAD: "--error",
}  # fmt: skip
WIDTH = 8.6  # inches of 72 px
_ABOVE, _BELOW = 0.3, 0.5  # inches for titles of lines, and for the ticks' labels
_CHARACTER = 0.078  # inches of a label's characters, on average
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, in the reader's font
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same layout everywhere
    "font.size": 9,
    "text.parse_math": False,  # a module may be called $x_1$
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "text.color": INK,
    "legend.frameon": False,
    "axes.unicode_minus": True,
    "path.simplify": False,
}
_HEAD = re.compile(r"^.*?(?=<svg\b)", re.DOTALL)
_SIZE = re.compile(r' width="[\d.]+pt" height="[\d.]+pt"')
_NAMESPACE = re.compile(r' xmlns(?::\w+)?="[^"]*"')  # HTML knows them, and no address is needed
_FONT = re.compile(r"font: [^;\"]*?([\d.]+px)[^;\"]*;?")


def drawn(
    name: str,
    height: float,
    draw: Callable[[Any], None],
    *,
    left: float = 0.75,
    right: float = 0.1,
    below: float = 0.0,
) -> str:
    """Return the SVG of what ``draw`` puts on a figure of WIDTH × ``height`` inches.

    ``name`` keeps the ids of several pictures of one page apart; ``left`` and ``right`` are the
    margins in inches (a layout that looks at every label takes seconds for some hundred of them),
    ``below`` what is left free under the lowest axis, for a legend.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {**_STYLE, "svg.hashsalt": name}
    logger = logging.getLogger("matplotlib")
    level = logger.level
    with warnings.catch_warnings(), mpl.rc_context(style):
        warnings.simplefilter("ignore")  # glyphs that the layout's font lacks
        logger.setLevel(logging.ERROR)
        try:
            figure = Figure(figsize=(WIDTH, height))
            FigureCanvasSVG(figure)
            figure.subplots_adjust(
                left=left / WIDTH,
                right=1 - right / WIDTH,
                bottom=(_BELOW + below) / height,
                top=1 - _ABOVE / height,
            )
            draw(figure)
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        finally:
            logger.setLevel(level)
    return _inline(text.getvalue())


def margin(labels: list[str]) -> float:
    """Return the inches that labels beside an axis need."""
    return 0.2 + _CHARACTER * max(map(len, labels), default=0)


def _inline(svg: str) -> str:
    """Leave out the prolog, take the page's font and colours."""
    svg = _SIZE.sub("", _HEAD.sub("", svg), count=1)
    svg = _NAMESPACE.sub("", svg).replace("xlink:href=", "href=")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = _FONT.sub(r"font-size: \1;", svg)
    for placeholder, variable in _VARIABLES.items():
        svg = svg.replace(placeholder, f"var({variable})")
    return svg.replace("<svg ", '<svg aria-hidden="true" ', 1)
