"""Kept sessions: a folder that grows with the conversation, and is gone on with after any end of the process."""

from __future__ import annotations

import itertools
import shutil

import pytest
from archived_kinds import ARCHIVED, KINDS
from small import SETTINGS, words

import edgekv
from edgekv.archive.row_folder import RowFolder
from edgekv.binding.cache import Cache
from edgekv.binding.row_archive import RowArchive
from edgekv.errors import ConfigError, SessionError, SessionFileError
from edgekv.generation.sampler import GREEDY
from edgekv.store.journal import Journal
from edgekv.store.kept_folder import is_kept

KEPT = [
    *(pytest.param(options, id=name) for name, options in KINDS.items()),
    pytest.param({"prompt_lookup": "on"}, id="drafts"),
    pytest.param({"parallel": 2}, id="slots"),
    pytest.param({"isolated": True}, id="isolated", marks=pytest.mark.nightly),  # tests of the server have one, too
]
pytestmark = pytest.mark.usefixtures("talkative")


def said(session, question="What was it?", n=40):
    return "".join(session.chat(question, max_tokens=n, sampling=GREEDY, allow_loops=True))


def log_of(session):
    return session.n_past, [*session.turns()], "".join(session.text())


def next_reply(session):
    return said(session, "And then?")


def after_going_back(session, n):
    """Return what a session without checkpoints says after it went back to n tokens, with cells chosen anew."""
    session.read("more")
    session.rewind(n)
    return next_reply(session)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "it.session"


@pytest.fixture(scope="module")
def kept_runtime(open_runtime):
    with open_runtime(**ARCHIVED) as rt:
        assert rt.keeps_sessions
        yield rt


@pytest.fixture
def kept(kept_runtime, folder):
    """A session that is kept, and has read more than its cells hold."""
    with kept_runtime.session(history=True, checkpoint_bytes=0) as session:
        session.keep(folder)
        session.read(words(150))
        said(session)
        yield session


def killed(folder, into):
    """Return a copy of a folder, as a kill at this moment leaves it."""
    return shutil.copytree(folder, into)


@pytest.mark.parametrize("options", KEPT)
def test_a_killed_session_goes_on_as_from_its_log(open_runtime, folder, tmp_path, options):
    with open_runtime(**ARCHIVED | options) as rt, rt.session("Be brief.", history=True, checkpoint_bytes=0) as session:
        session.keep(folder)
        session.read(words(150))
        said(session)
        session.read(words(30))  # the last token of the reply is fed, too: going back leaves it out
        copies = [killed(folder, tmp_path / f"{i}.session") for i in range(2)]
        log = log_of(session)
        expected = after_going_back(session, session.n_past)
    with open_runtime(**ARCHIVED | options) as rt:
        for copy, keep in zip(copies, (False, True), strict=True):
            with rt.load_session(copy, keep=keep) as session:
                assert log_of(session) == log
                assert session.system == "Be brief."
                assert next_reply(session) == expected
                assert (session.stats.archive_failure, session.stats.keeping_failure) == ("", "")
                assert session.stats.forgotten_tokens == 0
                log_after = log_of(session)
            with rt.load_session(copy) as session:
                assert log_of(session) == (log_after if keep else log)


def test_no_token_is_decoded_again(kept, kept_runtime, folder, tmp_path, monkeypatch):
    copy = killed(folder, tmp_path / "copy.session")
    monkeypatch.setattr(Cache, "feed", None)
    with kept_runtime.load_session(copy) as session:
        assert session.n_past == kept.n_past


STEPS = (
    lambda session: session.read(words(40)),
    lambda session: said(session),
    lambda session: said(session, words(20)),
    lambda session: session.rewind(150),
    lambda session: said(session, words(20, "other")),
    lambda session: session.rewind(70),
    lambda session: said(session, n=40),
    lambda session: goes_on(session, ids_of(session)[:60]),
)


def ids_of(session):
    """Return the tokens of a session, with the one that is generated and not fed yet."""
    state = session._conversation.state
    return [*state.history.tokens(0, session.n_past + len(state.pending), state.pending)]


def goes_on(session, tokens):
    """Return what a session says after these tokens, which it goes back to, and three more."""
    history = session.continue_from([*tokens, 5, 6, 7], max_tokens=20, sampling=GREEDY, allow_loops=True)
    return "".join(history)


def copied_at_writes(monkeypatch, folder, into):
    """Return a list that gets a copy of a folder before each write to it, as a kill leaves it."""
    copies = []

    def watched(owner, name):
        method = getattr(owner, name)

        def call(*arguments, **further):
            if is_kept(folder):
                copies.append(killed(folder, into / f"{len(copies)}.session"))
            return method(*arguments, **further)

        monkeypatch.setattr(owner, name, call)

    watched(Journal, "append")
    watched(RowArchive, "take")
    watched(RowArchive, "write")
    watched(RowFolder, "remove_others")
    return copies


