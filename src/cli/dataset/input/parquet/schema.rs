//! Columns of a Parquet file: a tree as its schema has it, with the levels by which
//! rows are put together again.

use std::ops::Range;

use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::schema::types::Type;

use crate::input::fields::json_string;

/// Digits behind the point of a decimal.
const MAX_SCALE: i32 = 1000;

/// Meaning of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Meaning of the storage: truths, signed integers, floats.
    Plain,
    /// Integers from 0.
    Unsigned,
    /// Integers, with a point before so many digits.
    Decimal(i32),
    /// Days since 1970.
    Date,
    /// A time of day.
    Time(Clock),
    /// A time since 1970.
    Timestamp(Clock),
    /// UTF-8.
    Text,
    /// UTF-8 that is JSON.
    Json,
    /// Bytes.
    Binary,
    /// 16 bytes.
    Uuid,
    /// Months, days and milliseconds.
    Interval,
    /// 2 bytes.
    Float16,
}

/// Unit of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Units in a second.
    pub per_second: i64,
    /// It is UTC's; else that of the place where it was written.
    pub is_utc: bool,
}

/// A column of values.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Among all columns of values.
    pub index: usize,
    /// As messages name it.
    pub name: String,
    /// Physical type of the values.
    pub physical: Physical,
    /// Bytes of a value of fixed length.
    pub length: i32,
    /// Meaning of the values.
    pub meaning: Meaning,
    /// The definition level of one that is there.
    pub def: i16,
}

/// A column, or what is in it.
#[derive(Clone, Debug)]
pub enum Node {
    /// Values.
    Leaf(Leaf),
    /// A struct.
    Struct(Struct),
    /// A list.
    List(Box<List>),
    /// A map.
    Map(Box<Map>),
}

/// Fields with names.
#[derive(Clone, Debug)]
pub struct Struct {
    /// In their order.
    pub fields: Vec<Field>,
    /// The definition level of one that is there.
    pub def: i16,
}

/// A column, or a field of a struct.
#[derive(Clone, Debug)]
pub struct Field {
    /// Name of the column.
    pub name: String,
    /// The name as JSON, and a colon.
    pub key: String,
    /// Type of the column.
    pub node: Node,
}

/// Items.
#[derive(Clone, Debug)]
pub struct List {
    /// Type of the items.
    pub item: Node,
    /// Levels of the repetition.
    pub levels: Repeated,
}

/// Entries.
#[derive(Clone, Debug)]
pub struct Map {
    /// Never null.
    pub key: Leaf,
    /// Type of the values; `None`: a set.
    pub value: Option<Node>,
    /// Levels of the repetition.
    pub levels: Repeated,
}

/// The levels of what is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// The definition level of one that is there, empty or not. One more is that of an item.
    pub def: i16,
    /// The repetition level of every item but the first.
    pub rep: i16,
}

impl Node {
    /// The columns of values in it.
    pub fn leaves(&self) -> Range<usize> {
        match self {
            Node::Leaf(leaf) => leaf.index..leaf.index + 1,
            Node::List(list) => list.item.leaves(),
            Node::Map(map) => {
                let end = map.value.as_ref().map_or(map.key.index + 1, |node| node.leaves().end);
                map.key.index..end
            }
            Node::Struct(Struct { fields, .. }) => {
                let (first, last) = (fields.first(), fields.last());
                let [first, last] =
                    [first, last].map(|field| field.expect("it has some").node.leaves());
                first.start..last.end
            }
        }
    }
}

/// Where in the tree a node is.
#[derive(Clone, Copy, Default)]
struct Levels {
    def: i16,
    rep: i16,
}

/// The columns of a file in their order, with their names.
///
/// # Errors
/// One of them is of a type that has no JSON; its name is said.
pub fn columns(root: &Type) -> Result<Vec<Field>, String> {
    Builder { next: 0, path: Vec::new() }.fields(root, Levels::default())
}

struct Builder {
    /// Index of the next column of values.
    next: usize,
    path: Vec<String>,
}

