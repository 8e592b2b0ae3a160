//! The header of a safetensors file: what it holds and where, checked against the file's length
//! before anything of it is believed.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use vllm_batch_base::files::quoted;

/// Largest header, by the format's own rule.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Most tensors of a file: several times what the largest published models have in all of theirs.
const MAX_TENSORS: usize = 1 << 18;

/// Bytes before the header: its length.
const LENGTH_BYTES: usize = 8;

/// A tensor of a file.
#[derive(Clone, Debug)]
pub struct TensorEntry {
    /// As the file calls it.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// Bytes of the tensor, from the start of the file: within it.
    pub range: Range<usize>,
}

/// The tensors of a safetensors file, by the place of their bytes. They cover the file: none
/// overlaps another, nothing is between them or after them, each has the bytes that its shape asks
/// for, and each has a name of its own.
///
/// # Errors
/// The bytes are no such file; the text says why.
pub fn parse(file: &[u8]) -> Result<Vec<TensorEntry>, String> {
    let json = header_bytes(file)?;
    let data_start = LENGTH_BYTES + json.len();
    let RawHeader(mut tensors) =
        serde_json::from_slice(json).map_err(|error| format!("its header is damaged: {error}"))?;
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let mut expected = 0;
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, info) in tensors {
        let (start, end) = info.data_offsets;
        check(&info, expected).map_err(|text| format!("tensor {}: {text}", quoted(&name)))?;
        let range = data_start.saturating_add(start)..data_start.saturating_add(end);
        entries.push(TensorEntry { name, dtype: info.dtype, shape: info.shape, range });
        expected = end;
    }
    let end = data_start.checked_add(expected);
    if end != Some(file.len()) {
        let (found, asked) = (file.len() - data_start, expected);
        let what = if found < asked { "it is truncated" } else { "it has bytes of no tensor" };
        return Err(format!("its tensors take {asked} bytes, it has {found}: {what}"));
    }
    Ok(entries)
}

/// The JSON between the length and the data.
fn header_bytes(file: &[u8]) -> Result<&[u8], String> {
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(format!("it is truncated: {} bytes", file.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(format!(
            "no safetensors file: a header of {length} bytes, the limit is {MAX_HEADER_BYTES}"
        ));
    }
    rest.get(..length as usize).ok_or_else(|| {
        format!("it is truncated: a header of {length} bytes, and {} bytes of it", rest.len())
    })
}

/// Whether a tensor begins where the one before it ends, and has the bytes of its shape.
fn check(info: &TensorInfo, expected: usize) -> Result<(), String> {
    let (start, end) = info.data_offsets;
    if end < start {
        return Err(format!("it ends at {end}, before it begins at {start}"));
    }
    if start != expected {
        let what = if start < expected { "overlaps the tensor before it" } else { "leaves a hole" };
        return Err(format!("it begins at {start} and not at {expected}: it {what}"));
    }
    let num_elements = info.shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
    let num_bits = num_elements.and_then(|all| all.checked_mul(info.dtype.bitsize()));
    match num_bits {
        Some(bits) if bits.is_multiple_of(8) && bits / 8 == end - start => Ok(()),
        _ => {
            let shape = quoted(&format!("{:?}", info.shape));
            let (dtype, bytes) = (info.dtype, end - start);
            Err(format!("{bytes} bytes are not what shape {shape} of {dtype} takes"))
        }
    }
}

/// Name and place of every tensor, in the order of the header.
struct RawHeader(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// Reads names one by one, since a map would keep the last of two tensors of one name.
struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut tensors = Vec::new();
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("{} is there twice", quoted(&name))));
            }
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if tensors.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            }
            tensors.push((name, map.next_value()?));
        }
        Ok(RawHeader(tensors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str, num_data_bytes: usize) -> Vec<u8> {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json.as_bytes());
        bytes.resize(bytes.len() + num_data_bytes, 0);
        bytes
    }

    #[test]
    fn tensors_are_found_in_the_order_of_their_bytes() {
        let json = r#"{"b":{"dtype":"F16","shape":[1,2],"data_offsets":[8,12]},
            "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"format":"pt"}}"#;
        let bytes = file(json, 12);
        let entries = parse(&bytes).unwrap();
        let start = bytes.len() - 12;
        assert_eq!(entries[0].range, start..start + 8);
        assert_eq!((entries[1].name.as_str(), entries[1].shape.as_slice()), ("b", &[1, 2][..]));
    }

    #[test]
    fn every_fault_is_named() {
        let tensor = |name: &str, shape: &str, start: u64, end: u64| {
            format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
        };
        let max = u64::MAX;
        for (tensors, num_bytes, wanted) in [
            (vec![tensor("a", "[2]", 0, 8)], 4, "it is truncated"),
            (vec![tensor("a", "[2]", 0, 8)], 9, "bytes of no tensor"),
            (vec![tensor("a", "[2]", 0, 8), tensor("a", "[2]", 8, 16)], 16, "is there twice"),
            (vec![tensor("a", "[2]", 0, 8), tensor("b", "[2]", 4, 12)], 12, "overlaps"),
            (vec![tensor("a", "[2]", 0, 8), tensor("b", "[2]", 12, 20)], 20, "leaves a hole"),
            (vec![tensor("a", "[2]", 8, 0)], 8, "before it begins"),
            (vec![tensor("a", "[3]", 0, 8)], 8, "not what shape"),
            (vec![tensor("a", "[4294967296,4294967296]", 0, 0)], 0, "not what shape"),
            (vec![tensor("a", &format!("[{}]", max / 32), 0, max / 32 * 4)], 8, "it is truncated"),
            (vec![tensor("a", "[2]", max, max)], 8, "leaves a hole"),
            (vec![tensor("a", "[-1]", 0, 8)], 8, "its header is damaged"),
        ] {
            let error = parse(&file(&format!("{{{}}}", tensors.join(",")), num_bytes)).unwrap_err();
            assert!(error.contains(wanted), "{error}, not {wanted}");
        }
    }
}