def test_a_kill_at_any_write_leaves_every_whole_turn(kept_runtime, folder, tmp_path, monkeypatch):
    ends = []  # number of copies and tokens after each step
    with kept_runtime.session(history=True, checkpoint_bytes=0) as session, monkeypatch.context() as patch:
        session.keep(folder)
        copies = copied_at_writes(patch, folder, tmp_path)
        for step in STEPS:
            step(session)
            ends.append((len(copies), ids_of(session)))
    first = 0
    before = []
    n_anew = kept_runtime.options.spare_cells // 4  # tokens at the end of a prompt that are read anew, to recall
    for i, (end, after) in enumerate(ends):
        for number, copy in enumerate(copies[first:end]):
            with kept_runtime.load_session(copy) as loaded:
                tokens, n_past = ids_of(loaded), loaded.n_past
                assert tokens == before or (
                    tokens == after[: len(tokens)] and len(tokens) >= len(common(before, after)) - n_anew
                )
                if number % 8 == 3 and tokens != before:
                    assert goes_on(loaded, tokens) == replayed(kept_runtime, i, n_past, tokens)
        first, before = end, after


def common(before, after):
    """Return the tokens that two logs begin with."""
    return [a for a, b in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))]


def replayed(runtime, n_steps, n_past, tokens):
    """Return what a session that nobody kills says after these tokens, of which n_past had cells."""
    with runtime.session(history=True, checkpoint_bytes=0) as session:
        for step in STEPS[: n_steps + 1]:
            step(session)
        goes_on(session, ids_of(session))  # now it has to go back, and chooses its cells anew
        session.rewind(n_past)
        return goes_on(session, tokens)


def test_rows_that_are_written_over_are_not_believed(kept, kept_runtime, folder, tmp_path, monkeypatch):
    before = ids_of(kept)
    with monkeypatch.context() as patch:
        copies = copied_at_writes(patch, folder, tmp_path)
        goes_on(kept, before[:200] + before[:100])
    fed, feed = [], Cache.feed
    monkeypatch.setattr(Cache, "feed", lambda cache, tokens, **how: fed.extend(tokens) or feed(cache, tokens, **how))
    n_read_again = 0
    for copy in copies:
        fed.clear()
        with kept_runtime.load_session(copy) as loaded:
            if ids_of(loaded) == before:
                assert fed in ([], before[200 : loaded.n_past])
                n_read_again += len(fed) > 0
    assert n_read_again > 0


def test_what_is_torn_at_the_end_is_cut(kept, kept_runtime, folder, tmp_path):
    whole = log_of(kept)
    at = (folder / "journal").stat().st_size
    said(kept)
    data = (folder / "journal").read_bytes()
    for n in (at + 1, at + 17, len(data) - 1):
        copy = killed(folder, tmp_path / f"{n}.session")
        (copy / "journal").write_bytes(data[:n] + bytes(30))  # a file may be longer than what reached the disk
        with kept_runtime.load_session(copy, keep=True) as session:
            assert log_of(session)[0] >= whole[0]
            said(session)
            log = log_of(session)
        with kept_runtime.load_session(copy) as session:
            assert log_of(session) == log


