//! The header of a GGUF file: its metadata, and where its tensors lie.

use std::collections::HashMap;
use std::ops::Range;

use super::cursor::Cursor;
use super::ggml_type::GgmlType;
use super::metadata::Metadata;
use vllm_batch_base::files::quoted;

const MAGIC: [u8; 4] = *b"GGUF";

/// Most tensors of a file: several times what the largest published models have in all of theirs.
const MAX_TENSORS: usize = 1 << 18;

/// Longest name and most dimensions of a tensor, by the format's own rules.
const MAX_NAME_BYTES: usize = 64;
const MAX_DIMS: usize = 4;

/// Fewest bytes of a key with its value (a boolean) and of a tensor's entry (a scalar).
const MIN_KEY_BYTES: usize = 8 + 4 + 1;
const MIN_TENSOR_BYTES: usize = 8 + 4 + 4 + 8;

const DEFAULT_ALIGNMENT: u64 = 32;

/// A file's header, checked.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// Values by key.
    pub metadata: Metadata,
    /// In the order of their bytes.
    pub tensors: Vec<TensorInfo>,
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// As the file calls it.
    pub name: String,
    /// Type of its values.
    pub ty: GgmlType,
    /// Rows first, as in safetensors: the file's own order is the other way round. The last is
    /// whole blocks.
    pub shape: Vec<usize>,
    /// Bytes of the tensor, from the start of the file: within it, and no other tensor's.
    pub range: Range<usize>,
}

/// The same before it is known where the data begins.
struct Entry {
    name: String,
    ty: GgmlType,
    shape: Vec<usize>,
    offset: u64,
    num_bytes: usize,
}

