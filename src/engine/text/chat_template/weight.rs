//! Cost of reading a value in full. A list that holds another one twice is small in memory and
//! twice as long to read, so what counts is the value with everything shared written out.

use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, Value};

use super::super::python::number;
use super::budget::too_much;
use super::sequences::Sequence;

/// Bytes of an entry of a list, roughly; any value weighs as much.
pub(super) const ITEM_BYTES: usize = 32;

/// Count of an integer of more than 128 bits, and of an operation with it: it may have thousands of
/// digits.
pub(super) const LARGE_BYTES: usize = 16 << 10;

/// Heaviest value that a template may make.
pub(super) const MAX_WEIGHT: usize = 64 << 20;

/// Deepest nesting: whatever looks at values or drops them takes stack for each level. Python
/// refuses to print lists that are nested a thousand deep.
pub(super) const MAX_DEPTH: usize = 400;

/// Type of namespaces in minijinja, which has no name outside.
const NAMESPACE: &str = "::Namespace";

/// Known counts of a value once it was read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weight {
    /// Bytes with everything shared written out.
    pub bytes: usize,
    /// Levels of containers.
    depth: usize,
}

/// A list that knows its weight, so that it is not read again to learn it.
#[derive(Debug)]
pub(super) struct List {
    items: Vec<Value>,
    weight: Weight,
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

/// A list of these items, and the bytes that were read to weigh it.
///
/// # Errors
/// It is heavier than `limit`, or nested too deeply.
pub(super) fn list(items: Vec<Value>, limit: usize) -> Result<(Value, usize), Error> {
    let mut reading = Reading { limit, ..Reading::default() };
    let depth = reading.items(items.iter().cloned(), 1, false)?;
    let weight = Weight { bytes: reading.bytes, depth };
    // What a namespace holds changes.
    let value = match reading.has_namespace {
        true => Value::from(items),
        false => Value::from_object(List { items, weight }),
    };
    Ok((value, reading.read))
}

/// A list that a row brings, of any weight.
pub(super) fn given(items: Vec<Value>) -> Value {
    match list(items.clone(), usize::MAX) {
        Ok((list, _)) => list,
        // JSON is not read deeper than this allows.
        Err(_) => Value::from(items),
    }
}

/// The weight of a value, and the bytes that were read to learn it.
///
/// # Errors
/// It is heavier than `limit`, or nested too deeply.
pub(super) fn weigh(value: &Value, limit: usize) -> Result<(Weight, usize), Error> {
    let mut reading = Reading { limit, ..Reading::default() };
    let depth = reading.value(value, 0, false)?;
    Ok((Weight { bytes: reading.bytes, depth }, reading.read))
}

/// Refuses a namespace in a value that a namespace is about to hold: there would be circles.
///
/// # Errors
/// There is one, or the value is too heavy.
pub(super) fn weigh_for_namespace(value: &Value, limit: usize) -> Result<usize, Error> {
    let mut reading = Reading { limit, ..Reading::default() };
    reading.value(value, 0, true)?;
    Ok(reading.read)
}

/// Bytes of a value without what it holds.
pub(super) fn own_bytes(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => ITEM_BYTES + text.len(),
        None if number::is_large(value) => LARGE_BYTES,
        None => ITEM_BYTES,
    }
}

/// Whether a value holds others.
pub(super) fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)
}

/// Whether a value is a list that was weighed, or has its items in one.
pub(super) fn is_weighed(value: &Value) -> bool {
    match value.downcast_object_ref::<Sequence>() {
        Some(sequence) => is_weighed(sequence.list()),
        None => value.downcast_object_ref::<List>().is_some(),
    }
}

/// A walk through a value.
#[derive(Default)]
struct Reading {
    bytes: usize,
    /// Values that were read, without known ones.
    read: usize,
    limit: usize,
    has_namespace: bool,
}

impl Reading {
    /// Reads a value at a depth. Returns how many levels it has.
    fn value(&mut self, value: &Value, depth: usize, in_namespace: bool) -> Result<usize, Error> {
        if let Some(list) = value.downcast_object_ref::<List>() {
            self.count(list.weight.bytes, ITEM_BYTES)?;
            return nested(depth, list.weight.depth);
        }
        // To read an iterator would end it.
        if let Some(sequence) = value.downcast_object_ref::<Sequence>() {
            return self.value(sequence.list(), depth, in_namespace);
        }
        self.count(own_bytes(value), ITEM_BYTES)?;
        if !is_container(value) {
            return Ok(0);
        }
        nested(depth, 1)?;
        let is_namespace =
            value.as_object().is_some_and(|object| object.type_name().ends_with(NAMESPACE));
        if is_namespace && in_namespace {
            return Err(too_much("the chat template puts a namespace into a namespace"));
        }
        self.has_namespace |= is_namespace;
        let in_namespace = in_namespace || is_namespace;
        if value.kind() != ValueKind::Map {
            return self.items(value.try_iter()?, depth + 1, in_namespace);
        }
        let mut levels = 1;
        for key in value.try_iter()? {
            self.count(key.as_str().map_or(0, str::len), 0)?;
            if is_container(&key) {
                levels = levels.max(1 + self.value(&key, depth + 1, in_namespace)?);
            }
            let item = value.get_item(&key)?;
            levels = levels.max(1 + self.value(&item, depth + 1, in_namespace)?);
        }
        Ok(levels)
    }

    /// Reads the items of a list, which are at a depth. Returns how many levels the list has.
    fn items(
        &mut self,
        items: impl Iterator<Item = Value>,
        depth: usize,
        in_namespace: bool,
    ) -> Result<usize, Error> {
        let mut levels = 1;
        for item in items {
            levels = levels.max(1 + self.value(&item, depth, in_namespace)?);
        }
        Ok(levels)
    }

    fn count(&mut self, bytes: usize, read: usize) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.read = self.read.saturating_add(read);
        match self.bytes > self.limit {
            true => Err(too_much("the chat template makes too large a value")),
            false => Ok(()),
        }
    }
}

fn nested(depth: usize, levels: usize) -> Result<usize, Error> {
    match depth + levels > MAX_DEPTH {
        true => Err(too_much("the chat template nests its values too deeply")),
        false => Ok(levels),
    }
}
