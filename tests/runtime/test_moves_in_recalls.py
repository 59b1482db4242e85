"""A ceiling that moves while evicted tokens are recalled: the recall makes way, and begins again with fewer cells."""

from __future__ import annotations

import pytest
from driven_loop import driven
from moved_ceilings import LOW, MODEL, SETTINGS, TEXT, ceiling_of
from small import words

import edgekv
from edgekv.errors import CeilingError, SwapError
from edgekv.loop.loop_messages import MoveCeiling, Raised
from edgekv.loop.open_reply import Post

ARCHIVED = {**SETTINGS, "archive": "1GiB"}
SCANS = 32  # 16 heads, in each of two rounds
RECALLED = 16  # cells of a head


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(**MODEL)


class Moves:
    """Moves the ceiling of the first conversation between two heads of a recall, and once more when that is answered.

    at: how many heads were scanned, of all rounds
    n_scanned: steps of the loop between two heads
    answered: (answer, recalls that ended between move and answer, cells) of each move
    """

    def __init__(self, loop, at, *ceilings):
        self.n_scanned, self.answered = 0, []
        self._loop, self._at, self._ceilings = loop, at, list(ceilings)
        loop.begin_steps(self._look)

    def _look(self, _):
        if any(reply.is_recalling for reply in self._loop.loop._reporting):
            if self.n_scanned == self._at:
                self._ask()
            self.n_scanned += 1

    def _ask(self):
        block_loop = self._loop.state(1).block_loop
        n_before = block_loop.work.recalls

        def note(answer):
            self.answered.append((answer, block_loop.work.recalls - n_before, block_loop.cache.n_cells))
            if self._ceilings:
                self._ask()

        self._loop.loop.take(Post(MoveCeiling(self._ceilings.pop(0)), note, "who moves"))


def read(loop, text=TEXT, n=8):
    """Have the first conversation read a text and reply; returns what it said, kept, and how it ended."""
    [(said, stats)] = loop.reply(1, text=text, n=n)
    loop.begin_steps()
    return said, loop.kept(1), stats


@pytest.mark.parametrize("at", [0, 1, 15, 16, SCANS - 1])
def test_a_recall_makes_way_and_begins_again_with_the_cells_of_the_lower_ceiling(model, at):
    with driven(model, **ARCHIVED) as loop:
        moves = Moves(loop, at, ceiling_of(loop.engine))
        _, _, stats = read(loop)
        [(plan, n_recalls, n_cells)] = moves.answered
        assert 0.7 * LOW < plan.budget_cells <= LOW
        assert n_cells <= plan.budget_cells
        assert n_recalls == 0
        assert moves.n_scanned == at + 1
        assert (stats.recalls, stats.recalled_cells, stats.generated_tokens) == (1, RECALLED, 8)


def test_where_in_a_round_a_recall_makes_way_changes_no_reply(model):
    found = []
    for at in (0, 5, 15):
        with driven(model, **ARCHIVED) as loop:
            Moves(loop, at, ceiling_of(loop.engine))
            said, cells, _ = read(loop)
            found.append((said, cells))
    assert found[0] == found[1] == found[2]


def test_a_recall_in_the_midst_of_a_reply_makes_way(model):
    """The prompt recalls nothing, because all of its tokens have cells."""
    with driven(model, **ARCHIVED) as loop:
        moves = Moves(loop, 3, ceiling_of(loop.engine))
        _, _, stats = read(loop, words(60), n=150)
        [(plan, n_recalls, n_cells)] = moves.answered
        assert n_recalls == 0
        assert n_cells <= plan.budget_cells
        assert stats.recalls == 1
        assert stats.generated_tokens == 150


def test_a_move_after_the_recall_has_the_reply_recall_again(model):
    """The new budget may have no room for what was recalled."""
    with driven(model, **ARCHIVED) as loop:
        ceilings = [ceiling_of(loop.engine)]

        def move(_):
            if ceilings and loop.state(1).block_loop.work.recalls == 1:
                loop.loop.take(Post(MoveCeiling(ceilings.pop()), lambda _: None, "who moves"))

        loop.begin_steps(move)
        _, _, stats = read(loop, n=80)
        assert (stats.recalls, stats.recalled_cells) == (2, 2 * RECALLED)
        assert stats.cells_used <= LOW + SETTINGS["block"]


def test_a_second_move_waits_for_the_recall(model):
    with driven(model, **ARCHIVED) as loop:
        moves = Moves(loop, 3, ceiling_of(loop.engine), ceiling_of(loop.engine, 64))
        _, _, stats = read(loop)
        (first, *_), (second, n_recalls, n_cells) = moves.answered
        assert n_cells <= second.budget_cells < first.budget_cells
        assert n_recalls == 1
        assert (stats.recalls, stats.recalled_cells) == (1, RECALLED)


def test_a_ceiling_that_is_refused_leaves_a_recall_alone(model):
    with driven(model, **ARCHIVED) as loop:
        moves = Moves(loop, 3, 1 << 20)
        _, _, stats = read(loop)
        [(answer, _, _)] = moves.answered
        assert isinstance(answer, Raised)
        assert isinstance(answer.error, CeilingError)
        assert moves.n_scanned == SCANS
        assert (stats.recalls, stats.recalled_cells) == (1, RECALLED)


@pytest.mark.parametrize(("at", "slots"), [(2, 1), (20, 1), (20, 2)])
def test_cells_that_a_recall_lends_come_back_as_they_were(model, at, slots):
    """Others evict in the only cells there are, or in those of another slot, and the recall begins again."""
    found = []
    for n_others in (0, 2):
        with driven(model, 1 + n_others, log=True, parallel=slots, **ARCHIVED) as loop:
            for other in range(2, 2 + n_others):
                loop.reply(other, text=words(60 * other), n=2)
            moves = Moves(loop, at, ceiling_of(loop.engine))
            said, cells, stats = read(loop)
            [(plan, _, _)] = moves.answered
            assert (stats.recalls, stats.recalled_cells) == (1, RECALLED)
            found.append((said, cells))
            for other in range(2, 2 + n_others):
                assert loop.state(other).n_cells <= plan.budget_cells
                loop.reply(other, text="and then", n=2)
    assert found[0] == found[1]


def test_a_recall_whose_cells_cannot_be_read_back_ends_its_reply_alone(model):
    with driven(model, 2, **ARCHIVED) as loop:
        loop.reply(2, text=TEXT, n=2)
        Moves(loop, 3, ceiling_of(loop.engine))
        load = loop.engine.slots._load

        def load_others(sequence, kept, block_loop):
            if sequence is loop.state(1):
                block_loop.clear()
                raise SwapError("the disk is gone")
            load(sequence, kept, block_loop)

        loop.engine.slots._load = load_others
        with pytest.raises(edgekv.SessionEvictedError, match="cannot be read back; open another"):
            loop.reply(1, text=TEXT)
        loop.begin_steps()
        loop.reply(2, text="and then", n=2)