impl Gguf {
    /// The header of a file of version 2 or 3, little-endian.
    ///
    /// # Errors
    /// The bytes are no such file, or it has a tensor of a type that is not read; the text says
    /// why.
    pub fn parse(file: &[u8]) -> Result<Self, String> {
        let mut cursor = Cursor::new(file);
        check_version(&mut cursor)?;
        // Both counts come before both tables.
        let num_tensors = cursor.count(MIN_TENSOR_BYTES)?;
        let num_keys = cursor.count(MIN_KEY_BYTES)?;
        if num_tensors > MAX_TENSORS {
            return Err(format!("{num_tensors} tensors, the limit is {MAX_TENSORS}"));
        }
        let metadata = Metadata::read(&mut cursor, num_keys)?;
        let alignment = alignment(&metadata)?;
        let mut entries = HashMap::new();
        for _ in 0..num_tensors {
            let name = cursor.text().map_err(|text| format!("a tensor's name: {text}"))?;
            let tensor = |text| format!("tensor {}: {text}", quoted(name));
            let entry = Entry::read(&mut cursor, name).map_err(tensor)?;
            if !entry.offset.is_multiple_of(alignment) {
                let text = format!("its offset {} is not aligned to {alignment}", entry.offset);
                return Err(tensor(text));
            }
            if entries.insert(name, entry).is_some() {
                return Err(tensor("it is there twice".to_owned()));
            }
        }
        let data_start = (cursor.position() as u64).next_multiple_of(alignment);
        let tensors = place(entries.into_values().collect(), data_start, file.len() as u64)?;
        Ok(Self { metadata, tensors })
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<(), String> {
    if cursor.array::<4>()? != MAGIC {
        return Err("no GGUF file: it does not begin with GGUF".to_owned());
    }
    match cursor.u32()? {
        2 | 3 => Ok(()),
        version if version.swap_bytes() < 1 << 16 => {
            Err("it is big-endian; convert it with gguf's gguf_convert_endian".to_owned())
        }
        version => Err(format!("GGUF version {version} is not read; 2 and 3 are")),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, String> {
    let alignment = metadata.unsigned("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    match alignment.is_power_of_two() && alignment <= u64::from(u32::MAX) {
        true => Ok(alignment),
        false => Err(format!("general.alignment is {alignment}, no power of two")),
    }
}

impl Entry {
    fn read(cursor: &mut Cursor<'_>, name: &str) -> Result<Self, String> {
        if name.len() > MAX_NAME_BYTES {
            return Err(format!("a name of {} bytes, the limit is {MAX_NAME_BYTES}", name.len()));
        }
        let num_dims = cursor.u32()? as usize;
        if num_dims > MAX_DIMS {
            return Err(format!("{num_dims} dimensions, the limit is {MAX_DIMS}"));
        }
        let mut shape = Vec::new();
        for _ in 0..num_dims {
            shape.push(usize::try_from(cursor.u64()?).unwrap_or(usize::MAX));
        }
        shape.reverse();
        let ty = GgmlType::from_id(cursor.u32()?)?;
        let num_bytes = num_bytes(ty, &shape)?;
        Ok(Self { name: name.to_owned(), ty, shape, offset: cursor.u64()?, num_bytes })
    }
}

/// Bytes of the values of a shape.
fn num_bytes(ty: GgmlType, shape: &[usize]) -> Result<usize, String> {
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(ty.block_len()) {
        return Err(format!("rows of {row} values are not whole blocks of {ty}"));
    }
    let num_values = shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
    match num_values.map(|all| (all / ty.block_len()).checked_mul(ty.block_bytes())) {
        Some(Some(0)) => Err(format!("its shape {shape:?} has no values")),
        Some(Some(num_bytes)) => Ok(num_bytes),
        _ => Err(format!("its shape {shape:?} overflows")),
    }
}

/// The tensors in the order of their bytes.
fn place(
    mut entries: Vec<Entry>,
    data_start: u64,
    file_len: u64,
) -> Result<Vec<TensorInfo>, String> {
    entries.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    let mut tensors = Vec::<TensorInfo>::with_capacity(entries.len());
    for Entry { name, ty, shape, offset, num_bytes } in entries {
        let tensor = |text: String| format!("tensor {}: {text}", quoted(&name));
        let start = data_start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(num_bytes as u64));
        let (Some(start), Some(end)) = (start, end.filter(|end| *end <= file_len)) else {
            let text = format!("{num_bytes} bytes at {offset} go on after the end of the file");
            return Err(tensor(text + ": it is truncated"));
        };
        // Both below the file's length now.
        let range = start as usize..end as usize;
        if let Some(before) = tensors.last().filter(|before| before.range.end > range.start) {
            return Err(tensor(format!("it overlaps tensor {}", quoted(&before.name))));
        }
        tensors.push(TensorInfo { name, ty, shape, range });
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::super::written::{Written, text};
    use super::super::{NumberType, Value};
    use super::*;

    #[test]
    fn values_and_tensors_are_found() {
        let written = Written::new()
            .key("a.u16", 2, &[1, 2])
            .key("a.i8", 1, &[0xFF])
            .key("a.f32", 6, &1e-5f32.to_le_bytes())
            .key("a.nan", 6, &f32::NAN.to_le_bytes())
            .key("a.bool", 7, &[1])
            .key("a.text", 8, &text("é"))
            .array("a.texts", 8, &[text("x"), text(""), text("yz")])
            .array("a.numbers", 5, &[7i32.to_le_bytes().to_vec(), (-1i32).to_le_bytes().to_vec()])
            .tensor("b", &[2, 32], GgmlType::Q4_0, &[3; 36])
            .tensor("a", &[3], GgmlType::F32, &[4; 12]);
        for version in [2, 3] {
            let mut file = written.bytes();
            file[4] = version;
            let Gguf { metadata, tensors } = Gguf::parse(&file).unwrap();
            assert_eq!(metadata.unsigned("a.u16"), Ok(Some(513)));
            assert_eq!(metadata.get("a.i8"), Some(&Value::Signed(-1)));
            assert_eq!(metadata.float("a.f32"), Ok(Some(1e-5)));
            assert!(metadata.float("a.nan").unwrap_err().contains("not a finite number"));
            assert_eq!(metadata.bool("a.bool"), Ok(Some(true)));
            assert_eq!(metadata.text("a.text"), Ok(Some("é")));
            assert_eq!(metadata.text("a.nothing"), Ok(None));
            assert!(
                metadata.text("a.u16").unwrap_err().contains("`a.u16` is an integer, not a text")
            );
            let texts = metadata.texts("a.texts").unwrap().unwrap();
            assert_eq!(texts.iter().collect::<Vec<_>>(), ["x", "", "yz"]);
            assert_eq!(texts.get(3), None);
            let numbers = metadata.numbers("a.numbers").unwrap().unwrap();
            assert_eq!((numbers.kind(), numbers.len()), (NumberType::I32, 2));
            let values: Vec<_> = numbers.iter().collect();
            assert_eq!(values, [Value::Signed(7), Value::Signed(-1)]);
            let found: Vec<_> = tensors.iter().map(|t| (&t.name[..], &t.shape[..])).collect();
            assert_eq!(found, [("b", &[2, 32][..]), ("a", &[3][..])]);
            assert_eq!(file[tensors[0].range.clone()], [3; 36]);
            assert_eq!(file[tensors[1].range.clone()], [4; 12]);
        }
    }

    #[test]
    fn every_fault_of_a_tensor_is_named() {
        let data = |written: Written| Written { data: vec![0; 64], ..written };
        let long = "x".repeat(65);
        let one = |name: &str, dims: &[u64], id, offset| {
            data(Written::new().entry(name, dims, id, offset))
        };
        let two = |second, offset| one("a", &[8], 0, 0).entry(second, &[8], 0, offset);
        let aligned = |by: u32| two("b", 32).key("general.alignment", 4, &by.to_le_bytes());
        for (written, wanted) in [
            (one(&long, &[8], 0, 0), "a name of 65 bytes"),
            (one("a", &[1; 5], 0, 0), "5 dimensions"),
            (one("a", &[8], 31, 0), "Q4_0_4_4"),
            (one("a", &[8], 99, 0), "type 99"),
            (one("a", &[16, 2], 2, 0), "rows of 16 values are not whole blocks of Q4_0"),
            (one("a", &[0, 2], 0, 0), "no values"),
            (one("a", &[1 << 32, 1 << 32], 0, 0), "overflows"),
            (one("a", &[1 << 62], 0, 0), "overflows"),
            (one("a", &[u64::MAX], 1, 0), "overflows"),
            (one("a", &[8], 0, 8), "not aligned"),
            (one("a", &[8], 0, 64), "truncated"),
            (one("a", &[8], 0, u64::MAX - 31), "truncated"),
            (one("a", &[1 << 60], 0, 0), "truncated"),
            (two("a", 32), "`a`: it is there twice"),
            (two("b", 0), "`b`: it overlaps tensor `a`"),
            (aligned(64), "not aligned to 64"),
            (aligned(48), "general.alignment is 48"),
            (aligned(0), "general.alignment is 0"),
        ] {
            let error = Gguf::parse(&written.bytes()).unwrap_err();
            assert!(error.contains(wanted), "{error}, not {wanted}");
        }
        Gguf::parse(&aligned(16).bytes()).unwrap();
    }

    #[test]
    fn every_fault_of_the_metadata_is_named() {
        let huge = |key: &str, id: u32| {
            let value = [&id.to_le_bytes()[..], &(1u64 << 60).to_le_bytes()].concat();
            Written::new().key(key, 9, &value)
        };
        let key = |id: u32, value: &[u8]| Written::new().key("k", id, value);
        for (written, wanted) in [
            (key(4, &[0; 4]).key("k", 4, &[0; 4]), "key `k` is there twice"),
            (key(13, &[]), "key `k`: its type 13"),
            (key(7, &[2]), "key `k`: a boolean"),
            (key(8, &100u64.to_le_bytes()), "truncated"),
            (key(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xFF]), "is not UTF-8"),
            (Written::new().array("k", 8, &[vec![1, 0, 0, 0, 0, 0, 0, 0, 0xFF]]), "element 0"),
            (Written::new().array("k", 9, &[]), "array of arrays"),
            (Written::new().array("k", 7, &[vec![1], vec![3]]), "key `k`: a boolean"),
            (huge("k", 8), "truncated"),
            (huge("k", 0), "truncated"),
            (huge("k", 12), "truncated"),
            (Written::new().key(&"k".repeat(1 << 16), 0, &[0]), "a key of 65536 bytes"),
            (Written { version: 1, ..Written::new() }, "version 1 is not read"),
            (Written { version: 3 << 24, ..Written::new() }, "big-endian"),
        ] {
            let error = Gguf::parse(&written.bytes()).unwrap_err();
            assert!(error.contains(wanted), "{error}, not {wanted}");
        }
        assert!(Gguf::parse(b"GGUX").unwrap_err().contains("no GGUF file"));
        for counts in [[u64::MAX, 0], [0, u64::MAX], [1 << 40, 1 << 40]] {
            let mut file = Written::new().bytes();
            file[8..24].copy_from_slice(&counts.map(u64::to_le_bytes).concat());
            assert!(Gguf::parse(&file).unwrap_err().contains("truncated"), "{counts:?}");
        }
    }

    #[test]
    fn every_shorter_file_is_refused() {
        let file = Written::new()
            .key("k", 8, &text("value"))
            .tensor("a", &[8], GgmlType::F32, &[0; 32])
            .bytes();
        Gguf::parse(&file).unwrap();
        for len in 0..file.len() {
            assert!(Gguf::parse(&file[..len]).unwrap_err().contains("truncated"), "{len} bytes");
        }
    }
}
