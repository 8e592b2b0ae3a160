//! Values of rows to columns, with the levels by which they are put together again: the other way
//! than `input/parquet/rows` goes.

use half::f16;
use parquet::basic::Type as Physical;
use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};
use serde_json::Value;

use crate::input::base64;
use crate::input::parquet::column::{JULIAN_DAY_OF_1970, NANOSECONDS};
use crate::input::parquet::schema::{Leaf, Meaning, Node, Repeated};
use crate::input::parquet::text;
use crate::input::parquet::values::Values;

/// One column of values of the rows of a group.
#[derive(Debug)]
pub(super) struct ColumnValues {
    pub values: Values,
    pub defs: Vec<i16>,
    pub reps: Vec<i16>,
}

impl ColumnValues {
    /// An empty column of a type.
    pub(super) fn new(physical: Physical) -> Self {
        Self { values: Values::new(physical), defs: Vec::new(), reps: Vec::new() }
    }

    fn level(&mut self, def: i16, rep: i16) {
        self.defs.push(def);
        self.reps.push(rep);
    }
}

/// Where in a row a value is.
#[derive(Clone, Copy)]
struct At {
    /// Of what is around it.
    def: i16,
    rep: i16,
}

/// Takes the values of rows.
pub(super) struct Shredder<'a> {
    pub columns: &'a mut [ColumnValues],
    /// Bytes of the values so far, about.
    pub num_bytes: usize,
}

impl Shredder<'_> {
    /// Takes a column's value of the next row.
    ///
    /// # Errors
    /// It is none of the column's type: what it is, in words.
    pub(super) fn add(&mut self, node: &Node, value: Option<&Value>) -> Result<(), String> {
        self.node(node, value.filter(|value| !value.is_null()), At { def: 0, rep: 0 })
    }

    /// Takes the text of a column's value of the next row, as it stands there.
    ///
    /// # Panics
    /// The column has no bytes.
    pub(super) fn add_text(&mut self, leaf: &Leaf, text: &str) {
        let column = &mut self.columns[leaf.index];
        let Values::Bytes(values) = &mut column.values else { panic!("a column of texts") };
        values.push(ByteArray::from(text.as_bytes().to_vec()));
        column.level(leaf.def, 0);
        self.num_bytes += text.len() + 4;
    }

    fn node(&mut self, node: &Node, value: Option<&Value>, at: At) -> Result<(), String> {
        match node {
            Node::Leaf(leaf) => self.leaf(leaf, value, at),
            Node::Struct(inner) => match value {
                None if inner.def > at.def => {
                    self.nothing(node, at);
                    Ok(())
                }
                Some(Value::Object(fields)) => {
                    let at = At { def: inner.def, ..at };
                    inner.fields.iter().try_for_each(|field| {
                        let value = fields.get(&field.name).filter(|value| !value.is_null());
                        self.node(&field.node, value, at)
                    })
                }
                _ => Err("is no object".to_owned()),
            },
            Node::List(list) => {
                let items = match value {
                    None if list.levels.def > at.def => {
                        self.nothing(node, at);
                        return Ok(());
                    }
                    None => &[][..],
                    Some(Value::Array(items)) => items.as_slice(),
                    Some(_) => return Err("is no list".to_owned()),
                };
                let inner = At { def: list.levels.def + 1, ..at };
                self.repeated(node, list.levels, at, items.iter(), |shredder, item, rep| {
                    let item = Some(item).filter(|item| !item.is_null());
                    shredder.node(&list.item, item, At { rep, ..inner })
                })
            }
            Node::Map(map) => {
                let empty = serde_json::Map::new();
                let entries = match value {
                    None if map.levels.def > at.def => {
                        self.nothing(node, at);
                        return Ok(());
                    }
                    None => &empty,
                    Some(Value::Object(entries)) => entries,
                    Some(_) => return Err("is no object".to_owned()),
                };
                let inner = At { def: map.levels.def + 1, ..at };
                self.repeated(node, map.levels, at, entries.iter(), |shredder, entry, rep| {
                    let (key, value) = entry;
                    let at = At { rep, ..inner };
                    shredder.leaf(&map.key, Some(&key_value(&map.key, key)), at)?;
                    let value = Some(value).filter(|value| !value.is_null());
                    map.value.as_ref().map_or(Ok(()), |node| shredder.node(node, value, at))
                })
            }
        }
    }

    fn repeated<T>(
        &mut self,
        node: &Node,
        levels: Repeated,
        at: At,
        items: impl Iterator<Item = T>,
        mut add: impl FnMut(&mut Self, T, i16) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut rep = at.rep;
        let mut is_empty = true;
        for item in items {
            is_empty = false;
            add(self, item, rep)?;
            rep = levels.rep;
        }
        if is_empty {
            self.nothing(node, At { def: levels.def, ..at });
        }
        Ok(())
    }

    /// Nothing of a node is there, but for what is around it.
    fn nothing(&mut self, node: &Node, at: At) {
        for column in node.leaves() {
            self.columns[column].level(at.def, at.rep);
        }
        self.num_bytes += node.leaves().len();
    }

    fn leaf(&mut self, leaf: &Leaf, value: Option<&Value>, at: At) -> Result<(), String> {
        let Some(value) = value else {
            return match leaf.def > at.def {
                true => {
                    self.columns[leaf.index].level(at.def, at.rep);
                    self.num_bytes += 1;
                    Ok(())
                }
                false => Err("is null, where its type has none".to_owned()),
            };
        };
        let column = &mut self.columns[leaf.index];
        let bytes = put(&mut column.values, leaf, value);
        self.num_bytes += bytes.ok_or_else(|| format!("{value} is none of its type"))?;
        column.level(leaf.def, at.rep);
        Ok(())
    }
}

