//! `Keys`: the metadata of one architecture, which remembers what was asked for. A key that nobody
//! asks for refuses the file, as an unknown key of config.json does.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::Described;
use crate::weights::gguf::Value;
use vllm_batch_base::files::quoted;

/// Keys that begin with the name of the architecture.
pub(super) struct Keys<'a> {
    file: &'a Described,
    arch: &'a str,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(file: &'a Described, arch: &'a str) -> Self {
        Self { file, arch, read: RefCell::default() }
    }

    fn full(&self, key: &str) -> String {
        let full = format!("{}.{key}", self.arch);
        self.read.borrow_mut().insert(full.clone());
        full
    }

    /// A count.
    ///
    /// # Errors
    /// It is something else; so for all below.
    pub(super) fn optional_size(&self, key: &str) -> Result<Option<u64>, String> {
        self.size_of_layers(key, |_| true)
    }

    /// A count, where layers have it: it is 0 in the others.
    pub(super) fn size_where_any(&self, key: &str) -> Result<Option<u64>, String> {
        self.size_of_layers(key, |size| size != Some(0))
    }

    /// A count that the layers have that count.
    fn size_of_layers(
        &self,
        key: &str,
        counts: impl Fn(Option<u64>) -> bool,
    ) -> Result<Option<u64>, String> {
        let full = self.full(key);
        let Some(numbers) = self.file.metadata.get(&full).and_then(Value::as_numbers) else {
            return self.file.metadata.unsigned(&full);
        };
        // One for each layer.
        let sizes = numbers.iter().map(|number| number.as_unsigned());
        let mut sizes = sizes.filter(|size| counts(*size));
        let first = sizes.next().flatten();
        match first.is_some() && sizes.all(|size| size == first) {
            true => Ok(first),
            false => {
                Err(format!("{} differs between layers; that is not supported", quoted(&full)))
            }
        }
    }

    /// A count of each layer, as a list or as one of all; there is at least one layer.
    pub(super) fn sizes_by_layer(&self, key: &str, num_layers: usize) -> Result<Vec<u64>, String> {
        let full = self.full(key);
        let Some(numbers) = self.file.metadata.get(&full).and_then(Value::as_numbers) else {
            return Ok(vec![self.size(key)?; num_layers.max(1)]);
        };
        let sizes: Option<Vec<u64>> = numbers.iter().map(|number| number.as_unsigned()).collect();
        let sizes = sizes.filter(|sizes| sizes.len() == num_layers && num_layers > 0);
        sizes.ok_or_else(|| format!("{} has not one count for each layer", quoted(&full)))
    }

    /// A count that must be there.
    pub(super) fn size(&self, key: &str) -> Result<u64, String> {
        let missing = || format!("{} is missing", quoted(&self.full(key)));
        self.optional_size(key)?.ok_or_else(missing)
    }

    /// A number, with the fewest digits that give the 32 bits of the file.
    pub(super) fn float(&self, key: &str) -> Result<Option<f64>, String> {
        self.file.metadata.float(&self.full(key))
    }

    /// Numbers, of 32 bits each.
    pub(super) fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, String> {
        let full = self.full(key);
        let Some(numbers) = self.file.metadata.numbers(&full)? else { return Ok(None) };
        let float = |value: Value| {
            let number = value.as_float().or_else(|| Some(value.as_unsigned()? as f64));
            number.map(|number| number as f32).filter(|number| number.is_finite())
        };
        let floats: Option<Vec<f32>> = numbers.iter().map(float).collect();
        floats.map(Some).ok_or_else(|| format!("{} is no list of numbers", quoted(&full)))
    }

    /// True or false.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        self.file.metadata.bool(&self.full(key))
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        self.file.metadata.text(&self.full(key))
    }

    /// Which layers slide: each as the list says, or all but each last one of so many.
    pub(super) fn pattern(&self, key: &str, num_layers: u64) -> Result<Option<Vec<bool>>, String> {
        let full = self.full(key);
        match self.file.metadata.get(&full) {
            None => Ok(None),
            Some(value) => match (value.as_unsigned(), value.as_numbers()) {
                (Some(0), _) => Ok(Some(vec![false; num_layers as usize])),
                (Some(last), _) => Ok(Some((1..=num_layers).map(|n| n % last != 0).collect())),
                (None, Some(list)) if list.len() as u64 == num_layers => {
                    let flag = |value: Value| {
                        value.as_bool().or_else(|| value.as_unsigned().map(|number| number != 0))
                    };
                    let flags: Option<Vec<bool>> = list.iter().map(flag).collect();
                    flags.map(Some).ok_or_else(|| format!("{} is no list of flags", quoted(&full)))
                }
                _ => Err(format!("{} has not one entry for each layer", quoted(&full))),
            },
        }
    }

    /// Whether the file has a key.
    pub(super) fn is_there(&self, key: &str) -> bool {
        self.file.metadata.get(&self.full(key)).is_some()
    }

    /// Says that all keys that begin so change nothing here.
    pub(super) fn ignore_all(&self, beginning: &str) {
        let full = format!("{}.{beginning}", self.arch);
        let keys = self.file.metadata.iter().map(|(key, _)| key);
        let found = keys.filter(|key| key.starts_with(&full)).map(str::to_owned);
        self.read.borrow_mut().extend(found);
    }

    /// Whether the file has a tensor.
    pub(super) fn has(&self, tensor: &str) -> bool {
        self.file.shapes.contains_key(tensor)
    }

    /// Whether any layer has a tensor that ends so.
    pub(super) fn has_any(&self, ending: &str) -> bool {
        self.file.shapes.keys().any(|name| name.ends_with(ending))
    }

    /// Values of a tensor that is no weight.
    pub(super) fn vector(&self, tensor: &str) -> Option<&'a [f32]> {
        self.file.vectors.get(tensor).map(Vec::as_slice)
    }

    /// The shape of a tensor that must be there, rows first.
    pub(super) fn shape(&self, tensor: &str) -> Result<&'a [usize], String> {
        let shape = self.file.shapes.get(tensor).filter(|shape| !shape.is_empty());
        shape.map(Vec::as_slice).ok_or_else(|| format!("tensor {tensor} is missing"))
    }

    /// Says that keys change nothing here.
    pub(super) fn ignore(&self, keys: &[&str]) {
        keys.iter().for_each(|key| drop(self.full(key)));
    }

    /// Refuses keys that nobody asked for.
    pub(super) fn refuse_unread(&self) -> Result<(), String> {
        let prefix = format!("{}.", self.arch);
        let read = self.read.borrow();
        let keys = self.file.metadata.iter().map(|(key, _)| key);
        let unread = keys.filter(|key| key.starts_with(&prefix) && !read.contains(*key));
        let unread: Vec<_> = unread.collect();
        match unread.as_slice() {
            [] => Ok(()),
            unread => Err(format!(
                "metadata {} is not known for this architecture, so the model may be another \
                 than the one that would run",
                quoted(&unread.join(", "))
            )),
        }
    }
}
