//! JPEG with the bytes of libjpeg-turbo: baseline, extended and progressive, Huffman codes, 8 bits.
//! No crate has them: others have another inverse DCT, upsampling or tables of colours, and a level
//! of difference moves answers. Damaged data is refused where libjpeg only warns.

mod bits;
mod colour;
mod frame;
mod huffman;
mod idct;
mod progressive;
mod scan;
mod segments;
mod upsample;

#[cfg(test)]
mod tests;

use crate::error::MediaError;
use crate::header::Stored;
use crate::orientation::Orientation;
use crate::rgb::Rgb8;

pub(crate) use colour::rgb_of_cmyk;

use colour::Colours;
use scan::Decoder;
use segments::{Marker, Segments};

/// What stands before the first scan.
pub(crate) fn header(bytes: &[u8]) -> Result<Stored, MediaError> {
    let mut segments = Segments::new(bytes)?;
    let (mut exif, mut xmp, mut size) = (Vec::new(), None, None);
    loop {
        let (marker, segment) = segments.next()?;
        match marker {
            Marker::App(1) => match segment.strip_prefix(b"Exif\0\0") {
                Some(part) => exif.extend_from_slice(part),
                None => xmp = segment.strip_prefix(b"http://ns.adobe.com/xap/1.0/\0").or(xmp),
            },
            Marker::Frame(kind) => {
                let frame = frame::Frame::parse(kind, segment)?;
                size = Some((frame.width, frame.height));
            }
            Marker::Scan | Marker::End => break,
            _ => (),
        }
    }
    let (width, height) = size.ok_or_else(|| damaged("a scan without a frame"))?;
    let exif = (!exif.is_empty()).then_some(exif.as_slice());
    let orientation = Orientation::read(exif, xmp);
    Ok(Stored { width: width as u32, height: height as u32, orientation })
}

/// The pixels as they are stored.
pub(crate) fn decode(bytes: &[u8]) -> Result<Rgb8, MediaError> {
    let mut segments = Segments::new(bytes)?;
    let mut decoder = Decoder::default();
    let mut colours = Colours::default();
    loop {
        let (marker, segment) = segments.next()?;
        match marker {
            Marker::App(0) => colours.is_jfif |= segment.starts_with(b"JFIF\0"),
            Marker::App(14) => colours.read_adobe(segment),
            Marker::Frame(kind) => decoder.start_frame(kind, segment, bytes.len())?,
            Marker::Quantization => decoder.read_quantization(segment)?,
            Marker::Huffman => decoder.read_huffman(segment)?,
            Marker::RestartInterval => decoder.read_restart_interval(segment)?,
            Marker::Scan => {
                let rest = segments.rest();
                let len = decoder.decode_scan(segment, rest)?;
                segments.skip(len);
            }
            Marker::End => break,
            Marker::App(_) | Marker::Other => (),
        }
    }
    let (frame, planes) = decoder.finish()?;
    Ok(colours.to_rgb(&frame, &planes))
}

fn damaged(what: &str) -> MediaError {
    MediaError::decode(format!("the JPEG image is damaged: {what}"))
}

fn unsupported(what: &str) -> MediaError {
    MediaError::unsupported(format!("the JPEG image has {what}, which is not read"))
}
