//! Who a medium is, known before it is decoded.

use std::fmt;

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MediaKind {
    /// A still picture.
    Image,
    /// A recording.
    Sound,
}

impl MediaKind {
    /// As chats and flags name it. Hashes have it too.
    pub fn name(self) -> &'static str {
        match self {
            MediaKind::Image => "image",
            MediaKind::Sound => "audio",
        }
    }
}

/// The identity of a medium: blake3 over its kind and its encoded bytes, each after its length, so
/// that no other split of the same bytes has it. Equal pixels in two files are two media.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MediaId([u8; 32]);

impl MediaId {
    /// The identity of encoded bytes.
    pub fn new(kind: MediaKind, bytes: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in [b"vllm-batch media".as_slice(), kind.name().as_bytes(), bytes] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        MediaId(*hasher.finalize().as_bytes())
    }

    /// An identity that was written down.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for MediaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for MediaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MediaId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_of_kind_and_bytes() {
        let id = |bytes: &[u8]| MediaId::new(MediaKind::Image, bytes).to_string();
        assert_eq!(id(b"pixels"), id(b"pixels"));
        assert_ne!(id(b"pixels"), id(b"pixelt"));
        assert_ne!(id(b""), id(b"\0"));
        assert_ne!(id(b"pixels"), MediaId::new(MediaKind::Sound, b"pixels").to_string());
        // Journals hold it: it may not change.
        assert_eq!(id(b"pixels"), PINNED);
    }

    const PINNED: &str = "53bcc5551d16d0b4d94c7d1b51552c2af8a9a9568065217a38e2688dc43d8cd6";
}
