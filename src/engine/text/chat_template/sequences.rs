//! Sequences of jinja2 that are no lists: iterators, which are read once, and the views and ranges
//! that Python writes otherwise.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};

/// Kind of a sequence.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Has no length and no places, and ends for good; the filter that makes it.
    Iterator(&'static str),
    /// Of a dict: has a length and no places; how Python calls it.
    View(&'static str),
    /// Text as Python writes it.
    Range(String),
}

/// A sequence that is no list.
#[derive(Debug)]
pub(crate) struct Sequence {
    list: Value,
    kind: Kind,
    /// Number of items of an iterator that were read.
    num_read: AtomicUsize,
}

impl Sequence {
    /// The sequence of a list's items.
    pub(crate) fn value(list: Value, kind: Kind) -> Value {
        Value::from_object(Self { list, kind, num_read: AtomicUsize::new(0) })
    }

    /// The same, not read yet, with a list in place of its own.
    pub(crate) fn with(&self, list: Value) -> Value {
        Self::value(list, self.kind.clone())
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// All items, those that were read included.
    pub(crate) fn list(&self) -> &Value {
        &self.list
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match &self.kind {
            Kind::Iterator(_) => "generator",
            Kind::View(name) => name,
            Kind::Range(_) => "range",
        }
    }

    /// Whether it has items by number.
    pub(crate) fn has_places(&self) -> bool {
        matches!(self.kind, Kind::Range(_))
    }

    /// Number of items; `None` for an iterator, which has no length.
    pub(crate) fn len(&self) -> Option<usize> {
        match self.kind {
            Kind::Iterator(_) => None,
            Kind::View(_) | Kind::Range(_) => self.list.len(),
        }
    }
}

impl Object for Sequence {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match self.kind {
            Kind::Range(_) => ObjectRepr::Seq,
            Kind::Iterator(_) | Kind::View(_) => ObjectRepr::Iterable,
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match self.kind {
            Kind::Range(_) => self.list.get_item_by_index(key.as_usize()?).ok(),
            Kind::Iterator(_) | Kind::View(_) => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match self.kind {
            Kind::Iterator(_) => Enumerator::Iter(Box::new(Rest(Arc::clone(self)))),
            _ => match self.list.try_iter() {
                Ok(items) => Enumerator::Iter(Box::new(items)),
                Err(_) => Enumerator::Empty,
            },
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.len()
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.len() != Some(0)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} object>", self.type_name())
    }
}

/// Unread rest of an iterator.
struct Rest(Arc<Sequence>);

impl Iterator for Rest {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let at = self.0.num_read.load(Relaxed);
        if at >= self.0.list.len()? {
            return None;
        }
        self.0.num_read.store(at + 1, Relaxed);
        self.0.list.get_item_by_index(at).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.0.list.len().unwrap_or(0) - self.0.num_read.load(Relaxed);
        (len, Some(len))
    }
}
