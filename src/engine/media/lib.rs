//! Bytes of an image in, patches of a vision tower out. Knows no row, no engine, no file and no
//! network.
//!
//! Read first: [`MediaId`], [`Medium`], [`ImageProcessor`].

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
mod thumbnail;

pub use error::MediaError;
pub use formats::Format;
pub use header::{Header, decode, probe};
pub use id::{MediaId, MediaKind};
pub use limits::Limits;
pub use medium::{Encoded, Medium};
pub use processor::{
    Company, ConfigError, ImageProcessor, Joined, Layout, Lines, Marks, Middle, Normalization,
    PatchOrder, Patches, Tower,
};
pub use resize::{Backend, Filter, resize};
pub use rgb::Rgb8;
pub use thumbnail::thumbnail;
