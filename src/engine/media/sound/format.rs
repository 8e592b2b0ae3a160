//! Formats of recordings, by their first bytes.

use std::fmt;

use crate::error::MediaError;

/// A format that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SoundFormat {
    /// RIFF WAVE: PCM, floats, A-law, mu-law.
    Wav,
    /// FLAC.
    Flac,
    /// MPEG audio, layer 3.
    Mp3,
    /// Vorbis or FLAC in Ogg.
    Ogg,
    /// AAC in ADTS.
    Aac,
    /// AAC or ALAC in MP4.
    Mp4,
    /// AIFF and AIFF-C.
    Aiff,
}

/// Formats that are known and not read: where their mark stands, and the mark.
const UNREAD: &[(&str, usize, &[u8])] = &[
    ("AC-3", 0, b"\x0b\x77"),
    ("AMR", 0, b"#!AMR"),
    ("ASF (WMA)", 0, b"\x30\x26\xb2\x75"),
    ("CAF", 0, b"caff"),
    ("DSF", 0, b"DSD "),
    ("FLV", 0, b"FLV"),
    ("MIDI", 0, b"MThd"),
    ("Matroska or WebM", 0, b"\x1a\x45\xdf\xa3"),
    ("Monkey's Audio", 0, b"MAC "),
    ("RF64", 0, b"RF64"),
    ("Sun audio", 0, b".snd"),
    ("WavPack", 0, b"wvpk"),
];

/// Tags in front of a recording that are passed over.
const MAX_TAGS: usize = 64;

const READ: &str = "WAV, FLAC, MP3, Ogg Vorbis, AAC, M4A and AIFF are read";

impl SoundFormat {
    /// The format of bytes, by the first of them.
    ///
    /// # Errors
    ///
    /// If it is not known, or not read.
    pub fn of(bytes: &[u8]) -> Result<Self, MediaError> {
        let num_tag_bytes = usize::try_from(num_tag_bytes(bytes)).unwrap_or(usize::MAX);
        Self::of_untagged(bytes.get(num_tag_bytes..).unwrap_or_default())
    }

    /// The same of the first bytes behind tags.
    pub(super) fn of_untagged(bytes: &[u8]) -> Result<Self, MediaError> {
        Self::known(bytes).ok_or_else(|| unknown(bytes))
    }

    /// Whether bytes begin as a recording does, as far as they go.
    pub fn begins(bytes: &[u8]) -> bool {
        let is_tagged = num_tag_bytes(bytes) > 0;
        is_tagged || Self::known(bytes).is_some_and(|format| format != SoundFormat::Mp3)
    }

    fn known(bytes: &[u8]) -> Option<Self> {
        let starts = |mark: &[u8]| bytes.starts_with(mark);
        let has = |at: usize, mark: &[u8]| bytes.get(at..).is_some_and(|b| b.starts_with(mark));
        Some(match () {
            () if starts(b"RIFF") && has(8, b"WAVE") => SoundFormat::Wav,
            () if starts(b"fLaC") => SoundFormat::Flac,
            () if starts(b"FORM") && (has(8, b"AIFF") || has(8, b"AIFC")) => SoundFormat::Aiff,
            () if starts(b"OggS") => ogg(bytes)?,
            () if has(4, b"ftyp") && !is_picture(bytes) => SoundFormat::Mp4,
            () => match bytes {
                // ADTS has no layer, and MPEG audio of layer 3 has layer 1 here.
                [0xff, second, ..] if second & 0xf6 == 0xf0 => SoundFormat::Aac,
                [0xff, second, third, ..]
                    if second & 0xe6 == 0xe2 && third >> 4 != 15 && third >> 2 & 3 != 3 =>
                {
                    SoundFormat::Mp3
                }
                _ => return None,
            },
        })
    }
}

/// What is in an Ogg file, by the first packet of its first page.
fn ogg(bytes: &[u8]) -> Option<SoundFormat> {
    let num_segments = usize::from(*bytes.get(26)?);
    let packet = bytes.get(27 + num_segments..)?;
    match packet.get(..7)? {
        b"\x01vorbis" => Some(SoundFormat::Ogg),
        [0x7f, b'F', b'L', b'A', b'C', ..] => Some(SoundFormat::Ogg),
        _ => None,
    }
}

/// Whether an ISO file is one of HEIF.
fn is_picture(bytes: &[u8]) -> bool {
    let brand = bytes.get(8..12).unwrap_or_default();
    matches!(brand, b"avif" | b"avis" | b"heic" | b"heix" | b"heim" | b"heis" | b"mif1" | b"msf1")
}

/// Bytes that the ID3v2 tags in front of a recording say they have.
fn num_tag_bytes(bytes: &[u8]) -> u64 {
    tag_len(|at| bytes.get(usize::try_from(at).ok()?..)?.first_chunk().copied())
}

/// The same, of what is at a place.
pub(super) fn tag_len(mut head: impl FnMut(u64) -> Option<[u8; 10]>) -> u64 {
    let mut len = 0;
    for _ in 0..MAX_TAGS {
        let Some([b'I', b'D', b'3', _, _, flags, a, b, c, d]) = head(len) else { break };
        let size = [a, b, c, d].iter().fold(0, |size, byte| size << 7 | u64::from(byte & 0x7f));
        let footer = if flags & 0x10 != 0 { 10 } else { 0 };
        len += 10 + size + footer;
    }
    len
}

fn unknown(bytes: &[u8]) -> MediaError {
    if bytes.is_empty() {
        return MediaError::decode("the recording has no bytes");
    }
    let has = |(_, at, mark): &&(&str, usize, &[u8])| {
        bytes.get(*at..).is_some_and(|rest| rest.starts_with(mark))
    };
    let of_ogg = || bytes.starts_with(b"OggS").then(|| ogg_name(bytes));
    match UNREAD.iter().find(has).map(|(name, ..)| *name).or_else(of_ogg) {
        Some(name) => {
            MediaError::unsupported(format!("the recording is {name}; help: convert it: {READ}"))
        }
        None => MediaError::decode(format!("the bytes are no recording of a known format; {READ}")),
    }
}

/// What is in an Ogg file that is not read.
fn ogg_name(bytes: &[u8]) -> &'static str {
    let has = |mark: &[u8]| bytes[..bytes.len().min(512)].windows(mark.len()).any(|w| w == mark);
    match () {
        () if has(b"OpusHead") => "Opus",
        () if has(b"Speex") => "Speex",
        () => "Ogg without Vorbis",
    }
}

impl fmt::Display for SoundFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SoundFormat::Wav => "WAV",
            SoundFormat::Flac => "FLAC",
            SoundFormat::Mp3 => "MP3",
            SoundFormat::Ogg => "Ogg",
            SoundFormat::Aac => "AAC",
            SoundFormat::Mp4 => "M4A",
            SoundFormat::Aiff => "AIFF",
        })
    }
}
