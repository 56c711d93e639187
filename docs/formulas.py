"""Convert the LaTeX formulas of the pages, `$…$` and `$$…$$`, to MathML when the site is built.

Browsers render MathML without scripts, fonts or network access. GitHub renders the same source.
"""

from __future__ import annotations

import html
import re
from typing import Any

from mkdocs.exceptions import PluginError

# What pymdownx.arithmatex makes of $…$ and of $$…$$.
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)
THIN = '<mspace width="0.167em" />'


def mathml(latex: str, display: bool) -> str:
    from latex2mathml.converter import convert

    formula = convert(latex.strip(), display="block" if display else "inline")
    formula = formula.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")  # \sim is a relation, not a letter
    formula = re.sub(r"<mi>[a-z]{2,}</mi>", rf"{THIN}\g<0>{THIN}", formula)  # functions such as log keep their distance
    if unknown := re.search(r"\\[A-Za-z]+", formula):
        raise PluginError(f"the formula {latex!r} has a command that latex2mathml does not know: {unknown[0]}")
    return formula


def on_page_content(content: str, **kwargs: Any) -> str:
    return FORMULA.sub(lambda m: mathml(html.unescape(m["latex"]), m["tag"] == "div"), content)
