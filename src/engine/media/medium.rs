//! A medium of a prompt: who it is, what its header says, and where its bytes are.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::error::MediaError;
use crate::header::{self, Header};
use crate::id::{MediaId, MediaKind};
use crate::limits::Limits;
use crate::rgb::Rgb8;

/// Where encoded bytes are. They may be read more than once.
pub trait Encoded: fmt::Debug + Send + Sync {
    /// All bytes.
    ///
    /// # Errors
    ///
    /// If they cannot be read, or are more than the limits allow.
    fn read(&self, limits: &Limits) -> Result<Cow<'_, [u8]>, MediaError>;

    /// Bytes that are in memory meanwhile.
    fn num_bytes_held(&self) -> usize {
        0
    }
}

impl Encoded for Vec<u8> {
    fn read(&self, limits: &Limits) -> Result<Cow<'_, [u8]>, MediaError> {
        limits.check_bytes(self)?;
        Ok(Cow::Borrowed(self))
    }

    fn num_bytes_held(&self) -> usize {
        self.len()
    }
}

/// An image of a prompt, known by its header. Its pixels are decoded when a tower needs them.
#[derive(Clone, Debug)]
pub struct Medium {
    id: MediaId,
    header: Header,
    limits: Limits,
    encoded: Arc<dyn Encoded>,
}

/// Media are equal if their bytes are.
impl PartialEq for Medium {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Medium {
    /// Reads the bytes once, for identity and header.
    ///
    /// # Errors
    ///
    /// If they cannot be read, their format is not known, or the limits are exceeded.
    pub fn new(encoded: impl Encoded + 'static, limits: Limits) -> Result<Self, MediaError> {
        let bytes = encoded.read(&limits)?;
        let header = header::probe(&bytes, &limits)?;
        let id = MediaId::new(MediaKind::Image, &bytes);
        drop(bytes);
        Ok(Self { id, header, limits, encoded: Arc::new(encoded) })
    }

    /// One that is known from before. Its bytes are read when its pixels are needed, and have to be
    /// the same then.
    pub fn known(
        id: MediaId,
        header: Header,
        encoded: impl Encoded + 'static,
        limits: Limits,
    ) -> Self {
        Self { id, header, limits, encoded: Arc::new(encoded) }
    }

    /// Who it is.
    pub fn id(&self) -> MediaId {
        self.id
    }

    /// Its format and size.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes that it keeps in memory: none of a file's.
    pub fn num_bytes_held(&self) -> usize {
        self.encoded.num_bytes_held()
    }

    /// Its pixels.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be read again, are others than before, or are damaged.
    pub fn decode(&self) -> Result<Rgb8, MediaError> {
        let bytes = self.encoded.read(&self.limits)?;
        if MediaId::new(MediaKind::Image, &bytes) != self.id {
            let message = "it has changed since its row was read; leave files as they are during \
                           a run";
            return Err(MediaError::Changed(message.to_owned()));
        }
        header::decode(&bytes, &self.limits)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Bytes that somebody may replace.
    #[derive(Debug)]
    struct Replaced(Arc<Mutex<Vec<u8>>>);

    impl Encoded for Replaced {
        fn read(&self, _: &Limits) -> Result<Cow<'_, [u8]>, MediaError> {
            Ok(Cow::Owned(self.0.lock().unwrap().clone()))
        }
    }

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(png::ColorType::Rgb);
        let pixels = vec![7; (width * height * 3) as usize];
        encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
        bytes
    }

    #[test]
    fn bytes_are_read_again_and_have_to_be_the_same() {
        let shared = Arc::new(Mutex::new(png(3, 2)));
        let medium = Medium::new(Replaced(Arc::clone(&shared)), Limits::default()).unwrap();
        assert_eq!((medium.header().width, medium.header().height), (3, 2));
        assert_eq!(medium.decode().unwrap().pixels(), [7; 18]);
        *shared.lock().unwrap() = png(2, 3);
        assert_eq!(medium.decode().unwrap_err().code(), "media_changed");
    }

    #[test]
    fn equal_bytes_are_one_medium_and_limits_hold_for_them() {
        let medium = |bytes, limits| Medium::new(bytes, limits);
        let [a, b, c] = [(3, 2), (3, 2), (2, 3)]
            .map(|(width, height)| medium(png(width, height), Limits::default()).unwrap());
        assert!(a == b && a != c);
        let limits = Limits { max_bytes: 10, ..Limits::default() };
        assert_eq!(medium(png(3, 2), limits).unwrap_err().code(), "media_too_large");
    }
}
