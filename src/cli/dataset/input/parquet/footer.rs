//! Memory of a footer, counted before the parquet crate makes it: by recursion, and
//! with room for as many columns as it says there are.

use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};

use super::thrift::{Compact, Field, kind};

/// Bytes that may become of a footer.
const MAX_METADATA: u64 = 256 << 20;

/// Deepest nesting of columns.
const MAX_NESTING: usize = 64;

/// Bytes of a column in the crate's tree and in this program's, its names apart.
const COLUMN: u64 = 1 << 10;

/// Bytes of a name in a column's path.
const NAME: u64 = 64;

/// Bytes of a column of a row group beside its struct.
const BESIDE_CHUNK: u64 = 128;

/// Why a footer is not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It says what cannot be.
    Damaged,
    /// Columns are encrypted.
    Encrypted,
    /// It would take so many bytes.
    TooLarge(u64),
}

/// Counts of a footer.
#[derive(Default)]
struct Counts {
    is_tree: bool,
    /// Bytes of the tree of columns.
    schema_bytes: u64,
    groups: u64,
    chunks: u64,
    is_encrypted: bool,
}

/// # Errors
/// It is not read.
pub(super) fn check(footer: &[u8]) -> Result<(), Unread> {
    let counts = count(footer).ok_or(Unread::Damaged)?;
    if counts.is_encrypted {
        return Err(Unread::Encrypted);
    }
    let of_groups = counts.groups * size_of::<RowGroupMetaData>() as u64;
    let of_chunks = counts.chunks * (size_of::<ColumnChunkMetaData>() as u64 + BESIDE_CHUNK);
    let bytes = counts.schema_bytes + of_groups + of_chunks + footer.len() as u64;
    match bytes > MAX_METADATA {
        true => Err(Unread::TooLarge(bytes)),
        false if counts.is_tree => Ok(()),
        false => Err(Unread::Damaged),
    }
}

impl Unread {
    /// For people: what is wrong, and what to do about it.
    pub(super) fn text(&self) -> (String, &'static str) {
        match self {
            Unread::Damaged => (
                "the Parquet file is damaged: its footer says what cannot be".to_owned(),
                "copy the file again, or write it again",
            ),
            Unread::Encrypted => (
                "columns of the Parquet file are encrypted".to_owned(),
                "decrypt them: this program has no keys",
            ),
            Unread::TooLarge(bytes) => (
                format!(
                    "the footer of the Parquet file would take {} MiB of memory, the limit is {}",
                    bytes >> 20,
                    MAX_METADATA >> 20
                ),
                "write the file again with fewer columns, or with larger row groups",
            ),
        }
    }
}

/// Counts of a footer; `None`: it is no thrift, or its columns are no tree.
fn count(footer: &[u8]) -> Option<Counts> {
    let mut counts = Counts::default();
    Compact::new(footer).fields(|compact, field| match (field.id, field.kind) {
        (2, kind::LIST) => counts.schema(compact).map(|()| true),
        (4, kind::LIST) => counts.row_groups(compact).map(|()| true),
        _ => Some(false),
    })?;
    Some(counts)
}

impl Counts {
    fn schema(&mut self, compact: &mut Compact<'_>) -> Option<()> {
        let (item, count) = compact.list()?;
        let mut tree = Tree { open: Vec::new(), name_bytes: 0, num_names: 0 };
        for index in 0..count {
            (item == kind::STRUCT).then_some(())?;
            let (mut children, mut name) = (0, 0);
            compact.fields(|compact, field| {
                match field.id {
                    4 => name = compact.binary()?.len() as u64,
                    5 => children = u64::try_from(compact.int()?).ok()?,
                    _ => return Some(false),
                }
                Some(true)
            })?;
            (children <= count as u64).then_some(())?;
            tree.add(index == 0, children, name)?;
        }
        self.is_tree = tree.is_whole();
        self.schema_bytes = count as u64 * COLUMN + 4 * tree.name_bytes + NAME * tree.num_names;
        Some(())
    }

