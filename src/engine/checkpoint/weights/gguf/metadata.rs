//! The metadata of a GGUF file: typed values by key.

use std::collections::BTreeMap;

use super::cursor::Cursor;
use vllm_batch_base::files::quoted;

/// Longest key, by the format's own rule.
const MAX_KEY_BYTES: usize = (1 << 16) - 1;

/// Most keys of a file; published ones have below a hundred.
const MAX_KEYS: usize = 1 << 16;

/// A value of the metadata. Integers of all widths are of two kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// 8 to 64 bits.
    Unsigned(u64),
    /// 8 to 64 bits.
    Signed(i64),
    /// 32 bits.
    Float32(f32),
    /// 64 bits.
    Float64(f64),
    /// One byte of the file.
    Bool(bool),
    /// UTF-8.
    Text(String),
    /// Array of one type of elements.
    Array(Array),
}

/// An array: kept as compactly as the file has it, since vocabularies are large.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Array of texts.
    Texts(Texts),
    /// Array of numbers or booleans.
    Numbers(Numbers),
}

/// Many texts in one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    all: String,
    /// Where each ends in `all`.
    ends: Vec<usize>,
}

impl Texts {
    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// No text.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A text by its place.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.all[start..end])
    }

    /// All in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).expect("below the length"))
    }

    fn push(&mut self, text: &str) {
        self.all.push_str(text);
        self.ends.push(self.all.len());
    }
}

/// Type of a number as the file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberType {
    /// u8.
    U8,
    /// i8.
    I8,
    /// u16.
    U16,
    /// i16.
    I16,
    /// u32.
    U32,
    /// i32.
    I32,
    /// f32.
    F32,
    /// A byte, 0 or 1.
    Bool,
    /// u64.
    U64,
    /// i64.
    I64,
    /// f64.
    F64,
}

/// Ids of the values that are no numbers.
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

impl NumberType {
    fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    fn num_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// A value of this type.
    fn value(self, bytes: &[u8]) -> Value {
        let mut low = [0; 8];
        low[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(low);
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Value::Unsigned(bits),
            Self::I8 => Value::Signed(i64::from(bits as i8)),
            Self::I16 => Value::Signed(i64::from(bits as i16)),
            Self::I32 => Value::Signed(i64::from(bits as i32)),
            Self::I64 => Value::Signed(bits as i64),
            Self::F32 => Value::Float32(f32::from_bits(bits as u32)),
            Self::F64 => Value::Float64(f64::from_bits(bits)),
            Self::Bool => Value::Bool(bits != 0),
        }
    }

    /// Booleans are 0 or 1.
    fn check(self, bytes: &[u8]) -> Result<(), String> {
        match self == Self::Bool && bytes.iter().any(|byte| *byte > 1) {
            true => Err("a boolean that is neither 0 nor 1".to_owned()),
            false => Ok(()),
        }
    }
}

/// An array of numbers, as the file has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    kind: NumberType,
    bytes: Vec<u8>,
}

impl Numbers {
    /// Their type.
    pub fn kind(&self) -> NumberType {
        self.kind
    }

    /// Number of numbers.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.kind.num_bytes()
    }

    /// No number.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Value> {
        self.bytes.chunks_exact(self.kind.num_bytes()).map(|bytes| self.kind.value(bytes))
    }
}

