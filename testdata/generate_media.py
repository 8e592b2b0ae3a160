"""Makes testdata/media: small images of every format, and what Pillow, torchvision and transformers
make of them and of noise.

    python testdata/generate_media.py            # writes testdata/media
    python testdata/generate_media.py --check    # compares what is there with what would be written
    python testdata/generate_media.py --jpegs N FOLDER  # N JPEGs of random kinds, and decoded.jsonl

`decoded.jsonl` has a line for each file: its size, and blake3 of its pixels after
`ImageOps.exif_transpose`, alpha on white, in RGB. `resized.jsonl` and `processed.jsonl` have blake3
of what is made of noise, which `noise` defines; the tests of `vllm-batch-media` make it again.
The first line of each says the versions.

Made with Python 3.11, Pillow 13.0.0 (libjpeg-turbo 3.2.0, libwebp 1.6.0), torch 2.15.0, torchvision
0.29.2, transformers 5.24.0, numpy 2.4.6 and blake3 1.0.11 on a CPU with AVX2: without it torchvision
resizes in floats.
"""

import argparse
import io
import json
import random
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import PIL
from blake3 import blake3
from PIL import Image, ImageDraw, ImageOps

FOLDER = Path(__file__).parent / "media"


def noise(width, height, seed):
    """`[height, width, 3]` bytes: the top ones of a linear congruential generator."""
    count = width * height * 3
    state, out = seed, bytearray(count)
    for index in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out[index] = state >> 24
    return np.frombuffer(bytes(out), np.uint8).reshape(height, width, 3)


