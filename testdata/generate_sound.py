"""Makes testdata/sound: short recordings of every format, and what libsndfile, FFmpeg, torchaudio and
transformers make of them and of tones.

    python testdata/generate_sound.py            # writes testdata/sound
    python testdata/generate_sound.py --check    # compares what is there with what would be written

`decoded.jsonl` has a line for each file: rate, channels, samples of each channel, and some of the
samples once channels are their mean, by libsndfile, or by FFmpeg where it reads no such file.
`resampled.jsonl` has samples of `tones` at other rates by torchaudio in 64 bits, `features.jsonl` numbers of
`WhisperFeatureExtractor`. The tests of `vllm-batch-media` make the tones again. The first line of
each says the versions.

Made with Python 3.11, soundfile 0.14.0, av 18.1.0, torch 2.15.0, torchaudio 2.11.1,
transformers 5.24.0 and numpy 2.4.6 on a CPU.
"""

import argparse
import io
import json
import math
import struct
import sys
from pathlib import Path

import av
import numpy as np
import soundfile
import torch
import torchaudio.functional
import transformers

FOLDER = Path(__file__).parent / "sound"

# What is refused by name.
UNREAD = ["mono.opus", "stereo.opus", "stereo_ima_adpcm.wav"]


def tones(rate, count, seed):
    """Samples of a rising tone with an overtone and noise: float64 arithmetic, then float32."""
    out, state = [], seed
    for index in range(count):
        time = index / rate
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        phase = 2 * math.pi * time * (200 + 300 * seed + 900 * time)
        loud = 0.5 + 0.5 * math.sin(2 * math.pi * 3 * time)
        noise = (state >> 16) / 65536 - 0.5
        out.append(loud * (0.4 * math.sin(phase) + 0.2 * math.sin(3 * phase)) + 0.05 * noise)
    return np.array(out, np.float64).astype(np.float32)


def channels(rate, count, num):
    return np.stack([tones(rate, count, seed + 1) for seed in range(num)], 1)


def by_soundfile(rate, data, format, subtype):
    buffer = io.BytesIO()
    soundfile.write(buffer, data, rate, format=format, subtype=subtype)
    written = bytearray(buffer.getvalue())
    # libsndfile writes the time into the chunk PEAK.
    peak = written.find(b"PEAK")
    if peak >= 0:
        written[peak + 12:peak + 16] = bytes(4)
    return bytes(written)


def by_ffmpeg(rate, data, container, codec, layout, bit_rate=None, options=None, sample="fltp"):
    buffer = io.BytesIO()
    # Nothing that says when it was made, or by which version.
    flags = {"fflags": "+bitexact", **(options or {})}
    with av.open(buffer, "w", format=container, options=flags) as out:
        stream = out.add_stream(codec, rate=rate, layout=layout)
        stream.codec_context.flags |= 1 << 23  # AV_CODEC_FLAG_BITEXACT
        if bit_rate:
            stream.bit_rate = bit_rate
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(data.T), "fltp", layout)
        frame.sample_rate, frame.pts = rate, 0
        resampler = av.AudioResampler(format=stream.codec_context.format, layout=layout, rate=rate,
                                      frame_size=stream.codec_context.frame_size or None)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def wide(data, rate):
    """WAVE_FORMAT_EXTENSIBLE of 16 bits."""
    body = (data * 32767).astype("<i2").tobytes()
    num = data.shape[1]
    guid = bytes.fromhex("0100000000001000800000aa00389b71")
    form = struct.pack("<HHIIHHHHI", 0xFFFE, num, rate, rate * num * 2, num * 2, 16, 22, 16, 0x3F)
    return riff(form + guid, body)


def riff(form, body, riff_len=None, data_len=None):
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    # A chunk that nobody reads.
    chunks += b"LIST" + struct.pack("<I", 4) + b"INFO"
    chunks += b"data" + struct.pack("<I", len(body) if data_len is None else data_len) + body
    return b"RIFF" + struct.pack("<I", len(chunks) if riff_len is None else riff_len) + chunks


