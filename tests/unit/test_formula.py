"""Formulas in one line, from the elements of MathML and of Word."""

from __future__ import annotations

import re

import pytest

from edgekv.documents.formula import Formula


def line(markup):
    """Return a formula in one line. markup: elements with at most an attribute `val`"""
    formula = Formula()
    for end, tag, value, text in re.findall(r"<(/?)(\w+)(?: val='(.*?)')?>|([^<]+)", markup):
        if text:
            formula.text(text)
        elif end:
            formula.end(tag)
        else:
            formula.start(tag, value)
    return formula.line()


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<mn>3</mn><mfrac><mn>1</mn><mn>2</mn></mfrac>", "3 1/2"),
        ("<mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mi>c</mi></mfrac>", "(a+b)/c"),
        ("<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>", "x_i^2"),
        ("<mover><mi>x</mi><mo>\u00af</mo></mover>", "x\u00af"),
        ("<msqrt><mi>x</mi><mo>+</mo><mn>1</mn></msqrt>", "\u221a(x+1)"),
        ("<mroot><mi>x</mi><mn>3</mn></mroot>", "\u221a[3]x"),
        ("<mtable><mtr><mtd>1</mtd><mtd>2</mtd></mtr><mtr><mtd>3</mtd><mtd>4</mtd></mtr></mtable>", "1, 2; 3, 4"),
        ("<sSup><e><r>10</r></e><sup><r>6</r></sup></sSup>", "10^6"),
        ("<rad><deg></deg><e>x</e></rad>", "\u221ax"),
        ("<rad><deg>3</deg><e>x</e></rad>", "\u221a[3]x"),
        ("<d><dPr><begChr val='['></begChr></dPr><e>a, b</e></d>", "[a, b)"),
        (
            "<nary><naryPr><chr val='\u2211'></chr></naryPr><sub>i=1</sub><sup>n</sup><e>i</e></nary>",
            "\u2211_(i=1)^n i",
        ),
        ("<mfrac><mn>1</mn></mrow></x><mn>2</mn>", "1/2"),  # damaged
    ],
)
def test_a_formula_is_a_line(markup, text):
    assert line(markup) == text
