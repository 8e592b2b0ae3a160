//! `Entries`: the members of a tar archive (ustar, and the long names of GNU and PAX), from a
//! stream. Sizes are not trusted: what a header says is read as far as it comes.

use std::io::{self, ErrorKind, Read};

use super::BLOCK;
use vllm_batch_base::files::quoted;

/// Bytes of the longest name or list of attributes.
const MAX_ATTRIBUTES: u64 = 1 << 20;

/// Where the mark of ustar and GNU stands, and what begins it.
const MAGIC: (usize, &[u8]) = (257, b"ustar");

/// The mark of POSIX, whose names have a second part.
const POSIX: &[u8] = b"ustar\0";

/// Whether an input that begins so is an archive.
pub(in crate::input) fn begins_tar(head: &[u8]) -> bool {
    let (place, magic) = MAGIC;
    head.len() >= BLOCK && head[place..].starts_with(magic) && is_whole(&head[..BLOCK])
}

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Folder,
    /// A link, a device, a pipe, or a file with holes.
    Other,
}

/// A member, by its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) kind: Kind,
}

/// Attributes of the member that comes next, from members before it.
#[derive(Default)]
struct Attributes {
    name: Option<String>,
    size: Option<u64>,
    is_sparse: bool,
}

/// The members of an archive, in their order.
pub(super) struct Entries {
    input: Box<dyn Read + Send>,
    /// Bytes of the last member and behind it that were not read.
    unread: u64,
    /// The name of the last member.
    last: String,
    has_ended: bool,
}

impl Entries {
    pub(super) fn new(input: Box<dyn Read + Send>) -> Self {
        Self { input, unread: 0, last: String::new(), has_ended: false }
    }

