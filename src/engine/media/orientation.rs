//! How the camera was held: the EXIF tag, or the word of XMP where that is missing, as
//! `ImageOps.exif_transpose` reads them. What cannot be read is upright.

/// A value of EXIF's tag 274, from 1 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orientation(u8);

const TAG: u16 = 0x0112;

impl Orientation {
    pub(crate) const UPRIGHT: Self = Orientation(1);

    /// From the TIFF structure of EXIF, and from XMP where EXIF has no orientation.
    pub(crate) fn read(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> Self {
        let value = exif.and_then(exif_value).or_else(|| xmp.and_then(xmp_value));
        value.map_or(Self::UPRIGHT, Self::of_value)
    }

    /// Values that EXIF does not know are upright.
    pub(crate) fn of_value(value: u32) -> Self {
        match value {
            1..=8 => Orientation(value as u8),
            _ => Self::UPRIGHT,
        }
    }

    /// Width and height, once turned.
    pub(crate) fn size<T>(self, width: T, height: T) -> (T, T) {
        match self.0 {
            5..=8 => (height, width),
            _ => (width, height),
        }
    }

    /// Where the pixel at `(x, y)` of the turned image is in one of `width` by `height`.
    pub(crate) fn source(self, x: usize, y: usize, width: usize, height: usize) -> (usize, usize) {
        let (right, below) = (width - 1, height - 1);
        match self.0 {
            2 => (right - x, y),
            3 => (right - x, below - y),
            4 => (x, below - y),
            5 => (y, x),
            6 => (y, below - x),
            7 => (right - y, below - x),
            8 => (right - y, x),
            _ => (x, y),
        }
    }
}

/// The tag in the first directory. `Exif\0\0` may stand before the structure.
fn exif_value(exif: &[u8]) -> Option<u32> {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let is_big = match exif.get(..2)? {
        b"II" => false,
        b"MM" => true,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = exif.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = exif.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    };
    let first = long(4)? as usize;
    let entries = (0..usize::from(short(first)?)).map(|index| first + 2 + index * 12);
    let entry = entries.into_iter().find(|&entry| short(entry) == Some(TAG))?;
    match short(entry + 2)? {
        1 => exif.get(entry + 8).map(|&byte| u32::from(byte)),
        3 => short(entry + 8).map(u32::from),
        4 => long(entry + 8),
        _ => None,
    }
}

/// The digit after `tiff:Orientation="` or `tiff:Orientation>`.
fn xmp_value(xmp: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"tiff:Orientation";
    let ends = xmp.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME);
    let mut rests = ends.map(|(at, _)| &xmp[at + NAME.len()..]);
    rests.find_map(|rest| {
        let digit = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">"))?.first()?;
        digit.is_ascii_digit().then(|| u32::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exif(is_big: bool, ty: u16, value: u32) -> Vec<u8> {
        let mut bytes = if is_big { b"MM\0*".to_vec() } else { b"II*\0".to_vec() };
        let mut put = |value: u32, len: usize| match is_big {
            true => bytes.extend_from_slice(&value.to_be_bytes()[4 - len..]),
            false => bytes.extend_from_slice(&value.to_le_bytes()[..len]),
        };
        for (value, len) in [(8, 4), (2, 2), (0x10f, 2), (2, 2), (4, 4), (0, 4)] {
            put(value, len);
        }
        for (value, len) in [(u32::from(TAG), 2), (u32::from(ty), 2), (1, 4)] {
            put(value, len);
        }
        put(value, if ty == 3 { 2 } else { 4 });
        put(0, 4);
        bytes
    }

    #[test]
    fn both_byte_orders_are_read_and_exif_goes_first() {
        let xmp = b"<a tiff:Orientation=\"8\"/>".as_slice();
        for is_big in [false, true] {
            for ty in [3, 4] {
                let exif = exif(is_big, ty, 6);
                assert_eq!(Orientation::read(Some(&exif), Some(xmp)), Orientation(6));
                for len in 0..exif.len() - 6 {
                    assert_eq!(Orientation::read(Some(&exif[..len]), None), Orientation::UPRIGHT);
                }
            }
            let strange = exif(is_big, 3, 9);
            assert_eq!(Orientation::read(Some(&strange), Some(xmp)), Orientation::UPRIGHT);
        }
        assert_eq!(Orientation::read(Some(b"II*\0\xff\xff\xff\xff"), Some(xmp)), Orientation(8));
        let element = b"<tiff:Orientation>3</tiff:Orientation>".as_slice();
        assert_eq!(Orientation::read(None, Some(element)), Orientation(3));
    }
}