    fn row_groups(&mut self, compact: &mut Compact<'_>) -> Option<()> {
        let (item, count) = compact.list()?;
        (count == 0 || item == kind::STRUCT).then_some(())?;
        self.groups = count as u64;
        for _ in 0..count {
            compact.fields(|compact, field| match (field.id, field.kind) {
                (1, kind::LIST) => {
                    let (item, count) = compact.list()?;
                    (count == 0 || item == kind::STRUCT).then_some(())?;
                    self.chunks += count as u64;
                    for _ in 0..count {
                        compact.fields(|_, field| self.chunk(field))?;
                    }
                    Some(true)
                }
                _ => Some(false),
            })?;
        }
        Some(())
    }

    /// A field of a column of a row group: 8 says how it is encrypted, 9 is what would be 3.
    fn chunk(&mut self, field: Field) -> Option<bool> {
        self.is_encrypted |= matches!(field.id, 8 | 9);
        Some(false)
    }
}

/// The columns that are open while their children come.
struct Tree {
    /// Children still to come, and bytes of the names down to here.
    open: Vec<(u64, u64)>,
    /// Bytes of the paths of all columns, and of their names.
    name_bytes: u64,
    num_names: u64,
}

impl Tree {
    fn add(&mut self, is_root: bool, children: u64, name: u64) -> Option<()> {
        self.close();
        let mut path = name;
        if !is_root {
            let (left, above) = self.open.last_mut()?;
            *left -= 1;
            path += *above;
        }
        self.name_bytes += path;
        self.num_names += self.open.len() as u64 + 1;
        (self.open.len() < MAX_NESTING).then_some(())?;
        self.open.push((children, if is_root { 0 } else { path }));
        Some(())
    }

    fn close(&mut self) {
        while self.open.len() > 1 && self.open.last().is_some_and(|(left, _)| *left == 0) {
            self.open.pop();
        }
        if self.open.len() == 1 && self.open[0].0 == 0 {
            // The root is whole: nothing may follow.
            self.open.clear();
        }
    }

    fn is_whole(&mut self) -> bool {
        self.close();
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Vec<u8> {
        [&[0x48, text.len() as u8][..], text.as_bytes()].concat()
    }

    /// A list of structs.
    fn list(items: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0xfc];
        let mut left = items.len();
        while left >= 128 {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
        bytes.extend(items.concat());
        bytes
    }

    /// Two columns under a root, and row groups.
    fn footer(num_columns: usize, groups: &[Vec<u8>]) -> Vec<u8> {
        // 4: name, 5: children.
        let mut children = vec![];
        let mut left = num_columns * 2;
        while left >= 128 {
            children.push(left as u8 | 0x80);
            left >>= 7;
        }
        children.push(left as u8);
        let root = [name("r"), vec![0x15], children, vec![0]].concat();
        let column = [name("c"), vec![0]].concat();
        let mut schema = vec![root];
        schema.extend(vec![column; num_columns]);
        // 2: the schema, 4: the groups.
        [vec![0x29], list(&schema), vec![0x29], list(groups), vec![0]].concat()
    }

    #[test]
    fn columns_that_are_encrypted_are_said() {
        // 1: the columns of a group; 2: an offset, 8: how it is encrypted.
        let plain = [vec![0x26, 8], vec![0]].concat();
        let encrypted = [vec![0x26, 8], vec![0x6c, 0], vec![0]].concat();
        let group = |chunks: &[Vec<u8>]| [vec![0x19], list(chunks), vec![0]].concat();
        assert_eq!(check(&footer(2, &[group(&[plain.clone(), plain.clone()])])), Ok(()));
        let found = check(&footer(2, &[group(&[plain, encrypted])]));
        assert_eq!(found, Err(Unread::Encrypted));
    }

    #[test]
    fn what_a_footer_becomes_is_bounded() {
        assert_eq!(check(&footer(10_000, &[])), Ok(()));
        assert!(matches!(check(&footer(300_000, &[])), Err(Unread::TooLarge(_))));
        let group = [vec![0x19], list(&vec![vec![0]; 1000]), vec![0]].concat();
        assert_eq!(check(&footer(2, &vec![group.clone(); 10])), Ok(()));
        assert!(matches!(check(&footer(2, &vec![group; 1000])), Err(Unread::TooLarge(_))));
        assert_eq!(check(&[0]), Err(Unread::Damaged), "no columns");
    }
}