    /// The next member. What is left of the one before is passed over.
    ///
    /// # Errors
    /// The archive is cut off or damaged.
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut attributes = Attributes::default();
        loop {
            self.pass_over()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = number(&header[124..136]);
            let size = size.ok_or_else(|| self.damaged("has a header without a size"))?;
            self.set_size(size)?;
            match header[156] {
                b'L' => attributes.name = Some(text_of(&self.attributes(size)?)),
                b'x' => {
                    let list = self.attributes(size)?;
                    self.read_attributes(&list, &mut attributes)?;
                }
                // Of links, and of all members: nothing that is read.
                b'K' | b'g' => {}
                kind => return self.entry(&header, kind, size, attributes).map(Some),
            }
        }
    }

    fn entry(
        &mut self,
        header: &[u8; BLOCK],
        kind: u8,
        size: u64,
        attributes: Attributes,
    ) -> io::Result<Entry> {
        let size = match attributes.size {
            Some(size) => {
                self.set_size(size)?;
                size
            }
            None => size,
        };
        let kind = match kind {
            _ if attributes.is_sparse => Kind::Other,
            b'0' | 0 | b'7' => Kind::File,
            b'5' => Kind::Folder,
            _ => Kind::Other,
        };
        let name = attributes.name.unwrap_or_else(|| name_of(header));
        self.last.clone_from(&name);
        Ok(Entry { name, size, kind })
    }

    /// The bytes of the member that came last.
    ///
    /// # Errors
    /// They do not come.
    pub(super) fn read(&mut self, entry: &Entry) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(entry.size).read_to_end(&mut bytes)? as u64;
        self.unread -= read;
        match read == entry.size {
            true => Ok(bytes),
            false => Err(self.cut_off()),
        }
    }

    fn set_size(&mut self, size: u64) -> io::Result<()> {
        let whole = size.checked_next_multiple_of(BLOCK as u64);
        self.unread = whole.ok_or_else(|| self.damaged("has a header with no possible size"))?;
        Ok(())
    }

    fn pass_over(&mut self) -> io::Result<()> {
        let passed = io::copy(&mut (&mut self.input).take(self.unread), &mut io::sink())?;
        if passed < self.unread {
            return Err(self.cut_off());
        }
        self.unread = 0;
        Ok(())
    }

    /// The next header; None: the archive ends.
    fn header(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        if self.has_ended {
            return Ok(None);
        }
        let (mut block, mut length) = ([0; BLOCK], 0);
        while length < BLOCK {
            match self.input.read(&mut block[length..]) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.has_ended = length == 0 || block == [0; BLOCK];
        if self.has_ended {
            self.refuse_more()?;
            return Ok(None);
        }
        match length {
            BLOCK if is_whole(&block) => Ok(Some(block)),
            BLOCK => Err(self.damaged("has a damaged header")),
            _ => Err(self.cut_off()),
        }
    }

    /// Behind the end there are zeros alone: rows of a second archive would be lost.
    fn refuse_more(&mut self) -> io::Result<()> {
        let mut piece = vec![0; 64 << 10];
        loop {
            match self.input.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) if piece[..count].iter().all(|byte| *byte == 0) => {}
                Ok(_) => {
                    return Err(self.damaged("has bytes behind its end; name joined ones apart"));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The bytes of a member that says something of the next.
    fn attributes(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > MAX_ATTRIBUTES {
            return Err(self.damaged("has a name that is too long"));
        }
        let entry = Entry { name: String::new(), size, kind: Kind::Other };
        self.read(&entry)
    }

    /// A list of PAX: lines `LENGTH KEY=VALUE`.
    fn read_attributes(&self, list: &[u8], attributes: &mut Attributes) -> io::Result<()> {
        let mut rest = list;
        while !rest.is_empty() {
            let line =
                next_attribute(rest).ok_or_else(|| self.damaged("has damaged attributes"))?;
            let (length, key, value) = line;
            match key {
                b"path" => attributes.name = Some(text_of(value)),
                b"size" => {
                    let size = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    let size = size.ok_or_else(|| self.damaged("has damaged attributes"))?;
                    attributes.size = Some(size);
                }
                key => attributes.is_sparse |= key.starts_with(b"GNU.sparse."),
            }
            rest = &rest[length..];
        }
        Ok(())
    }

    fn damaged(&self, what: &str) -> io::Error {
        io::Error::new(ErrorKind::InvalidData, format!("the tar archive {what}, {}", self.place()))
    }

    fn cut_off(&self) -> io::Error {
        let what = format!("the tar archive is cut off, {}", self.place());
        io::Error::new(ErrorKind::UnexpectedEof, what)
    }

    fn place(&self) -> String {
        match self.last.as_str() {
            "" => "before its first member".to_owned(),
            last => format!("in or behind the member {}", quoted(last)),
        }
    }
}

/// Length, key and value of the first line of a list.
fn next_attribute(list: &[u8]) -> Option<(usize, &[u8], &[u8])> {
    let space = list.iter().position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(&list[..space]).ok()?.parse().ok()?;
    let line = list.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = line.iter().position(|byte| *byte == b'=')?;
    Some((length, &line[..equals], &line[equals + 1..]))
}

/// Whether the checksum of a header is that of its bytes, in which it counts as spaces.
fn is_whole(header: &[u8]) -> bool {
    let bytes = header.iter().enumerate();
    let sum: u64 = bytes
        .map(
            |(place, byte)| {
                if (148..156).contains(&place) { u64::from(b' ') } else { u64::from(*byte) }
            },
        )
        .sum();
    number(&header[148..156]) == Some(sum)
}

/// A number of octal digits, or of bytes behind a first bit (GNU).
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let first = u64::from(field[0] & 0x7f);
        return field[1..].iter().try_fold(first, |number, byte| {
            number.checked_mul(256)?.checked_add(u64::from(*byte))
        });
    }
    let text = str::from_utf8(field).ok()?;
    let digits = text.trim_matches(|c: char| c == ' ' || c == '\0');
    u64::from_str_radix(if digits.is_empty() { "0" } else { digits }, 8).ok()
}

fn name_of(header: &[u8; BLOCK]) -> String {
    let name = text_of(&header[..100]);
    let prefix = text_of(&header[345..500]);
    match header[MAGIC.0..].starts_with(POSIX) && !prefix.is_empty() {
        true => format!("{prefix}/{name}"),
        false => name,
    }
}

/// Text up to the first zero.
fn text_of(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
