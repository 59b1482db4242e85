"""Encodings of texts: their names as browsers mean them, and a decoder that goes on after a bad byte."""

from __future__ import annotations

import codecs
import re

from edgekv.counting import counted

UTF_8 = "utf-8-sig"
BAD = "\ufffd"  # stands for bytes that are no character
MOST_BAD = 1000  # one bad run in so many bytes is damage; more are another encoding
SHORT = 100  # a text of fewer bytes may have no bad run
MOST_MIXED = 10  # a text with so many bytes of wide characters for each bad run has the encoding

# byte order marks; that of UTF-16 begins that of UTF-32
_MARKS = (
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

# Python's names of encodings that the WHATWG's Encoding Standard reads as larger ones
_MEANT = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}

# labels of that standard that Python does not know
_LABELS = {
    "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 x-unicode20utf8",
    "iso8859-6": "csiso88596e csiso88596i iso-8859-6-e iso-8859-6-i",
    "iso8859-7": "sun_eu_greek",
    "iso8859-8": "csiso88598e csiso88598i iso-8859-8-e iso-8859-8-i logical visual",
    "iso8859-15": "csisolatin9",
    "koi8-r": "koi koi8",
    "koi8-u": "koi8-ru",
    "mac-roman": "csmacintosh mac x-mac-roman",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "cp874": "dos-874 windows-874",
    "gb18030": "csgb2312 gb_2312 gb_2312-80 x-gbk",
    "big5hkscs": "cn-big5 x-x-big5",
    "euc_jp": "cseucpkdfmtjapanese x-euc-jp",
    "cp932": "windows-31j x-sjis",
    "cp949": "cseuckr csksc56011987 iso-ir-149 ks_c_5601-1989 ksc_5601 windows-949",
}
_CODECS = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}
_SHORT = re.compile(r"(?:x-(?=cp125\d$)|(?<=^iso8859)(?=\d))")  # x-cp1252, iso88592

_ESCAPED = re.compile("[\udc80-\udcff]+")


def marked_encoding(beginning: bytes) -> str | None:
    """Return the encoding that a byte order mark says; None = there is no mark."""
    return next((encoding for mark, encoding in _MARKS if beginning.startswith(mark)), None)


def known_encoding(label: str) -> str | None:
    """Return Python's name of the encoding that browsers read under a label; None = it is unknown."""
    label = label.strip().lower()
    name = _CODECS.get(label) or _SHORT.sub(lambda found: "" if found[0] else "-", label)
    try:
        "".encode(name)  # fails for codecs that are of no text, too
        known = codecs.lookup(name).name
    except (LookupError, UnicodeError):
        return None
    return _MEANT.get(known, known)


class TextDecoder:
    """Decodes a text piece by piece. Each run of bytes that are no characters becomes one U+FFFD.

    n_bad: number of such runs
    """

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.n_bad = 0
        self._n_bytes = self._n_chars = 0
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")

    def decode(self, raw: bytes, *, final: bool = False) -> str:
        """Return the text of the next bytes. Raises UnicodeDecodeError if the encoding cannot go on after bad ones."""
        text = self._decoder.decode(raw, final)
        self._n_bytes += len(raw)
        self._n_chars += len(text)
        if text.isascii():
            return text
        text, n_bad = _ESCAPED.subn(BAD, text)
        self.n_bad += n_bad
        return text

    @property
    def has_other_encoding(self) -> bool:
        """True if the bad runs are too many to be damage."""
        most = 1 + self._n_bytes // MOST_BAD if self._n_bytes >= SHORT else 0
        return self.n_bad > most and self._n_wide < MOST_MIXED * self.n_bad

    @property
    def _n_wide(self) -> int:
        """Bytes of characters after their first one; UTF-8 has some in each character past ASCII."""
        return self._n_bytes - self._n_chars

    @property
    def damage(self) -> str:
        """A message about bad runs, which goes on after the name of the text."""
        name = "UTF-8" if self.encoding in (UTF_8, "utf-8") else self.encoding
        return f"is not {name} text at {counted(self.n_bad, 'place')}"

    @property
    def remedy(self) -> str:
        """A remedy for bad runs that leaves the rest as it is."""
        if self._n_wide >= self.n_bad:
            return "to drop them, run `iconv -c -f UTF-8 -t UTF-8`"
        return "convert it to UTF-8, as `iconv -f WINDOWS-1252 -t UTF-8` does from that encoding"

    @property
    def note(self) -> str:
        """A message about a text that was read in spite of bad runs; "" = it has none."""
        return f"{self.damage}, read as {BAD}; {self.remedy}" if self.n_bad else ""