/// A key of an object as a value of the keys' type.
fn key_value(key: &Leaf, text: &str) -> Value {
    match (key.physical, key.meaning) {
        (Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY, meaning)
            if meaning != Meaning::Float16 =>
        {
            Value::from(text)
        }
        (_, Meaning::Plain | Meaning::Unsigned | Meaning::Float16) => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
        }
        _ => Value::from(text),
    }
}

/// Appends a value; how many bytes it takes. None: it is none of the column's type.
fn put(values: &mut Values, leaf: &Leaf, value: &Value) -> Option<usize> {
    Some(match values {
        Values::Bool(values) => {
            values.push(value.as_bool()?);
            1
        }
        Values::Int32(values) => {
            values.push(match leaf.meaning {
                Meaning::Unsigned => u32::try_from(value.as_u64()?).ok()? as i32,
                _ => i32::try_from(integer(leaf, value)?).ok()?,
            });
            4
        }
        Values::Int64(values) => {
            values.push(match leaf.meaning {
                Meaning::Unsigned => value.as_u64()? as i64,
                _ => integer(leaf, value)?,
            });
            8
        }
        Values::Int96(values) => {
            values.push(int96(value.as_str()?)?);
            12
        }
        Values::Float(values) => {
            values.push(float(value)? as f32);
            4
        }
        Values::Double(values) => {
            values.push(float(value)?);
            8
        }
        Values::Bytes(values) => {
            let bytes = bytes(leaf, value)?;
            let count = bytes.len();
            values.push(ByteArray::from(bytes));
            count + 4
        }
        Values::Fixed(values) => {
            let bytes = bytes(leaf, value)?;
            let count = bytes.len();
            (count == usize::try_from(leaf.length).ok()?).then_some(())?;
            values.push(FixedLenByteArray::from(bytes));
            count
        }
    })
}

fn integer(leaf: &Leaf, value: &Value) -> Option<i64> {
    match leaf.meaning {
        Meaning::Decimal(scale) => {
            let bytes = text::parse_decimal(value.as_str()?, scale, 8)?;
            Some(i64::from_be_bytes(bytes.try_into().ok()?))
        }
        Meaning::Date => text::parse_date(value.as_str()?),
        Meaning::Time(clock) => text::parse_time(value.as_str()?, clock),
        Meaning::Timestamp(clock) => text::parse_timestamp(value.as_str()?, clock),
        _ => value.as_i64(),
    }
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        value => value.as_f64(),
    }
}

fn int96(text: &str) -> Option<Int96> {
    let (date, time) = text.split_once('T')?;
    let days = u32::try_from(text::parse_date(date)? + JULIAN_DAY_OF_1970).ok()?;
    let nanos = text::parse_time(time, NANOSECONDS)?;
    let mut value = Int96::new();
    value.set_data(nanos as u32, (nanos >> 32) as u32, days);
    Some(value)
}

fn bytes(leaf: &Leaf, value: &Value) -> Option<Vec<u8>> {
    Some(match leaf.meaning {
        Meaning::Text => value.as_str()?.as_bytes().to_vec(),
        Meaning::Json => value.to_string().into_bytes(),
        Meaning::Uuid => text::parse_uuid(value.as_str()?)?,
        Meaning::Interval => text::parse_interval(value.as_str()?)?,
        Meaning::Float16 => f16::from_f64(float(value)?).to_le_bytes().to_vec(),
        Meaning::Decimal(scale) => decimal(leaf, value.as_str()?, scale)?,
        _ => base64::decode(value.as_str()?)?,
    })
}

/// As many bytes as the type has; else as few as hold it.
fn decimal(leaf: &Leaf, text: &str, scale: i32) -> Option<Vec<u8>> {
    match usize::try_from(leaf.length)
        .ok()
        .filter(|_| leaf.physical == Physical::FIXED_LEN_BYTE_ARRAY)
    {
        Some(length) => text::parse_decimal(text, scale, length),
        None => (1..=64).find_map(|length| text::parse_decimal(text, scale, length)),
    }
}
