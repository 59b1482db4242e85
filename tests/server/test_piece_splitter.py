"""Thoughts are told from answers, however the text is cut."""

from __future__ import annotations

import pytest

import edgekv
from edgekv.api.reply_request import Piece
from edgekv.generation.reasoning import opens_reasoning
from edgekv.server.session_reply import PieceSplitter

THINKING = (
    "<think>\nIs 1 < 2, or </thin like a tag?\n  It is.\n</think>\n\nYes: a <think> in </think> an answer is text.\n"
)


def split(pieces, **options):
    """(thoughts, answer) of a reply in pieces."""
    splitter = PieceSplitter(**options)
    parts = [part for piece in pieces for part in splitter.push(piece)] + splitter.rest()
    assert all(text for _, text in parts)
    return tuple("".join(text for is_thought, text in parts if is_thought == wanted) for wanted in (True, False))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 1000])
def test_tags_may_be_cut_anywhere(size):
    pieces = [THINKING[i : i + size] for i in range(0, len(THINKING), size)]
    thoughts, answer = split(pieces)
    assert thoughts == "Is 1 < 2, or </thin like a tag?\n  It is."
    assert answer == "Yes: a <think> in </think> an answer is text.\n"


@pytest.mark.parametrize(
    ("reply", "thoughts", "answer"),
    [
        ("Paris.", "", "Paris."),
        ("  Paris.", "", "  Paris."),
        ("A <think> is a tag.", "", "A <think> is a tag."),
        ("<thin", "", "<thin"),
        ("", "", ""),
        ("<think>\n\n</think>\n\nParis.", "", "Paris."),
        ("<think>cut short ", "cut short", ""),
        ("<think>cut </thi", "cut </thi", ""),
        ("<think> </thi", "</thi", ""),
        ("<think>a</think>", "a", ""),
        ("<think></think>\n\nParis.", "", "Paris."),
    ],
)
def test_what_is_thought_and_what_is_said(reply, thoughts, answer):
    assert split(list(reply)) == (thoughts, answer)


def test_a_template_may_have_opened_the_tag():
    assert opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert split(list("\nHm.\n</think>\n\nParis."), begun=True) == ("Hm.", "Paris.")


def test_a_text_that_is_no_reply_has_no_thoughts():
    assert split(list("<think>a</think> b"), begun=None) == ("", "<think>a</think> b")


def test_pieces_that_were_thought_are_counted():
    splitter = PieceSplitter()
    for piece in ("<think>", "one", " two", "</think>", "\n\n", "three"):
        splitter.push(piece)
    assert splitter.n_thoughts == 3  # the closing tag counts too


def test_log_probabilities_come_with_the_text_after_them():
    pieces = [edgekv.Piece(text, text.encode()) for text in ("<think>", "a ", "b", "</think>", "c", " </")]
    told = list(PieceSplitter().events(pieces))
    assert told == [
        Piece("a", True, b"<think>a "),
        Piece(" b", True, b"b"),
        Piece("c", False, b"</think>c"),
        Piece(" </", False, b" </"),
    ]
    assert list(PieceSplitter().events([edgekv.Piece("", b"end")])) == [Piece("", False, b"end")]


def test_what_is_certain_is_not_held_back():
    splitter = PieceSplitter()
    assert splitter.push("<think>one two <") == [(True, "one two")]
    assert splitter.push(" three") == [(True, " < three")]
    assert splitter.push("</think>") == []
    assert splitter.push("\n\nfour ") == [(False, "four ")]