def picture(width, height, mode="RGB", seed=1):
    """A gradient with shapes, lines and some noise on it."""
    y, x = np.mgrid[0:height, 0:width]
    bands = [x * 255 // max(width - 1, 1), y * 255 // max(height - 1, 1), (x * 7 + y * 13) % 256]
    image = Image.fromarray(np.stack(bands, -1).astype(np.uint8), "RGB")
    draw = ImageDraw.Draw(image)
    draw.rectangle([width // 4, height // 4, width // 2, height // 2], fill=(250, 20, 40))
    draw.ellipse([width // 2, height // 3, width - 1, height - 1], fill=(10, 200, 90))
    draw.line([0, height, width, 0], fill=(255, 255, 255))
    grain = np.random.default_rng(seed).integers(-12, 13, (height, width, 3))
    rgb = np.clip(np.asarray(image).astype(int) + grain, 0, 255).astype(np.uint8)
    alpha = ((x * 5 + y * 3) % 256).astype(np.uint8)
    image = Image.fromarray(rgb, "RGB")
    if mode in ("RGBA", "LA"):
        image = image.convert(mode[:-1])
        image.putalpha(Image.fromarray(alpha, "L"))
        return image
    return image.convert(mode) if mode != "P" else image.quantize(37)


def reference(image):
    """RGB of an opened image, upright, alpha on white."""
    image = ImageOps.exif_transpose(image)
    if image.has_transparency_data and image.mode != "I;16":
        rgba = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(rgba, mask=rgba.split()[3])
        return white
    return image.convert("RGB")


def saved(image, format, **options):
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def xmp(orientation):
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description '
        f'tiff:Orientation="{orientation}"/></rdf:RDF></x:xmpmeta>'
    ).encode()


# PNG, written here: Pillow writes few of the kinds that it reads.


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed(samples, bits):
    """Rows of `[height, width, bands]` samples, each behind its filter."""
    rows = samples.reshape(samples.shape[0], -1)
    out = b""
    for row in rows:
        if bits == 16:
            data = row.astype(">u2").tobytes()
        elif bits == 8:
            data = row.astype(np.uint8).tobytes()
        else:
            places = (row.astype(np.uint8)[:, None] >> np.arange(bits - 1, -1, -1)) & 1
            data = np.packbits(places.reshape(-1).astype(np.uint8)).tobytes()
        out += b"\0" + data
    return out


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def png(samples, bits, colour, extra=(), is_interlaced=False):
    height, width = samples.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, int(is_interlaced))
    if is_interlaced:
        parts = (samples[y::dy, x::dx] for x, y, dx, dy in ADAM7)
        data = b"".join(packed(part, bits) for part in parts if part.size)
    else:
        data = packed(samples, bits)
    chunks = [chunk(b"IHDR", header), *(chunk(*part) for part in extra)]
    chunks += [chunk(b"IDAT", zlib.compress(data, 9)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def pngs():
    rng = np.random.default_rng(2)
    size = (23, 17)
    wide = picture(23, 17)
    for mode in ["RGB", "L", "1", "P", "RGBA", "LA"]:
        yield f"{mode.lower()}.png", saved(picture(*size, mode), "PNG")
    for bits, colour, bands in [(1, 0, 1), (2, 0, 1), (4, 0, 1), (16, 0, 1), (16, 2, 3), (16, 4, 2), (16, 6, 4)]:
        samples = rng.integers(0, 1 << bits, (17, 23, bands))
        if bits == 16 and colour == 0:
            samples[::2] //= 200
        yield f"grey{bits}.png" if colour == 0 else f"wide{colour}.png", png(samples, bits, colour)
    palette = rng.integers(0, 256, 48, dtype=np.uint8).tobytes()
    for bits in [1, 2, 4, 8]:
        samples = rng.integers(0, min(1 << bits, 16), (17, 23, 1))
        extra = [(b"PLTE", palette[: 3 * min(1 << bits, 16)])]
        yield f"palette{bits}.png", png(samples, bits, 3, extra)
        alphas = bytes([0, 77, 255, 200, 0, 3])[: 1 << bits]
        yield f"palette{bits}_alpha.png", png(samples, bits, 3, [*extra, (b"tRNS", alphas)])
    short = png(rng.integers(0, 16, (17, 23, 1)), 4, 3, [(b"PLTE", palette[:9])])
    yield "palette_short.png", short
    for bits, value in [(1, 1), (2, 2), (4, 15), (8, 9), (8, 300), (16, 9)]:
        samples = rng.integers(0, min(1 << bits, 20), (17, 23, 1))
        extra = [(b"tRNS", struct.pack(">H", value))]
        yield f"grey{bits}_key{value}.png", png(samples, bits, 0, extra)
    samples = rng.integers(0, 3, (17, 23, 3))
    yield "rgb_key.png", png(samples, 8, 2, [(b"tRNS", struct.pack(">HHH", 1, 2, 0))])
    yield "rgb16_key.png", png(samples * 256 + 7, 16, 2, [(b"tRNS", struct.pack(">HHH", 1, 2, 0))])
    yield "interlaced.png", png(np.asarray(wide), 8, 2, is_interlaced=True)
    yield "interlaced1.png", png(rng.integers(0, 2, (17, 23, 1)), 1, 0, is_interlaced=True)
    yield "thin.png", saved(picture(1, 40), "PNG")
    yield "flat.png", saved(picture(40, 1), "PNG")
    for orientation in range(1, 9):
        yield f"exif{orientation}.png", saved(wide, "PNG", exif=exif(orientation))
    text = b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(6)
    yield "xmp.png", png(np.asarray(wide), 8, 2, [(b"iTXt", text)])
    frames = [picture(23, 17, seed=seed) for seed in (1, 2)]
    yield "animated.png", saved(frames[0], "PNG", save_all=True, append_images=frames[1:])


# JPEG.


def segments(data):
    """Places of a JPEG's markers before its first scan, by code."""
    at, found = 2, {}
    while data[at + 1] != 0xDA:
        found.setdefault(data[at + 1], at)
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return found


def reshaped(data, width, height, factors):
    """A JPEG whose first component has other factors: as many blocks in another order."""
    found = segments(data)
    at = found.get(0xC0) or found[0xC2]
    out = bytearray(data)
    out[at + 5 : at + 9] = struct.pack(">HH", height, width)
    out[at + 11] = factors
    return bytes(out)


def transformed(data, value):
    """A JPEG whose Adobe segment says another transform."""
    out = bytearray(data)
    out[segments(data)[0xEE] + 15] = value
    return bytes(out)


def jpeg(rng):
    """A JPEG of a random kind, and what it is."""
    width, height = rng.choice([(1, 1), (2, 3), (5, 4), (3, 9)] + [(rng.randint(1, 90), rng.randint(1, 90)) for _ in range(9)])
    kind = rng.choice(["444", "422", "420", "420", "440", "411", "grey", "cmyk", "ycck", "rgb"])
    options = {"quality": rng.choice([3, 30, 60, 75, 90, 95, 100])}
    if rng.random() < 0.5:
        options["progressive"] = True
    if rng.random() < 0.3:
        options["optimize"] = True
    if rng.random() < 0.3:
        options[rng.choice(["restart_marker_blocks", "restart_marker_rows"])] = rng.randint(1, 5)
    seed = rng.randint(0, 1 << 30)
    name = f"{kind}_{width}x{height}_q{options['quality']}"
    if "progressive" in options:
        name += "_progressive"
    if any(key.startswith("restart") for key in options):
        name += "_restarts"
    if kind == "grey":
        return name, saved(picture(width, height, "L", seed), "JPEG", **options)
    if kind in ("cmyk", "ycck"):
        bands = [picture(width, height, "L", seed + band) for band in range(4)]
        data = saved(Image.merge("CMYK", bands), "JPEG", **options)
        return name, transformed(data, 2 if kind == "ycck" else 0)
    image = picture(width, height, "RGB", seed)
    if kind == "rgb":
        return name, saved(image, "JPEG", keep_rgb=True, **options)
    if kind in ("440", "411"):
        # Sizes whose units are as many in the other order.
        options.pop("progressive", None)
        name = name.replace("_progressive", "")
        if kind == "440":
            image = picture(width * 2, height, "RGB", seed)
            data = saved(image, "JPEG", subsampling=1, **options)
            return name, reshaped(data, width, 16 * -(-height // 8) - rng.randint(0, 9), 0x12)
        data = saved(picture(width, height * 2, "RGB", seed), "JPEG", subsampling=2, **options)
        return name, reshaped(data, 32 * -(-width // 16) - rng.randint(0, 20), height, 0x41)
    subsampling = {"444": 0, "422": 1, "420": 2}[kind]
    return name, saved(image, "JPEG", subsampling=subsampling, **options)


def jpegs():
    rng = random.Random(5)
    names = set()
    for index in range(64):
        name, data = jpeg(rng)
        names.add(name)
        yield f"{index:02}_{name}.jpg", data
    image = picture(23, 17)
    for orientation in range(2, 9):
        yield f"exif{orientation}.jpg", saved(image, "JPEG", exif=exif(orientation))
    yield "xmp.jpg", saved(image, "JPEG", xmp=xmp(8))
    table = [[min(1 + 9 * index, 600) for index in range(64)]] * 2
    yield "coarse.jpg", saved(image, "JPEG", qtables=table)


# WebP, GIF, BMP, TIFF.


def webps():
    for index, (width, height) in enumerate([(1, 1), (2, 5), (17, 23), (33, 16), (64, 48)]):
        image = picture(width, height, seed=index)
        yield f"lossy{index}.webp", saved(image, "WEBP", quality=20 + 15 * index)
        yield f"lossless{index}.webp", saved(image, "WEBP", lossless=True)
        yield f"alpha{index}.webp", saved(picture(width, height, "RGBA"), "WEBP", quality=60)
    yield "lossless_alpha.webp", saved(picture(23, 17, "RGBA"), "WEBP", lossless=True, exact=True)
    yield "exif6.webp", saved(picture(23, 17), "WEBP", exif=exif(6))
    yield "xmp.webp", saved(picture(23, 17), "WEBP", xmp=xmp(3))
    for mode in ["RGB", "RGBA"]:
        frames = [picture(23, 17, mode, seed) for seed in (1, 2)]
        animation = saved(frames[0], "WEBP", save_all=True, append_images=frames[1:])
        yield f"animated_{mode.lower()}.webp", animation


def gifs():
    yield "p.gif", saved(picture(23, 17, "P"), "GIF")
    yield "l.gif", saved(picture(23, 17, "L"), "GIF")
    yield "plain.gif", saved(picture(23, 17, "P"), "GIF", interlace=False)
    yield "interlaced.gif", saved(picture(23, 17, "P"), "GIF", interlace=True)
    yield "transparent.gif", saved(picture(23, 17, "P"), "GIF", transparency=5)
    frames = [picture(23, 17, "P", seed) for seed in (1, 2)]
    yield "animated.gif", saved(frames[0], "GIF", save_all=True, append_images=frames[1:], transparency=3)
    data = bytearray(saved(picture(23, 17, "P"), "GIF", interlace=False))
    at = bytes(data).index(b",\0\0\0\0" + struct.pack("<HH", 23, 17))
    for name, place, screen in [("inset", (3, 2), (40, 30)), ("outside", (9, 7), (23, 17))]:
        moved = data.copy()
        moved[at + 1 : at + 5] = struct.pack("<HH", *place)
        moved[6:10] = struct.pack("<HH", *screen)
        yield f"{name}.gif", bytes(moved)
    keyed = bytearray(saved(picture(23, 17, "P"), "GIF", interlace=False, transparency=5))
    at = bytes(keyed).index(b",\0\0\0\0" + struct.pack("<HH", 23, 17))
    keyed[at + 1 : at + 5] = struct.pack("<HH", 3, 2)
    keyed[6:10] = struct.pack("<HH", 40, 30)
    yield "inset_transparent.gif", bytes(keyed)


def bmp(width, height, bits, data, *, compression=0, palette=b"", masks=b"", header=40, colours=0):
    offset = 14 + header + (len(masks) if header == 40 else 0) + len(palette)
    info = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, compression, len(data), 0, 0, colours, 0)
    if header > 40:
        info += masks.ljust(header - 40, b"\0")
        masks = b""
    if header == 12:
        info = struct.pack("<IHHHH", 12, width, height, 1, bits)
    return b"BM" + struct.pack("<IHHI", offset + len(data), 0, 0, offset) + info + masks + palette + data


def bmps():
    for mode in ["1", "L", "P", "RGB", "RGBA"]:
        yield f"{mode.lower()}.bmp", saved(picture(23, 17, mode), "BMP")
    rng = np.random.default_rng(4)
    shorts = rng.integers(0, 256, (17, 48), dtype=np.uint8).tobytes()
    yield "rgb555.bmp", bmp(23, 17, 16, shorts)
    yield "rgb565.bmp", bmp(23, 17, 16, shorts, compression=3, masks=struct.pack("<III", 0xF800, 0x7E0, 0x1F))
    longs = rng.integers(0, 256, (17, 92), dtype=np.uint8).tobytes()
    yield "plain32.bmp", bmp(23, 17, 32, longs)
    rgba = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    yield "bgra.bmp", bmp(23, 17, 32, longs, compression=3, masks=rgba, header=108)
    yield "down.bmp", bmp(23, -17, 32, longs)
    palette = rng.integers(0, 256, 64, dtype=np.uint8).tobytes()
    yield "palette4.bmp", bmp(23, 17, 4, shorts[: 17 * 12], palette=palette)
    yield "core.bmp", bmp(23, 17, 4, shorts[: 17 * 12], palette=palette[:48], header=12)
    runs = b"".join(bytes([9, row, 3, 250 - row, 0, 5, 1, 2, 3, 4, 5, 0, 6, 7, 0, 0]) for row in range(17))
    full = rng.integers(0, 256, 1024, dtype=np.uint8).tobytes()
    yield "runs8.bmp", bmp(23, 17, 8, runs + b"\0\1", compression=1, palette=full)
    runs = b"".join(bytes([9, row * 15, 3, 250 - row, 0, 5, 18, 52, 80, 0, 6, 7, 0, 0]) for row in range(17))
    yield "runs4.bmp", bmp(23, 17, 4, runs + b"\0\1", compression=2, palette=palette)


def tiff(samples, photometric, *, bits=8, order="<", extra=(), tile=None):
    """An unpacked TIFF of either byte order, in strips of five rows or in tiles."""
    height, width, bands = samples.shape
    stored = samples.astype(f"{order}u{bits // 8}")
    if tile:
        across, down = -(-width // tile), -(-height // tile)
        padded = np.zeros((down * tile, across * tile, bands), stored.dtype)
        padded[:height, :width] = stored
        chunks = [padded[y * tile :][:tile, x * tile :][:, :tile].tobytes() for y in range(down) for x in range(across)]
    else:
        chunks = [stored[y : y + 5].tobytes() for y in range(0, height, 5)]
    places, at = [], 8
    for data in chunks:
        places.append(at)
        at += len(data)
    tags = {256: [width], 257: [height], 258: [bits] * bands, 259: [1], 262: [photometric], 277: [bands], **dict(extra)}
    if tile:
        tags |= {322: [tile], 323: [tile], 324: places, 325: list(map(len, chunks))}
    else:
        tags |= {273: places, 278: [5], 279: list(map(len, chunks))}
    body, tail = b"", b""
    tail_at = at + 2 + 12 * len(tags) + 4
    for key, values in sorted(tags.items()):
        is_long = key in (273, 279, 324, 325)
        data = struct.pack(f"{order}{len(values)}{'I' if is_long else 'H'}", *values)
        entry = struct.pack(f"{order}HHI", key, 4 if is_long else 3, len(values))
        if len(data) > 4:
            entry += struct.pack(f"{order}I", tail_at + len(tail))
            tail += data + b"\0" * (len(data) % 2)
        else:
            entry += data.ljust(4, b"\0")
        body += entry
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", at)
    return start + b"".join(chunks) + struct.pack(f"{order}H", len(tags)) + body + b"\0\0\0\0" + tail


def tiffs():
    for mode in ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK"]:
        yield f"{mode.lower()}.tiff", saved(picture(23, 17, mode), "TIFF")
    for compression in ["tiff_lzw", "tiff_adobe_deflate", "packbits"]:
        name = compression.split("_")[-1]
        yield f"{name}.tiff", saved(picture(23, 17), "TIFF", compression=compression)
        if compression != "packbits":
            tags = {317: 2}
            yield f"{name}_predicted.tiff", saved(picture(23, 17), "TIFF", compression=compression, tiffinfo=tags)
    yield "exif8.tiff", saved(picture(23, 17), "TIFF", tiffinfo={274: 8})
    rng = np.random.default_rng(6)
    for order, name in [("<", "little"), (">", "big")]:
        grey = rng.integers(0, 400, (17, 23, 1))
        yield f"grey16_{name}.tiff", tiff(grey, 1, bits=16, order=order)
        yield f"rgb16_{name}.tiff", tiff(rng.integers(0, 65536, (17, 23, 3)), 2, bits=16, order=order)
    rgb = rng.integers(0, 256, (17, 23, 3))
    rgba = rng.integers(0, 256, (17, 23, 4))
    yield "tiles.tiff", tiff(rgb, 2, tile=16)
    yield "white_is_zero.tiff", tiff(rgb[:, :, :1], 0)
    for extra in range(3):
        yield f"extra{extra}.tiff", tiff(rgba, 2, extra={338: [extra]})


def files():
    for group in [pngs, jpegs, webps, gifs, bmps, tiffs]:
        for name, data in group():
            yield name, data


def decoded(name, data):
    image = Image.open(io.BytesIO(data))
    rgb = reference(image)
    format = "JPEG" if image.format == "MPO" else image.format
    return {
        "file": name,
        "format": format,
        "width": rgb.width,
        "height": rgb.height,
        "blake3": blake3(rgb.tobytes()).hexdigest(),
    }


def lines(first, rest):
    return "".join(json.dumps(line) + "\n" for line in [first, *rest])


def made():
    """Every file of the folder, and its bytes."""
    out, descriptions = {}, []
    for name, data in files():
        assert name not in out, name
        out[name] = data
        descriptions.append(decoded(name, data))
    out["decoded.jsonl"] = lines({"pillow": PIL.__version__}, descriptions).encode()
    import media_processors

    out["resized.jsonl"] = lines(*media_processors.resized()).encode()
    out["processed.jsonl"] = lines(*media_processors.processed()).encode()
    return out


def check():
    there = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    wanted = made()
    wrong = sorted(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name))
    for name in wrong:
        print(f"{name} differs", file=sys.stderr)
    sys.exit(1 if wrong else 0)


def many_jpegs(count, folder):
    rng, descriptions = random.Random(77), []
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        name, data = jpeg(rng)
        name = f"{index:04}_{name}.jpg"
        (folder / name).write_bytes(data)
        descriptions.append(decoded(name, data))
    (folder / "decoded.jsonl").write_text(lines({"pillow": PIL.__version__}, descriptions))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jpegs", nargs=2, metavar=("N", "FOLDER"))
    arguments = parser.parse_args()
    if arguments.check:
        check()
    elif arguments.jpegs:
        many_jpegs(int(arguments.jpegs[0]), Path(arguments.jpegs[1]))
    else:
        FOLDER.mkdir(exist_ok=True)
        for name, data in made().items():
            (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    main()
