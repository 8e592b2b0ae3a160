//! Thrift's compact protocol, as far as Parquet's headers need it. The bytes are not trusted: what
//! they say they hold is counted before anyone allocates for it.

/// Deepest nesting of structs and lists.
const MAX_DEPTH: usize = 32;

/// The kinds of values that Parquet has.
pub(super) mod kind {
    pub(crate) const TRUE: u8 = 1;
    pub(crate) const FALSE: u8 = 2;
    pub(crate) const BYTE: u8 = 3;
    pub(crate) const I16: u8 = 4;
    pub(crate) const I64: u8 = 6;
    pub(crate) const DOUBLE: u8 = 7;
    pub(crate) const BINARY: u8 = 8;
    pub(crate) const LIST: u8 = 9;
    pub(crate) const SET: u8 = 10;
    pub(crate) const STRUCT: u8 = 12;
}

/// A field of a struct: its number, and the kind of what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub id: i16,
    pub kind: u8,
}

/// A reader of bytes. Everything is None where they end or are no thrift.
pub(super) struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Compact<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes that were read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// An integer of any width but a byte's.
    pub(super) fn int(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Bytes with their length before them.
    pub(super) fn binary(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let bytes = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(bytes)
    }

    /// The kind and number of a list's items. Each takes a byte at least.
    pub(super) fn list(&mut self) -> Option<(u8, usize)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => usize::try_from(self.varint()?).ok()?,
            count => usize::from(count),
        };
        (count <= self.bytes.len() - self.at).then_some((head & 0x0f, count))
    }

    /// The fields of a struct. `take` reads the value of each, or says with false that it did not.
    pub(super) fn fields(
        &mut self,
        mut take: impl FnMut(&mut Self, Field) -> Option<bool>,
    ) -> Option<()> {
        let mut id = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            id = match head >> 4 {
                0 => i16::try_from(self.int()?).ok()?,
                delta => id.checked_add(i16::from(delta))?,
            };
            let field = Field { id, kind: head & 0x0f };
            if !take(self, field)? {
                self.skip(field.kind, MAX_DEPTH)?;
            }
        }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            kind::TRUE | kind::FALSE => {}
            kind::BYTE => drop(self.byte()?),
            kind::I16..=kind::I64 => drop(self.varint()?),
            kind::DOUBLE => {
                self.at = self.at.checked_add(8).filter(|at| *at <= self.bytes.len())?;
            }
            kind::BINARY => drop(self.binary()?),
            kind::LIST | kind::SET => {
                let (item, count) = self.list()?;
                for _ in 0..count {
                    match item {
                        // In a list a truth is a byte.
                        kind::TRUE | kind::FALSE => drop(self.byte()?),
                        item => self.skip(item, depth)?,
                    }
                }
            }
            kind::STRUCT => loop {
                let head = self.byte()?;
                if head == 0 {
                    break;
                }
                if head >> 4 == 0 {
                    self.int()?;
                }
                self.skip(head & 0x0f, depth)?;
            },
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_and_others_passed_over() {
        // 1: i32 -3; 2: list of two structs {1: "ab"}; 7: double; 40: true; stop.
        let mut bytes = vec![0x15, 0x05, 0x19, 0x2c, 0x18, 2, b'a', b'b', 0, 0x18, 0, 0];
        bytes.extend([0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 80, 0x00]);
        let mut compact = Compact::new(&bytes);
        let mut found = Vec::new();
        let read = compact.fields(|compact, field| {
            found.push(field);
            match field.id {
                1 => Some(compact.int()? == -3),
                _ => Some(false),
            }
        });
        assert_eq!((read, compact.position()), (Some(()), bytes.len()));
        let found: Vec<_> = found.iter().map(|field| (field.id, field.kind)).collect();
        assert_eq!(found, [(1, 5), (2, 9), (7, 7), (40, 1)]);
        for end in 0..bytes.len() {
            assert_eq!(Compact::new(&bytes[..end]).fields(|_, _| Some(false)), None, "{end}");
        }
    }

    #[test]
    fn what_is_no_thrift_is_none() {
        let mut nested = vec![0x1c; 40];
        nested.extend([0; 41]);
        for bytes in [&nested[..], &[0x19, 0xf8, 0xff, 0xff, 3], &[0x1e, 0], &[0xff; 20]] {
            assert_eq!(Compact::new(bytes).fields(|_, _| Some(false)), None, "{bytes:?}");
        }
    }
}
