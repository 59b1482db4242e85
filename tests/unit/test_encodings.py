"""Encodings by the names that browsers know, and texts with bytes that are no characters."""

from __future__ import annotations

import pytest

from edgekv import InputError
from edgekv.documents.encodings import UTF_8, TextDecoder, known_encoding
from edgekv.documents.text_file import read_text

# labels of the WHATWG's Encoding Standard, by Python's name of what they mean
LABELS = {
    "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8",
    "cp866": "866 cp866 csibm866 ibm866",
    "iso8859-2": "csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2",
    "iso8859-5": "csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso88595 iso_8859-5:1988",
    "iso8859-6": "arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6-e iso-8859-6-i iso88596",
    "iso8859-7": "csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso88597 sun_eu_greek",
    "iso8859-8": "csiso88598e csisolatinhebrew hebrew iso-8859-8-e iso-8859-8-i csiso88598i iso88598 visual logical",
    "iso8859-10": "csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6",
    "iso8859-15": "csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9",
    "koi8-r": "cskoi8r koi koi8 koi8-r koi8_r",
    "koi8-u": "koi8-ru koi8-u",
    "mac-roman": "csmacintosh mac macintosh x-mac-roman",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "cp874": "dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874",
    "cp1251": "cp1251 windows-1251 x-cp1251",
    "cp1252": "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso88591 l1 latin1 us-ascii "
    "windows-1252 x-cp1252",
    "cp1254": "cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso88599 iso_8859-9:1989 l5 latin5 windows-1254 x-cp1254",
    "gb18030": "chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk gb18030",
    "big5hkscs": "big5 big5-hkscs cn-big5 csbig5 x-x-big5",
    "euc_jp": "cseucpkdfmtjapanese euc-jp x-euc-jp",
    "iso2022_jp": "csiso2022jp iso-2022-jp",
    "cp932": "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis",
    "cp949": "cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ksc5601 ksc_5601 windows-949",
}  # fmt: skip


@pytest.mark.parametrize("meant", LABELS)
def test_labels_mean_what_browsers_read(meant):
    labels = LABELS[meant].split()
    assert {known_encoding(it) for label in labels for it in (label, f" {label.upper()}")} == {meant}


def test_what_is_no_encoding_of_texts_is_unknown():
    assert [known_encoding(it) for it in ("klingon", "rot13", "zlib", "")] == [None] * 4


ASCII = b"2026-11-28 12:00 the key is 417\n" * 40
WIDE = "Zo\u00eb na\u00efve \u6f22\u5b57\n".encode() * 40


def test_one_bad_byte_refuses_no_text(tmp_path):
    path = tmp_path / "a.log"
    for whole in (ASCII, WIDE):
        for bad in (b"\xff", b"\xf0\x9f", b"\x80" * 99):
            path.write_bytes(whole + b"here: " + bad + b" there\n" + whole)
            with pytest.warns(UserWarning, match=r"a\.log is not UTF-8 text at 1 place, read as \ufffd; "):
                text = "".join(read_text(path))
            assert text == f"{whole.decode()}here: \ufffd there\n{whole.decode()}"


def test_the_remedy_spoils_no_good_character(tmp_path):
    path = tmp_path / "a.log"
    for whole, remedy in ((ASCII, "iconv -f WINDOWS-1252 -t UTF-8"), (WIDE, "iconv -c -f UTF-8 -t UTF-8")):
        path.write_bytes(whole + b"\xe9")
        with pytest.warns(UserWarning, match=remedy):
            "".join(read_text(path))


@pytest.mark.parametrize("text", ["Caf\u00e9", "\u201cd\u00e9j\u00e0 vu\u201d, dit-il \u00e0 No\u00ebl. " * 40])
def test_another_encoding_is_refused(tmp_path, text):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode("cp1252"))
    with pytest.raises(
        InputError, match=r"a\.txt is not UTF-8 text at .*; convert it .* `iconv -f WINDOWS-1252 -t UTF-8`"
    ):
        "".join(read_text(path))


@pytest.mark.parametrize("n_bytes", [1, 2, 3, 7])
def test_characters_that_pieces_divide_are_whole(n_bytes):
    decoder, content = TextDecoder(UTF_8), "\ufeffZo\u00eb \U0001f600 \ufffd".encode() + b"\xe2\x82"
    pieces = [content[i : i + n_bytes] for i in range(0, len(content), n_bytes)]
    text = "".join(map(decoder.decode, pieces)) + decoder.decode(b"", final=True)
    assert (text, decoder.n_bad) == ("Zo\u00eb \U0001f600 \ufffd\ufffd", 1)
