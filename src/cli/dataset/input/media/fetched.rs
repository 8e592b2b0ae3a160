//! `FetchedImage`: what is known of an image or a recording at a URL once it was fetched. A run
//! writes it down, so that a later one knows which its answer is of.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::urls::{Failure, Fetcher};
use vllm_batch_media::{
    Encoded, Format, Header, ImageHeader, Limits, MediaError, MediaId, MediaKind, Medium,
    SoundFormat, SoundHeader,
};

/// Formats, in the order of their numbers. More may follow, and none may leave.
const FORMATS: [Format; 6] =
    [Format::Png, Format::Jpeg, Format::WebP, Format::Gif, Format::Bmp, Format::Tiff];

/// The same of recordings. Their numbers begin at [`FIRST_SOUND`].
const SOUNDS: [SoundFormat; 7] = [
    SoundFormat::Wav,
    SoundFormat::Flac,
    SoundFormat::Mp3,
    SoundFormat::Ogg,
    SoundFormat::Aac,
    SoundFormat::Mp4,
    SoundFormat::Aiff,
];

const FIRST_SOUND: u8 = 128;

/// Bits of a rate, before those of the number of channels. Both are bounded by far less.
const RATE_BITS: u32 = 20;

/// A medium that was fetched, and where from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedImage {
    /// The first half of the hash of its URL.
    url: [u8; 16],
    id: MediaId,
    header: Header,
}

impl FetchedImage {
    /// Bytes of one that is written down: of the URL, of the medium, its format, and two numbers:
    /// width and height, or rate with channels and length.
    pub const LEN: usize = 16 + 32 + 1 + 4 + 4;

    pub(super) fn of(url: &str, medium: &Medium) -> Self {
        Self { url: hash(url), id: medium.id(), header: *medium.header() }
    }

    pub(super) fn kind(&self) -> MediaKind {
        self.header.kind()
    }

    pub(super) fn is_at(&self, url: &str) -> bool {
        self.url == hash(url)
    }

    /// The same as a medium, whose bytes are asked for when somebody needs them.
    pub(super) fn medium(&self, url: &str, fetcher: &Arc<Fetcher>) -> Medium {
        let (url, fetcher) = (url.to_owned(), Arc::clone(fetcher));
        let unfetched = Unfetched { url, fetcher, bytes: OnceLock::new() };
        Medium::known(self.id, self.header, unfetched, Limits::default())
    }

    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.url);
        out.extend_from_slice(self.id.as_bytes());
        let (format, first, second) = match self.header {
            Header::Image(header) => {
                let format = FORMATS.iter().position(|format| *format == header.format);
                (format, header.width, header.height)
            }
            Header::Sound(header) => {
                let format = SOUNDS.iter().position(|format| *format == header.format);
                let format = format.map(|format| format + usize::from(FIRST_SOUND));
                let first = header.sample_rate | header.num_channels << RATE_BITS;
                // Limits keep it below.
                (format, first, header.num_samples as u32)
            }
        };
        out.push(format.expect("each has a number") as u8);
        out.extend_from_slice(&first.to_le_bytes());
        out.extend_from_slice(&second.to_le_bytes());
    }

    /// One of its bytes; None if they are none.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let (url, rest) = bytes.split_first_chunk()?;
        let (id, rest) = rest.split_first_chunk()?;
        let ([format], rest) = rest.split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let first = u32::from_le_bytes(*first);
        let second = u32::from_le_bytes(rest.try_into().ok()?);
        let header = match format.checked_sub(FIRST_SOUND) {
            None => Header::Image(ImageHeader {
                format: *FORMATS.get(usize::from(*format))?,
                width: first,
                height: second,
            }),
            Some(format) => Header::Sound(SoundHeader {
                format: *SOUNDS.get(usize::from(format))?,
                sample_rate: first & ((1 << RATE_BITS) - 1),
                num_channels: first >> RATE_BITS,
                num_samples: u64::from(second),
            }),
        };
        Some(Self { url: *url, id: MediaId::from_bytes(*id), header })
    }
}

fn hash(url: &str) -> [u8; 16] {
    let hash = blake3::hash(url.as_bytes());
    *hash.as_bytes().first_chunk().expect("16 of 32 bytes")
}

/// The bytes of an image that is known, at its URL.
#[derive(Debug)]
struct Unfetched {
    url: String,
    fetcher: Arc<Fetcher>,
    /// Once they were needed.
    bytes: OnceLock<Result<Vec<u8>, Failure>>,
}

impl Encoded for Unfetched {
    fn read(&self, limits: &Limits) -> Result<Cow<'_, [u8]>, MediaError> {
        let fetched = self.bytes.get_or_init(|| self.fetcher.fetch(&self.url, limits.max_bytes));
        match fetched {
            Ok(bytes) => bytes.read(limits),
            Err(failure) => {
                let (code, what) = failure.clone().into_fault(&self.url);
                Err(MediaError::Unfetched(code, what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_is_read_again() {
        let pictures =
            FORMATS.map(|format| Header::Image(ImageHeader { format, width: 70_000, height: 3 }));
        let sounds = SOUNDS.map(|format| {
            let (sample_rate, num_channels, num_samples) = (192_000, 64, 115_200_000);
            Header::Sound(SoundHeader { format, sample_rate, num_channels, num_samples })
        });
        for header in pictures.into_iter().chain(sounds) {
            let id = MediaId::from_bytes([7; 32]);
            let image = FetchedImage { url: hash("http://a/b.png"), id, header };
            let mut bytes = Vec::new();
            image.encode(&mut bytes);
            let bytes: [u8; FetchedImage::LEN] = bytes.try_into().unwrap();
            assert_eq!(FetchedImage::decode(&bytes).as_ref(), Some(&image));
            assert!(image.is_at("http://a/b.png") && !image.is_at("http://a/b"));
        }
        assert_eq!(FetchedImage::decode(&[9; FetchedImage::LEN]), None, "no format has the number");
        assert_eq!(FetchedImage::decode(&[200; FetchedImage::LEN]), None);
    }
}
