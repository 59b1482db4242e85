"""Documents that tests make: PDF by a writer of a few lines, DOCX and EPUB as zip archives."""

from __future__ import annotations

import importlib
import zipfile
import zlib

from edgekv.documents.formats import format_of
from edgekv.documents.report import Report

OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
RELATIONSHIPS = "http://schemas.openxmlformats.org/package/2006/relationships"
XML = '<?xml version="1.0" encoding="UTF-8"?>'


def converted(path):
    """Return the text of a document and the report on it, made in this process."""
    report = Report()
    module = importlib.import_module(f"edgekv.documents.{format_of(path)}")
    return "".join(module.text_of(path, report)), report


def pdf_of(pages):
    """Return a PDF whose pages have these lines; a page without lines is as a scan is."""
    streams = [page_stream(lines) for lines in pages]
    return pdf_with([stream(content) for content in streams])


def page_stream(lines):
    """Return the operators that write lines on a page."""
    escaped = (line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)") for line in lines)
    shown = " ".join(f"({line}) Tj T*" for line in escaped)
    return f"BT /F1 11 Tf 14 TL 50 780 Td {shown} ET".encode("cp1252") if shown else b""


def stream(content, filters="/FlateDecode", data=None):
    """Return the body of a stream object. data: the bytes as they lie there, if they are made already"""
    packed = zlib.compress(content) if data is None else data
    return f"<< /Length {len(packed)} /Filter [{filters}] >>\nstream\n".encode() + packed + b"\nendstream"


def placed(*texts):
    """Return the operators that write texts at places of a page: (text, x, y), and perhaps the size of its font."""
    return " ".join(
        f"BT /F1 {size[0] if size else 11} Tf {x} {y} Td ({text}) Tj ET" for text, x, y, *size in texts
    ).encode("cp1252")


def pdf_page(content, annotations=(), *, fields="", page=""):
    """Return a PDF of one page. content: operators; annotations: bodies of objects, from number 6 on

    fields: numbers of the annotations that are fields of a form, as references; page: further entries of the page
    """
    numbers = " ".join(f"{6 + i} 0 R" for i in range(len(annotations)))
    form = f"/AcroForm << /Fields [{fields}] /DA (/F1 11 Tf 0 g) >>" if fields else ""
    return pdf_with(
        [stream(content)], more=[it.encode() for it in annotations], page=f"/Annots [{numbers}] {page}", catalog=form
    )


HEBREW = b"""/CIDInit /ProcSet findresource begin begincmap 1 begincodespacerange <00> <FF> endcodespacerange
1 beginbfrange <61> <7A> <05D0> endbfrange 1 beginbfchar <20> <0020> endbfchar endcmap end"""


def hebrew_page(content):
    """Return a PDF of one page with a font in which a to z are letters of Hebrew."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding /ToUnicode 6 0 R >>"
    return pdf_with([stream(content)], more=[stream(HEBREW), font], font=7)


def pdf_with(contents, *, count=None, kids=None, trailer="", more=(), page="", catalog="", font=3):
    """Return a PDF with a page for each content, a stream object.

    count, kids: what the tree of pages says, if that is not true; more: further objects
    trailer, page, catalog: further entries of these; font: the number of the font's object
    """
    numbers = [4 + 2 * i for i in range(len(contents))]
    kids = kids or " ".join(f"{number} 0 R" for number in numbers)
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R {catalog} >>".encode(),
        f"<< /Type /Pages /Kids [{kids}] /Count {count or len(contents)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for number, content in zip(numbers, contents, strict=True):
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
            b"/Resources << /Font << /F1 %d 0 R >> /XObject << /X1 %d 0 R >> >> /Contents %d 0 R %b >>"
            % (font, number + 1, number + 1, page.encode()),
            content,
        ]
    made, places = bytearray(b"%PDF-1.7\n"), []
    for i, body in enumerate([*objects, *more], 1):
        places.append(len(made))
        made += b"%d 0 obj\n%b\nendobj\n" % (i, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(places) + 1
    start = len(made)
    made += b"xref\n0 %d\n0000000000 65535 f \n%b" % (size, table)
    made += b"trailer << /Size %d /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer.encode(), start)
    return bytes(made)


def write_zip(path, members):
    """Write a zip archive; returns its path. members: texts, bytes, or iterators of bytes, by name"""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            with archive.open(name, "w") as member:
                pieces = [content] if isinstance(content, (str, bytes)) else content
                for piece in pieces:
                    member.write(piece.encode() if isinstance(piece, str) else piece)
    return path


def write_docx(path, body, **parts):
    """Write a DOCX whose body is this XML; returns its path.

    parts: further parts, such as footnotes, by name: XML, or a pair of the name of the element around it and XML
    """
    pieces = [body] if isinstance(body, str) else body
    relationship = f'<Relationship Id="r1" Type="{OFFICE}/officeDocument" Target="word/document.xml"/>'
    return write_zip(
        path,
        {
            "[Content_Types].xml": f'{XML}<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
            "_rels/.rels": f'{XML}<Relationships xmlns="{RELATIONSHIPS}">{relationship}</Relationships>',
            "word/document.xml": _part("document", ["<w:body>", *pieces, "</w:body>"])
            if isinstance(body, str)
            else pieces,
            **{
                f"word/{name}.xml": _part(name, [inner]) if isinstance(inner, str) else _part(inner[0], inner[1:])
                for name, inner in parts.items()
            },
        },
    )


def run(text, properties=""):
    """Return a run of a DOCX with these properties."""
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(text, style=""):
    """Return a paragraph of a DOCX."""
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f'<w:p>{properties}<w:r><w:t xml:space="preserve">{text}</w:t></w:r></w:p>'


def _part(name, inner):
    return "".join([f'{XML}<w:{name} xmlns:w="{WORD}">', *inner, f"</w:{name}>"])


def write_epub(path, chapters, **members):
    """Write an EPUB whose chapters have these bodies, in XHTML; returns its path. members: further ones, by name"""
    names = [f"chapter{i}.xhtml" for i in range(len(chapters))]
    # a manifest has no order: that of the spine is the book's
    items = "".join(f'<item id="{n}" href="text/{n}" media-type="application/xhtml+xml"/>' for n in sorted(names)[::-1])
    spine = "".join(f'<itemref idref="{name}"/>' for name in names)
    container = '<rootfiles><rootfile full-path="OPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles>'
    return write_zip(
        path,
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": f"{XML}<container>{container}</container>",
            "OPS/book.opf": f"{XML}<package><manifest>{items}</manifest><spine>{spine}</spine></package>",
            **{
                f"OPS/text/{name}": f'{XML}<html xmlns="http://www.w3.org/1999/xhtml"><body>{body}</body></html>'
                for name, body in zip(names, chapters, strict=True)
            },
            **members,
        },
    )