impl Value {
    /// Kind of the value, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Unsigned(_) | Value::Signed(_) => "an integer",
            Value::Float32(_) | Value::Float64(_) => "a float",
            Value::Bool(_) => "a boolean",
            Value::Text(_) => "a text",
            Value::Array(Array::Texts(_)) => "an array of texts",
            Value::Array(Array::Numbers(_)) => "an array of numbers",
        }
    }

    /// An integer that is not negative.
    pub fn as_unsigned(&self) -> Option<u64> {
        match self {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A number; of 32 bits the f64 of its shortest decimal, so that 1e-5 is 1e-5.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float32(number) => number.to_string().parse().ok(),
            Value::Float64(number) => Some(*number),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// A text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// An array of texts.
    pub fn as_texts(&self) -> Option<&Texts> {
        match self {
            Value::Array(Array::Texts(texts)) => Some(texts),
            _ => None,
        }
    }

    /// An array of numbers or booleans.
    pub fn as_numbers(&self) -> Option<&Numbers> {
        match self {
            Value::Array(Array::Numbers(numbers)) => Some(numbers),
            _ => None,
        }
    }
}

/// All values of a file by their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Keys and values from here on.
    pub(super) fn read(cursor: &mut Cursor<'_>, num_keys: usize) -> Result<Self, String> {
        if num_keys > MAX_KEYS {
            return Err(format!("{num_keys} keys, the limit is {MAX_KEYS}"));
        }
        let mut values = BTreeMap::new();
        for _ in 0..num_keys {
            let key = cursor.text().map_err(|text| format!("a key of its metadata: {text}"))?;
            if key.len() > MAX_KEY_BYTES {
                return Err(format!("a key of {} bytes, the limit is {MAX_KEY_BYTES}", key.len()));
            }
            let value =
                read_value(cursor).map_err(|text| format!("key {}: {text}", quoted(key)))?;
            if values.insert(key.to_owned(), value).is_some() {
                return Err(format!("key {} is there twice", quoted(key)));
            }
        }
        Ok(Self { values })
    }

    /// A value by its key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// All, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// An integer that is not negative.
    ///
    /// # Errors
    /// The value is something else; so are those below.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, String> {
        self.typed(key, Value::as_unsigned, "an integer of 0 or more")
    }

    /// A finite float; of 32 bits the f64 of its shortest decimal.
    ///
    /// # Errors
    /// The value is something else.
    pub fn float(&self, key: &str) -> Result<Option<f64>, String> {
        let finite = |value: &Value| value.as_float().filter(|number| number.is_finite());
        self.typed(key, finite, "a finite number")
    }

    /// A boolean.
    ///
    /// # Errors
    /// The value is something else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, String> {
        self.typed(key, Value::as_bool, "a boolean")
    }

    /// A text.
    ///
    /// # Errors
    /// The value is something else.
    pub fn text(&self, key: &str) -> Result<Option<&str>, String> {
        self.typed(key, Value::as_text, "a text")
    }

    /// An array of texts.
    ///
    /// # Errors
    /// The value is something else.
    pub fn texts(&self, key: &str) -> Result<Option<&Texts>, String> {
        self.typed(key, Value::as_texts, "an array of texts")
    }

    /// An array of numbers or booleans.
    ///
    /// # Errors
    /// The value is something else.
    pub fn numbers(&self, key: &str) -> Result<Option<&Numbers>, String> {
        self.typed(key, Value::as_numbers, "an array of numbers")
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        read: impl Fn(&'a Value) -> Option<T>,
        wanted: &str,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let other = || format!("key {} is {}, not {wanted}", quoted(key), value.kind());
        read(value).map(Some).ok_or_else(other)
    }
}

fn read_value(cursor: &mut Cursor<'_>) -> Result<Value, String> {
    match cursor.u32()? {
        TEXT => Ok(Value::Text(cursor.text()?.to_owned())),
        ARRAY => Ok(Value::Array(read_array(cursor)?)),
        id => {
            let kind = number_type(id)?;
            let bytes = cursor.take(kind.num_bytes())?;
            kind.check(bytes)?;
            Ok(kind.value(bytes))
        }
    }
}

fn number_type(id: u32) -> Result<NumberType, String> {
    NumberType::from_id(id).ok_or_else(|| format!("its type {id} is none of GGUF"))
}

fn read_array(cursor: &mut Cursor<'_>) -> Result<Array, String> {
    match cursor.u32()? {
        TEXT => {
            // Each has its length before it.
            let len = cursor.count(8)?;
            let mut texts = Texts::default();
            for index in 0..len {
                let text = cursor.text().map_err(|text| format!("element {index}: {text}"))?;
                texts.push(text);
            }
            Ok(Array::Texts(texts))
        }
        ARRAY => Err("an array of arrays is not read".to_owned()),
        id => {
            let kind = number_type(id)?;
            let len = cursor.count(kind.num_bytes())?;
            let bytes = cursor.take(len * kind.num_bytes())?;
            kind.check(bytes)?;
            Ok(Array::Numbers(Numbers { kind, bytes: bytes.to_vec() }))
        }
    }
}