def test_a_damaged_record_before_others_is_refused(kept, kept_runtime, folder, tmp_path):
    said(kept)
    data = bytearray((folder / "journal").read_bytes())
    data[len(data) // 3] ^= 1
    copy = killed(folder, tmp_path / "copy.session")
    (copy / "journal").write_bytes(data)
    with pytest.raises(SessionFileError, match=r"copy.session' is damaged: its record at byte [\d,]+ is not what was"):
        kept_runtime.load_session(copy, keep=True)


@pytest.mark.parametrize("spoil", ["cut", "flipped", "gone"])
def test_rows_that_cannot_be_had_are_computed_again(kept, kept_runtime, folder, tmp_path, spoil):
    copy = killed(folder, tmp_path / "copy.session")
    rows = copy / "rows-0"
    if spoil == "gone":
        rows.unlink()
    elif spoil == "cut":
        rows.write_bytes(rows.read_bytes()[: rows.stat().st_size // 3])
    else:
        data = bytearray(rows.read_bytes())
        data[len(data) // 2] ^= 1
        rows.write_bytes(data)
    for _ in range(2):  # they are written again
        with kept_runtime.load_session(copy, keep=True) as session:
            assert log_of(session)[1:] == log_of(kept)[1:]
            assert (session._conversation.state.archive.failure, session.n_past) == ("", kept.n_past)
            assert session._conversation.state.archive.n_tokens == kept.n_past


def test_what_one_appends_to_another_cannot_open(kept, kept_runtime, folder):
    for keep in (False, True):
        with pytest.raises(SessionFileError, match=r"it.session' is open elsewhere, and grows there; end that session"):
            kept_runtime.load_session(folder, keep=keep)
    said(kept)
    assert kept.stats.keeping_failure == ""


def test_many_may_read_what_nobody_appends_to(kept, kept_runtime, folder, tmp_path):
    copy = killed(folder, tmp_path / "copy.session")
    with kept_runtime.load_session(copy) as first, kept_runtime.load_session(copy, history=False) as second:
        assert next_reply(first) == next_reply(second)
        with pytest.raises(SessionFileError, match="is open elsewhere"):
            kept_runtime.load_session(copy, keep=True)
    kept_runtime.load_session(copy, keep=True).close()


def test_a_full_disk_stops_no_reply(kept, kept_runtime, folder, tmp_path, monkeypatch):
    n_kept = kept.n_past

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full)
        assert said(kept)
        expected = f"it.session' keeps {n_kept:,} tokens, and none after them: No space left on device"
        assert kept.stats.keeping_failure.endswith(expected)
        copy = killed(folder, tmp_path / "copy.session")
    with kept_runtime.load_session(copy) as session:
        assert session.n_past == n_kept
    said(kept)  # there is room again
    assert kept.stats.keeping_failure == ""
    copy = killed(folder, tmp_path / "later.session")
    with kept_runtime.load_session(copy) as session:
        assert log_of(session) == log_of(kept)


def test_a_disk_that_is_full_when_a_session_goes_back_stops_no_reply(kept, kept_runtime, folder, tmp_path, monkeypatch):
    before, n_past = ids_of(kept), kept.n_past

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full)
        goes_on(kept, before[:200] + before[:100])
        goes_on(kept, [*ids_of(kept), *before[:100]])
        assert "its session cannot be kept: No space left" in kept.stats.archive_failure
    copy = killed(folder, tmp_path / "copy.session")
    with kept_runtime.load_session(copy) as session:
        assert (ids_of(session), session._conversation.state.archive.n_tokens) == (before, n_past)
    log = log_of(kept)
    goes_on(kept, ids_of(kept))
    copy = killed(folder, tmp_path / "later.session")
    with kept_runtime.load_session(copy) as session:
        assert session.n_past == kept.n_past > log[0]


def test_what_an_archive_has_no_room_for_is_read_again(open_runtime, folder):
    with open_runtime(**ARCHIVED) as rt:
        limit = 2 * 128 * rt.plan.archive_token_bytes
    with open_runtime(**ARCHIVED | {"archive": limit}) as rt:
        with rt.session(history=True) as session:
            session.keep(folder)
            session.read(words(150))
            log = log_of(session)
        with rt.load_session(folder, keep=True) as session:
            assert log_of(session) == log
            assert session._conversation.state.archive.n_tokens == 256
            assert "are full" in session._conversation.state.archive.failure


def test_a_session_is_kept_from_any_time_on(kept_runtime, folder):
    with kept_runtime.session(history=True) as session:
        session.read(words(150))
        session.keep(folder)
        session.rewind(300)
        said(session)
        log = log_of(session)
    with kept_runtime.load_session(folder) as session:
        assert log_of(session) == log
        assert session._conversation.state.archive.n_tokens == session.n_past


def test_a_session_that_went_back_to_its_beginning_is_kept_from_there_on(kept_runtime, folder, tmp_path):
    """An archive without rows has a temporary file, which is not the folder's."""
    with kept_runtime.session(history=True, checkpoint_bytes=0) as session:
        session.read(words(150))
        session.rewind(0)
        session.keep(folder)
        session.read(words(150))
        said(session)
        assert (session.stats.archive_failure, session.stats.forgotten_tokens) == ("", 0)
        copy = killed(folder, tmp_path / "copy.session")
        log = log_of(session)
    with kept_runtime.load_session(copy) as session:
        assert log_of(session) == log


def test_snapshots_and_shared_rows_are_kept_whole(kept_runtime, folder, tmp_path):
    with kept_runtime.session(history=True) as book:
        book.keep(tmp_path / "book.session")
        book.read(words(150))
        begun = book.snapshot()
        book.read(words(50))
        with kept_runtime.session(history=True, start=begun) as session:
            session.keep(folder)
            assert (folder / "rows-0").stat().st_ino == (tmp_path / "book.session" / "rows-0").stat().st_ino
            said(session)
            log = log_of(session)
        book.restore(begun)
        book.read(words(30, "other"))
        other = log_of(book)
    with kept_runtime.load_session(folder) as session, kept_runtime.load_session(tmp_path / "book.session") as book:
        assert (log_of(session), log_of(book)) == (log, other)
        for it in (session, book):
            assert it._conversation.state.archive.n_tokens == it.n_past


@pytest.mark.parametrize("n_read", [300, 256], ids=["within a segment", "at the end of a segment"])
def test_nobody_writes_over_rows_that_another_session_shares(kept_runtime, folder, tmp_path, n_read):
    def ahead(session, tokens):
        list(session.continue_from(tokens, max_tokens=1, sampling=GREEDY))

    text, other = [5 + i * 7 % 300 for i in range(n_read)], [5 + i * 11 % 300 for i in range(n_read)]
    with kept_runtime.session(history=True) as book:
        book.keep(tmp_path / "book.session")
        ahead(book, text)
        assert book.n_past == n_read
        begun = book.snapshot()
        ahead(book, [*ids_of(book), *other])
        kept_of_book = ids_of(book)
        with kept_runtime.session(history=True, start=begun) as session:
            session.keep(folder)
    replies = [told_alone(kept_runtime, it, tmp_path) for it in (folder, tmp_path / "book.session")]
    with kept_runtime.load_session(folder, keep=True) as session:  # goes on where the book has other rows
        ahead(session, [*ids_of(session), *other[::-1]])
        session.rewind(n_read)
    with kept_runtime.load_session(tmp_path / "book.session", keep=True) as book:  # goes back below what is shared
        assert ids_of(book) == kept_of_book
        assert told_alone(kept_runtime, tmp_path / "book.session", tmp_path) == replies[1]
        book.rewind(100)
        ahead(book, [*ids_of(book), *other])
    assert told_alone(kept_runtime, folder, tmp_path) == replies[0]


def told_alone(runtime, folder, into):
    """Return what a copy of a kept session says next, of which no token is read again."""
    copy = shutil.copytree(folder, into / f"{folder.name}-alone")
    with runtime.load_session(copy) as session:
        assert session._conversation.state.archive.n_tokens == session.n_past
        said = goes_on(session, ids_of(session))
    shutil.rmtree(copy)
    return said


def test_a_saved_session_is_kept_on(kept_runtime, folder, tmp_path):
    with kept_runtime.session(history=True) as session:
        session.read(words(150))
        session.save(tmp_path / "whole.session")
    with kept_runtime.load_session(tmp_path / "whole.session") as session:
        session.keep(folder)
        log = log_of(session)
    with kept_runtime.load_session(folder) as session:
        assert log_of(session) == log
    with pytest.raises(SessionFileError, match="was saved whole, and nothing is appended to it"):
        kept_runtime.load_session(tmp_path / "whole.session", keep=True)


def test_other_runtimes_go_on_as_well(kept, kept_runtime, open_runtime, folder, tmp_path):
    log = log_of(kept)
    for i, options in enumerate(({"budget": 128}, {"kv_type": "q8_0"}, {"archive": "off"}, {"policy": "tova"})):
        copy = killed(folder, tmp_path / f"{i}.session")
        with open_runtime(**ARCHIVED | options) as rt:
            for _ in range(2):
                with rt.load_session(copy, keep=True) as session:
                    assert log_of(session) == log
                    said(session)
                    log = log_of(session)
        log = log_of(kept)


def test_nothing_is_kept_without_a_history_or_an_archive(kept_runtime, open_runtime, folder, tmp_path):
    with kept_runtime.session() as session, pytest.raises(SessionError, match="keeps no history"):
        session.keep(folder)
    with kept_runtime.session(history=True) as session:
        (tmp_path / "file").touch()
        for path in (tmp_path / "file", tmp_path / "no" / "folder"):
            with pytest.raises(SessionFileError, match=path.name):
                session.keep(path)
    with open_runtime(**ARCHIVED | {"archive": "off"}) as rt, rt.session(history=True) as session:
        assert not rt.keeps_sessions
        with pytest.raises(ConfigError, match="open one with archive="):
            session.keep(folder)
    assert not folder.exists()


def test_a_session_that_read_nothing_leaves_nothing(kept_runtime, folder):
    with kept_runtime.session(history=True) as session:
        session.keep(folder)
        assert is_kept(folder)
    kept_runtime.session().close()
    assert not folder.exists()


def test_the_model_must_be_that_of_the_session(kept, folder, tmp_path, tiny_model):
    copy = killed(folder, tmp_path / "copy.session")
    with (
        edgekv.Runtime(tiny_model(n_layer=1), **SETTINGS | {"archive": "1MiB"}) as rt,
        pytest.raises(SessionFileError, match="was saved with the model"),
    ):
        rt.load_session(copy)