def files():
    out = {}
    mono, stereo = channels(16000, 1600, 1), channels(16000, 800, 2)
    for subtype in ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"]:
        data = mono[:600] if subtype in ("PCM_32", "FLOAT", "DOUBLE") else mono[:1200]
        out[f"mono_{subtype.lower()}.wav"] = by_soundfile(16000, data, "WAV", subtype)
    adpcm = channels(22050, 1000, 2)
    out["stereo_ima_adpcm.wav"] = by_soundfile(22050, adpcm, "WAV", "IMA_ADPCM")
    out["stereo_pcm_16.wav"] = by_soundfile(44100, channels(44100, 900, 2), "WAV", "PCM_16")
    out["six_extensible.wav"] = wide(channels(48000, 300, 6), 48000)
    form = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    body = (channels(8000, 800, 1) * 32767).astype("<i2").tobytes()
    out["endless.wav"] = riff(form, body, 0xFFFFFFFF, 0xFFFFFFFF)
    out["stereo_16.flac"] = by_soundfile(16000, stereo, "FLAC", "PCM_16")
    out["mono_24.flac"] = by_soundfile(48000, channels(48000, 900, 1), "FLAC", "PCM_24")
    flac = bytearray(out["stereo_16.flac"])
    flac[21] &= 0xF0
    flac[22:26] = bytes(4)
    out["no_length.flac"] = bytes(flac)
    out["mono.aiff"] = by_soundfile(11025, channels(11025, 900, 1), "AIFF", "PCM_16")
    out["float.aifc"] = by_soundfile(16000, stereo[:400], "AIFF", "FLOAT")
    # libsndfile gives a stream of Ogg a random number, so the file is made once.
    vorbis = FOLDER / "mono.ogg"
    out["mono.ogg"] = vorbis.read_bytes() if vorbis.exists() else by_soundfile(
        8000, channels(8000, 2000, 1), "OGG", "VORBIS")
    out["flac.ogg"] = by_ffmpeg(16000, stereo, "ogg", "flac", "stereo")
    for name, rate, num, bits in [("mono", 16000, 1, 32000), ("stereo", 44100, 2, 64000), ("low", 8000, 1, 16000)]:
        data = channels(rate, rate // 5, num)
        layout = "mono" if num == 1 else "stereo"
        out[f"{name}.mp3"] = by_ffmpeg(rate, data, "mp3", "libmp3lame", layout, bits)
        out[f"{name}_bare.mp3"] = by_ffmpeg(rate, data, "mp3", "libmp3lame", layout, bits,
                                           {"write_xing": "0", "id3v2_version": "0"})
    tone = channels(16000, 3200, 1)
    out["mono.m4a"] = by_ffmpeg(16000, tone, "ipod", "aac", "mono", 32000)
    out["stereo.m4a"] = by_ffmpeg(44100, channels(44100, 6000, 2), "mp4", "aac", "stereo", 64000)
    fragments = {"movflags": "frag_keyframe+empty_moov"}
    out["fragments.mp4"] = by_ffmpeg(16000, tone, "mp4", "aac", "mono", 32000, fragments)
    out["mono.aac"] = by_ffmpeg(16000, tone, "adts", "aac", "mono", 32000)
    out["alac.m4a"] = by_ffmpeg(16000, tone, "ipod", "alac", "mono")
    out["mono.opus"] = by_ffmpeg(48000, channels(48000, 9600, 1), "ogg", "libopus", "mono", 16000)
    out["stereo.opus"] = by_ffmpeg(48000, channels(48000, 9600, 2), "ogg", "libopus", "stereo", 32000)
    return out


def ffmpeg(data):
    """Samples of each channel as FFmpeg decodes them, and the rate."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        rate, pieces = stream.rate, []
        resampler = av.AudioResampler(format="fltp", layout=stream.layout, rate=rate)
        for frame in container.decode(stream):
            pieces += [piece.to_ndarray() for piece in resampler.resample(frame)]
        return np.concatenate(pieces, 1).T, rate


def decoded(files):
    for name, data in sorted(files.items()):
        if name in UNREAD:
            continue
        by = "libsndfile"
        try:
            if name.endswith((".mp3", ".opus")) or name == "no_length.flac":
                raise soundfile.LibsndfileError(0)
            samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError:
            (samples, rate), by = ffmpeg(data), "FFmpeg"
        mean = samples.mean(axis=1, dtype=np.float32)
        step = max(len(mean) // 40, 1)
        yield {
            "file": name, "by": by, "rate": rate, "channels": samples.shape[1],
            "samples": len(mean), "step": step,
            "mean": [round(float(value), 7) for value in mean[::step]],
        }


def resampled():
    for rate, to, count in [(8000, 16000, 700), (44100, 16000, 2000), (48000, 16000, 1500),
                            (22050, 16000, 1000), (16000, 8000, 700), (11025, 16000, 500),
                            (96000, 16000, 3000), (32000, 24000, 900), (12345, 16000, 500)]:
        tone = torch.from_numpy(tones(rate, count, 1)).double()
        ours = torchaudio.functional.resample(tone, rate, to).numpy()
        step = max(len(ours) // 60, 1)
        yield {"rate": rate, "to": to, "count": count, "samples": len(ours), "step": step,
               "values": [round(float(value), 7) for value in ours[::step]]}


def features():
    for mels in [80, 128]:
        extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
        for rate, count, seed in [(16000, 4800, 1), (16000, 16000, 3), (16000, 333, 2)]:
            tone = tones(rate, count, seed)
            got = extractor(tone, sampling_rate=rate, return_tensors="np").input_features[0]
            heard = got[:, :count // 160 + 3]
            frames = [0, 1, 7, heard.shape[1] - 4, 2999]
            yield {"mels": mels, "count": count, "seed": seed, "frames": frames,
                   "sum": round(float(heard.astype(np.float64).sum()), 4), "summed": heard.shape[1],
                   "values": [[round(float(v), 6) for v in got[:, frame]] for frame in frames]}


def lines(items):
    versions = {
        "soundfile": soundfile.__version__, "av": av.__version__,
        "torch": torch.__version__.split("+")[0], "torchaudio": torchaudio.__version__.split("+")[0],
        "transformers": transformers.__version__, "numpy": np.__version__,
    }
    return "".join(json.dumps(line) + "\n" for line in [{"versions": versions}, *items]).encode()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    out = files()
    described = {"decoded.jsonl": lines(decoded(out)), "resampled.jsonl": lines(resampled()),
                 "features.jsonl": lines(features())}
    out.update(described)
    if args.check:
        wrong = [name for name, data in out.items()
                 if not (FOLDER / name).exists() or (FOLDER / name).read_bytes() != data]
        sys.exit(f"differ: {wrong}" if wrong else 0)
    FOLDER.mkdir(exist_ok=True)
    for name, data in out.items():
        (FOLDER / name).write_bytes(data)
        print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
