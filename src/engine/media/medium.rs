//! A medium of a prompt: who it is, what its header says, and where its bytes are.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::error::MediaError;
use crate::header::{self, Header};
use crate::id::{MediaId, MediaKind};
use crate::limits::Limits;
use crate::rgb::Rgb8;
use crate::sound::{self, Samples};

/// Where encoded bytes are. They may be read more than once.
pub trait Encoded: fmt::Debug + Send + Sync {
    /// All bytes.
    ///
    /// # Errors
    ///
    /// If they cannot be read, or are more than the limits allow.
    fn read(&self, limits: &Limits) -> Result<Cow<'_, [u8]>, MediaError>;

    /// Whether bytes that were read are those of a medium. Who makes them of others knows it.
    fn is_of(&self, kind: MediaKind, id: MediaId, bytes: &[u8]) -> bool {
        MediaId::new(kind, bytes) == id
    }

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

/// A medium of a prompt, known by its header. It is decoded when a tower needs it.
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

impl Eq for Medium {}

impl Medium {
    /// Reads the bytes once, for identity and header.
    ///
    /// # Errors
    ///
    /// If they cannot be read, their format is not known, or the limits are exceeded.
    pub fn new(
        kind: MediaKind,
        encoded: impl Encoded + 'static,
        limits: Limits,
    ) -> Result<Self, MediaError> {
        let bytes = encoded.read(&limits)?;
        let header = Header::of(kind, &bytes, &limits)?;
        let id = MediaId::new(kind, &bytes);
        drop(bytes);
        Ok(Self { id, header, limits, encoded: Arc::new(encoded) })
    }

    /// One that is known from before. Its bytes are read when it is decoded, and have to be the
    /// same then.
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

    /// What it is.
    pub fn kind(&self) -> MediaKind {
        self.header.kind()
    }

    /// Its format and size.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes that it keeps in memory: none of a file's.
    pub fn num_bytes_held(&self) -> usize {
        self.encoded.num_bytes_held()
    }

    /// The pixels of an image.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be read again, are others than before, or are damaged; or if it is no
    /// image.
    pub fn decode_image(&self) -> Result<Rgb8, MediaError> {
        match self.header {
            Header::Image(_) => header::decode(&self.bytes()?, &self.limits),
            Header::Sound(_) => Err(MediaError::unsupported("a recording has no pixels")),
        }
    }

    /// The samples of a recording.
    ///
    /// # Errors
    ///
    /// As [`Self::decode_image`].
    pub fn decode_sound(&self) -> Result<Samples, MediaError> {
        match self.header {
            Header::Sound(_) => sound::decode(&self.bytes()?, &self.limits),
            Header::Image(_) => Err(MediaError::unsupported("an image has no sound")),
        }
    }

    /// The bytes, which are still what they were.
    fn bytes(&self) -> Result<Cow<'_, [u8]>, MediaError> {
        let bytes = self.encoded.read(&self.limits)?;
        if !self.encoded.is_of(self.kind(), self.id, &bytes) {
            return Err(MediaError::changed());
        }
        Ok(bytes)
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
        let medium = {
            let replaced = Replaced(Arc::clone(&shared));
            Medium::new(MediaKind::Image, replaced, Limits::default()).unwrap()
        };
        let header = medium.header().image().unwrap();
        assert_eq!((header.width, header.height), (3, 2));
        assert_eq!(medium.decode_image().unwrap().pixels(), [7; 18]);
        *shared.lock().unwrap() = png(2, 3);
        assert_eq!(medium.decode_image().unwrap_err().code(), "media_changed");
    }

    #[test]
    fn equal_bytes_are_one_medium_and_limits_hold_for_them() {
        let medium = |bytes, limits| Medium::new(MediaKind::Image, bytes, limits);
        let [a, b, c] = [(3, 2), (3, 2), (2, 3)]
            .map(|(width, height)| medium(png(width, height), Limits::default()).unwrap());
        assert!(a == b && a != c);
        let limits = Limits { max_bytes: 10, ..Limits::default() };
        assert_eq!(medium(png(3, 2), limits).unwrap_err().code(), "media_too_large");
    }
}