impl Builder {
    fn refused<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("column {} {what}", self.path.join(".")))
    }

    fn fields(&mut self, ty: &Type, at: Levels) -> Result<Vec<Field>, String> {
        let fields = ty.get_fields().iter().map(|field| {
            let (name, key) = (field.name().to_owned(), json_string(field.name()) + ":");
            Ok(Field { name, key, node: self.node(field, at)? })
        });
        fields.collect()
    }

    /// A node with its own repetition.
    fn node(&mut self, ty: &Type, at: Levels) -> Result<Node, String> {
        self.path.push(ty.name().to_owned());
        let node = match repetition(ty) {
            Repetition::REQUIRED => self.value(ty, at),
            Repetition::OPTIONAL => self.value(ty, Levels { def: at.def + 1, ..at }),
            Repetition::REPEATED => {
                let (inner, levels) = within(at);
                self.value(ty, inner).map(|item| Node::List(Box::new(List { item, levels })))
            }
        };
        self.path.pop();
        node
    }

    fn value(&mut self, ty: &Type, at: Levels) -> Result<Node, String> {
        if ty.is_primitive() {
            return self.leaf(ty, at.def).map(Node::Leaf);
        }
        let info = ty.get_basic_info();
        let fields = ty.get_fields();
        match (info.logical_type_ref(), info.converted_type()) {
            (Some(LogicalType::Variant(_)), _) => self.refused("is a VARIANT, which is not read"),
            (Some(LogicalType::List), _) | (_, ConvertedType::LIST) => self.list(ty, at),
            (Some(LogicalType::Map), _)
            | (_, ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE) => self.map(ty, at),
            _ if fields.is_empty() => self.refused("has no fields"),
            _ => Ok(Node::Struct(Struct { fields: self.fields(ty, at)?, def: at.def })),
        }
    }

    /// A list has a repeated group around its items; older writers leave it out in several ways
    /// (LogicalTypes.md of parquet-format, "Backward-compatibility rules").
    fn list(&mut self, ty: &Type, at: Levels) -> Result<Node, String> {
        let [repeated] = ty.get_fields() else { return self.refused("is a list of another form") };
        if repetition(repeated) != Repetition::REPEATED {
            return self.refused("is a list of another form");
        }
        let (inner, levels) = within(at);
        let is_item = repeated.is_primitive()
            || repeated.get_fields().len() != 1
            || repeated.name() == "array"
            || repeated.name() == format!("{}_tuple", ty.name());
        let item = match is_item {
            true => self.value(repeated, inner)?,
            false => self.node(&repeated.get_fields()[0], inner)?,
        };
        Ok(Node::List(Box::new(List { item, levels })))
    }

    fn map(&mut self, ty: &Type, at: Levels) -> Result<Node, String> {
        let entries = match ty.get_fields() {
            [entries] if repetition(entries) == Repetition::REPEATED && entries.is_group() => {
                entries.get_fields()
            }
            _ => return self.refused("is a map of another form"),
        };
        let (inner, levels) = within(at);
        let (key, value) = match entries {
            [key] => (key, None),
            [key, value] => (key, Some(value)),
            _ => return self.refused("is a map of another form"),
        };
        if !key.is_primitive() || repetition(key) == Repetition::REPEATED {
            return self.refused("is a map whose keys are no single values");
        }
        let is_optional = i16::from(key.is_optional());
        let key = self.leaf(key, inner.def + is_optional)?;
        let value = value.map(|value| self.node(value, inner)).transpose()?;
        Ok(Node::Map(Box::new(Map { key, value, levels })))
    }

    fn leaf(&mut self, ty: &Type, def: i16) -> Result<Leaf, String> {
        let Type::PrimitiveType { physical_type, type_length, .. } = ty else {
            unreachable!("only values are leaves")
        };
        let index = self.next;
        self.next += 1;
        let (physical, length) = (*physical_type, *type_length);
        let meaning = meaning(ty, physical);
        let is_far =
            matches!(meaning, Meaning::Decimal(scale) if !(0..=MAX_SCALE).contains(&scale));
        if is_far {
            return self.refused("has decimals with too many digits");
        }
        let fits = match meaning {
            Meaning::Uuid => length == 16,
            Meaning::Interval => length == 12,
            Meaning::Float16 => length == 2,
            _ => true,
        };
        if !fits {
            return self.refused("has values of another length than their type");
        }
        let name = self.path.join(".");
        Ok(Leaf { index, name, physical, length, meaning, def })
    }
}

fn repetition(ty: &Type) -> Repetition {
    let info = ty.get_basic_info();
    if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED }
}

/// The levels inside of what is repeated at a place.
fn within(at: Levels) -> (Levels, Repeated) {
    let inner = Levels { def: at.def + 1, rep: at.rep + 1 };
    (inner, Repeated { def: at.def, rep: inner.rep })
}

fn meaning(ty: &Type, physical: Physical) -> Meaning {
    let info = ty.get_basic_info();
    let clock = |unit: &TimeUnit, is_utc| {
        let per_second = match unit {
            TimeUnit::MILLIS => 1_000,
            TimeUnit::MICROS => 1_000_000,
            TimeUnit::NANOS => 1_000_000_000,
        };
        Clock { per_second, is_utc }
    };
    let bytes = matches!(physical, Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY);
    match info.logical_type_ref() {
        Some(LogicalType::String | LogicalType::Enum) => return Meaning::Text,
        Some(LogicalType::Json) => return Meaning::Json,
        Some(LogicalType::Uuid) => return Meaning::Uuid,
        Some(LogicalType::Float16) => return Meaning::Float16,
        Some(LogicalType::Date) => return Meaning::Date,
        Some(LogicalType::Decimal(decimal)) => return Meaning::Decimal(decimal.scale),
        Some(LogicalType::Integer(int)) if !int.is_signed => return Meaning::Unsigned,
        Some(LogicalType::Time(time)) => {
            return Meaning::Time(clock(&time.unit, time.is_adjusted_to_u_t_c));
        }
        Some(LogicalType::Timestamp(time)) => {
            return Meaning::Timestamp(clock(&time.unit, time.is_adjusted_to_u_t_c));
        }
        _ => {}
    }
    let utc = |unit| clock(&unit, true);
    match info.converted_type() {
        ConvertedType::UTF8 | ConvertedType::ENUM => Meaning::Text,
        ConvertedType::JSON => Meaning::Json,
        ConvertedType::DATE => Meaning::Date,
        ConvertedType::DECIMAL => Meaning::Decimal(ty.get_scale()),
        ConvertedType::INTERVAL => Meaning::Interval,
        ConvertedType::TIME_MILLIS => Meaning::Time(utc(TimeUnit::MILLIS)),
        ConvertedType::TIME_MICROS => Meaning::Time(utc(TimeUnit::MICROS)),
        ConvertedType::TIMESTAMP_MILLIS => Meaning::Timestamp(utc(TimeUnit::MILLIS)),
        ConvertedType::TIMESTAMP_MICROS => Meaning::Timestamp(utc(TimeUnit::MICROS)),
        ConvertedType::UINT_8
        | ConvertedType::UINT_16
        | ConvertedType::UINT_32
        | ConvertedType::UINT_64 => Meaning::Unsigned,
        _ if bytes => Meaning::Binary,
        _ => Meaning::Plain,
    }
}
