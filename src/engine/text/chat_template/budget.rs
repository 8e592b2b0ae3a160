//! Limits of one render. Every text and list that a template makes is counted, and everything
//! that is read to make, compare, sort or write one; so neither memory nor time is a matter of how
//! often a value is doubled. The count decides, never a clock: the same row ends the same way
//! everywhere.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::super::python::is_tuple;
use super::sequences::Sequence;
use super::weight::{self, ITEM_BYTES, MAX_WEIGHT, is_container};

/// Largest text that a template may make.
pub(crate) const MAX_TEXT: usize = 16 << 20;

/// Longest list that a template may make.
const MAX_ITEMS: usize = 1 << 20;

/// Bytes that a render may make and read, those that are dropped again included.
const MAX_SPENT: usize = 256 << 20;

/// Bytes that a render may write, to blocks whose text is a value as well.
const MAX_WRITTEN: usize = 4 * MAX_TEXT;

/// Counts of a render so far. A worker has one, and renders one row at a time.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    spent: AtomicUsize,
    written: AtomicUsize,
}

/// The error of a template that takes more than it may.
pub(super) fn too_much(text: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.to_owned())
}

impl Budget {
    /// For the next render.
    pub(super) fn reset(&self) {
        self.spent.store(0, Relaxed);
        self.written.store(0, Relaxed);
    }

    /// Counts bytes that a render makes or reads.
    pub(crate) fn charge(&self, num_bytes: usize) -> Result<(), Error> {
        let spent = self.spent.load(Relaxed).saturating_add(num_bytes);
        self.spent.store(spent, Relaxed);
        match spent > MAX_SPENT {
            true => Err(too_much("the chat template makes and reads more than 256 MiB of values")),
            false => Ok(()),
        }
    }

    /// Counts bytes that a render writes.
    pub(super) fn charge_written(&self, num_bytes: usize) -> Result<(), Error> {
        let written = self.written.load(Relaxed).saturating_add(num_bytes);
        self.written.store(written, Relaxed);
        match written > MAX_WRITTEN {
            true => Err(too_much("the chat template writes more than 16 MiB")),
            false => Ok(()),
        }
    }

    /// Counts the items of a container, or the bytes of a text: what is read of it but not of what
    /// it holds.
    pub(super) fn charge_items(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.charge(text.len()),
            None if is_container(value) => self.charge(num_items(value) * ITEM_BYTES),
            None => Ok(()),
        }
    }

    /// Counts a value that is read in full. Returns its weight.
    pub(crate) fn charge_all(&self, value: &Value) -> Result<usize, Error> {
        let weight = self.weigh(value)?;
        self.charge(weight)?;
        Ok(weight)
    }

    /// The weight of a value. What it takes to learn it is counted.
    pub(super) fn weigh(&self, value: &Value) -> Result<usize, Error> {
        if !is_container(value) {
            return Ok(weight::own_bytes(value));
        }
        let (weight, read) = weight::weigh(value, self.limit())?;
        self.charge(read)?;
        Ok(weight.bytes)
    }

    /// Refuses what a namespace must not hold.
    pub(super) fn check_assigned(&self, value: &Value) -> Result<(), Error> {
        match is_container(value) {
            true => self.charge(weight::weigh_for_namespace(value, self.limit())?),
            false => Ok(()),
        }
    }

    /// Counts a value that was made. What is made lazily is made now: it could be nested without
    /// an end.
    pub(crate) fn made(&self, value: Value) -> Result<Value, Error> {
        if let Some(text) = value.as_str() {
            check_text(text.len())?;
            self.charge(text.len())?;
            return Ok(value);
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable if weight::is_weighed(&value) => Ok(value),
            ValueKind::Seq | ValueKind::Iterable if !is_tuple(&value) => self.list(&value),
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                check_items(num_items(&value))?;
                self.weigh(&value)?;
                Ok(value)
            }
            _ => Ok(value),
        }
    }

    fn list(&self, value: &Value) -> Result<Value, Error> {
        check_items(num_items(value))?;
        let mut items = Vec::new();
        for item in value.try_iter()?.checked() {
            check_items(items.len() + 1)?;
            items.push(item?);
        }
        self.charge(items.len() * ITEM_BYTES)?;
        let (list, read) = weight::list(items, self.limit())?;
        self.charge(read)?;
        Ok(list)
    }

    /// The heaviest value that there is still room for.
    fn limit(&self) -> usize {
        MAX_WEIGHT.min(MAX_SPENT.saturating_sub(self.spent.load(Relaxed)))
    }
}

/// Number of items of a container; of an iterator, those that were read included.
pub(super) fn num_items(value: &Value) -> usize {
    let value = value.downcast_object_ref::<Sequence>().map_or(value, Sequence::list);
    value.len().unwrap_or(0)
}

pub(crate) fn check_text(num_bytes: usize) -> Result<(), Error> {
    match num_bytes > MAX_TEXT {
        true => Err(too_much("the chat template makes a text of more than 16 MiB")),
        false => Ok(()),
    }
}

pub(super) fn check_items(num_items: usize) -> Result<(), Error> {
    match num_items > MAX_ITEMS {
        true => Err(too_much("the chat template makes a list of more than a million items")),
        false => Ok(()),
    }
}

/// A text that grows up to `MAX_TEXT`.
#[derive(Default)]
pub(crate) struct BoundedText(String);

impl BoundedText {
    /// The text, or that it was too much.
    pub(crate) fn written(self, result: fmt::Result) -> Result<String, Error> {
        result.map_err(|_| too_much("the chat template makes a text of more than 16 MiB"))?;
        Ok(self.0)
    }
}

impl Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_TEXT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}
