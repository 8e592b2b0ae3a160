#!/usr/bin/env python3
"""PDF files of testdata/pdf, byte for byte: good ones, and those of somebody who means harm.

python testdata/generate_pdfs.py [FOLDER]   needs nothing but Python
"""

import sys
import zlib
from pathlib import Path

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "pdf")


def file(objects, trailer="", root=1):
    """The bytes of a file of these objects, by their numbers from 1."""
    out, places = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        body = body if isinstance(body, bytes) else body.encode("latin-1")
        out += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += f"trailer\n<< /Size {len(objects) + 1} /Root {root} 0 R {trailer} >>\n".encode("latin-1")
    return out + b"startxref\n%d\n%%%%EOF\n" % start


def stream(text, entries=""):
    data = text if isinstance(text, bytes) else text.encode("latin-1")
    return b"<< /Length %d %s >>\nstream\n" % (len(data), entries.encode()) + data + b"\nendstream"


def pages(contents, boxes=None, more="", resources=None):
    """Objects of a file whose pages have these contents. Object 3 is a font."""
    boxes = boxes or ["[0 0 200 100]"] * len(contents)
    resources = resources or "<< /Font << /F 3 0 R >> >>"
    kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(len(contents)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(contents)} /Kids [{kids}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for at, (content, box) in enumerate(zip(contents, boxes)):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox {box} /Resources {resources} "
            f"/Contents {5 + 2 * at} 0 R {more} >>"
        )
        objects.append(stream(content))
    return objects


def text(what, size=24):
    return f"BT /F {size} Tf 10 40 Td ({what}) Tj ET"


def good():
    contents = [
        text("Page one") + " 1 0 0 rg 150 10 40 40 re f",
        text("Page two") + " 0 0 1 RG 4 w 10 10 180 80 re S",
        text("Three") + " 0 0.5 0 rg 10 120 80 60 re f",
    ]
    return file(pages(contents, ["[0 0 200 100]", "[0 0 200 100]", "[0 0 100 200]"]))


def many(number):
    return file(pages([text(f"Page {page}") for page in range(1, number + 1)]))


def laughs():
    """Each form draws the next one ten times: one page asks for 10^40 of the last."""
    last = 45
    objects = pages(["/X6 Do"], resources="<< /XObject << /X6 6 0 R >> >>")
    for number in range(6, last + 1):
        following = number + 1
        entries = "/Type /XObject /Subtype /Form /BBox [0 0 200 100]"
        if number == last:
            objects.append(stream("0 0 1 1 re f", entries))
        else:
            named = f" /Resources << /XObject << /X{following} {following} 0 R >> >>"
            objects.append(stream(f"/X{following} Do " * 10, entries + named))
    return file(objects)


def bomb():
    """A picture of 40 GB in a few bytes, of a depth that is none."""
    data = zlib.compress(bytes(1 << 16))
    picture = "/Type /XObject /Subtype /Image /ColorSpace /DeviceRGB /BitsPerComponent 9 "
    picture += "/Width 120000 /Height 120000 /Filter /FlateDecode"
    objects = pages(["200 0 0 100 0 0 cm /I Do"], resources="<< /XObject << /I 6 0 R >> >>")
    return file(objects + [stream(data, picture)])


def unpacked():
    """A content of 4 GB of blanks, in Flate within Flate."""
    inner = zlib.compressobj(9)
    piece, once = bytes([32]) * (1 << 20), b""
    for _ in range(4096):
        once += inner.compress(piece)
    once += inner.flush()
    objects = pages([""])
    objects[4] = stream(zlib.compress(once, 9), "/Filter [/FlateDecode /FlateDecode]")
    return file(objects)


def deep(levels):
    """Arrays within arrays, where the contents of the page are."""
    objects = pages([text("deep")])
    objects[3] = objects[3].replace("/Contents 5 0 R", "/Contents " + "[" * levels + "]" * levels)
    return file(objects)


def encrypted():
    """Nobody has its password."""
    bytes_of = "<" + "5a" * 32 + ">"
    encrypt = f"<< /Filter /Standard /V 1 /R 2 /O {bytes_of} /U {bytes_of} /P -4 >>"
    return file(pages([text("secret")]) + [encrypt], "/Encrypt 6 0 R /ID [<00> <00>]")


def round_and_round():
    """A tree of pages that is its own child, and says that it has two billion."""
    objects = pages([text("Round")])
    objects[1] = "<< /Type /Pages /Count 2000000000 /Kids [4 0 R 2 0 R 4 0 R 2 0 R] >>"
    return file(objects)


FILES = {
    "three.pdf": good(),
    "many.pdf": many(12),
    "turned.pdf": file(pages([text("Turned")], more="/Rotate 90 /CropBox [0 0 150 100]")),
    "broken.pdf": b"%PDF-1.7\nthis is no file\n",
    "cut.pdf": good()[:400],
    "empty.pdf": b"",
    "no_pages.pdf": file(pages([])),
    "encrypted.pdf": encrypted(),
    "laughs.pdf": laughs(),
    "bomb.pdf": bomb(),
    "unpacked.pdf": unpacked(),
    "deep.pdf": deep(2_000),
    "huge.pdf": file(pages([text("Huge")], ["[0 0 14400000 14400000]"])),
    "no_size.pdf": file(pages([text("No size")], ["[0 0 0 0]"])),
    "round.pdf": round_and_round(),
}


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, data in FILES.items():
        (FOLDER / name).write_bytes(data)


main()
