//! `Values`: values of one column as Parquet stores them.

use parquet::basic::Type as Physical;
use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};

/// Those of some rows.
#[derive(Debug)]
pub enum Values {
    /// `BOOLEAN`
    Bool(Vec<bool>),
    /// `INT32`
    Int32(Vec<i32>),
    /// `INT64`
    Int64(Vec<i64>),
    /// `INT96`
    Int96(Vec<Int96>),
    /// `FLOAT`
    Float(Vec<f32>),
    /// `DOUBLE`
    Double(Vec<f64>),
    /// `BYTE_ARRAY`
    Bytes(Vec<ByteArray>),
    /// `FIXED_LEN_BYTE_ARRAY`
    Fixed(Vec<FixedLenByteArray>),
}

impl Values {
    /// Empty values of a type.
    pub fn new(physical: Physical) -> Self {
        match physical {
            Physical::BOOLEAN => Values::Bool(Vec::new()),
            Physical::INT32 => Values::Int32(Vec::new()),
            Physical::INT64 => Values::Int64(Vec::new()),
            Physical::INT96 => Values::Int96(Vec::new()),
            Physical::FLOAT => Values::Float(Vec::new()),
            Physical::DOUBLE => Values::Double(Vec::new()),
            Physical::BYTE_ARRAY => Values::Bytes(Vec::new()),
            Physical::FIXED_LEN_BYTE_ARRAY => Values::Fixed(Vec::new()),
        }
    }

    /// Takes the first ones away.
    pub fn drop_first(&mut self, count: usize) {
        match self {
            Values::Bool(values) => drop(values.drain(..count)),
            Values::Int32(values) => drop(values.drain(..count)),
            Values::Int64(values) => drop(values.drain(..count)),
            Values::Int96(values) => drop(values.drain(..count)),
            Values::Float(values) => drop(values.drain(..count)),
            Values::Double(values) => drop(values.drain(..count)),
            Values::Bytes(values) => drop(values.drain(..count)),
            Values::Fixed(values) => drop(values.drain(..count)),
        }
    }

    /// The bytes of one, where it is of bytes.
    pub fn bytes(&self, index: usize) -> Option<&[u8]> {
        match self {
            Values::Bytes(values) => values.get(index).map(ByteArray::data),
            Values::Fixed(values) => values.get(index).map(|value| value.data()),
            _ => None,
        }
    }
}
