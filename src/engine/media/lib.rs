//! Bytes of an image or a recording in, patches or features of a tower out. Knows no row, no
//! engine, no file and no network.
//!
//! Read first: [`MediaId`], [`Medium`], [`ImageProcessor`], [`SoundProcessor`].

#![warn(missing_docs, unreachable_pub)]

mod error;
mod formats;
#[cfg(test)]
mod goldens;
mod header;
mod id;
mod jpeg;
mod limits;
mod medium;
mod orientation;
mod processor;
mod resize;
mod rgb;
mod sound;
mod thumbnail;

pub use error::MediaError;
pub use formats::Format;
pub use header::{Header, ImageHeader, decode, probe};
pub use id::{MediaId, MediaKind};
pub use limits::Limits;
pub use medium::{Encoded, Medium};
pub use processor::{
    Company, ConfigError, ImageProcessor, Joined, Layout, Lines, Marks, Middle, Normalization,
    PatchOrder, Patches, Tower,
};
pub use resize::{Backend, Filter, resize};
pub use rgb::Rgb8;
pub use sound::{
    Clip, Clips, Features, Samples, Seekable, SoundFormat, SoundHeader, SoundProcessor,
    decode as decode_sound, probe as probe_sound,
};
pub use thumbnail::thumbnail;
