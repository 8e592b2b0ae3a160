//! The keys of a configuration, and which of them were read.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::config::ConfigError;
use super::sizes::Size;

/// Keys that say nothing of pixels, or what is so for all images here.
const HARMLESS: &[&str] = &[
    "_valid_processor_keys",
    "auto_map",
    "data_format",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "input_data_format",
    "processor_class",
    "return_row_col_info",
    "return_tensors",
    // Of videos, which are not images.
    "video_sampling",
];

/// An object of which no key may go unread. A key with `null` is as good as missing.
pub(crate) struct Keys<'a> {
    object: &'a Map<String, Value>,
    read: BTreeSet<&'static str>,
    harmless: &'static [&'static str],
}

impl<'a> Keys<'a> {
    pub(crate) fn new(config: &'a Value) -> Result<Self, ConfigError> {
        Keys::with_harmless(config, HARMLESS)
    }

    /// The same, of which other keys are harmless.
    pub(crate) fn with_harmless(
        config: &'a Value,
        harmless: &'static [&'static str],
    ) -> Result<Self, ConfigError> {
        let object = config.as_object().ok_or_else(|| ConfigError::new("it is no object"))?;
        Ok(Keys { object, read: BTreeSet::new(), harmless })
    }

    pub(crate) fn value(&mut self, key: &'static str) -> Option<&'a Value> {
        self.read.insert(key);
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn of_kind<T>(
        &mut self,
        key: &'static str,
        kind: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let wrong = || ConfigError::new(format!("`{key}` is {value}, which is no {kind}"));
        read(value).ok_or_else(wrong).map(Some)
    }

    pub(crate) fn flag(&mut self, key: &'static str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.of_kind(key, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    pub(crate) fn text(&mut self, key: &'static str) -> Result<Option<&'a str>, ConfigError> {
        self.of_kind(key, "text", Value::as_str)
    }

    pub(crate) fn number(&mut self, key: &'static str) -> Result<Option<f64>, ConfigError> {
        self.of_kind(key, "number above 0", |value| value.as_f64().filter(|number| *number > 0.0))
    }

    pub(crate) fn count(&mut self, key: &'static str) -> Result<Option<usize>, ConfigError> {
        self.of_kind(key, "whole number above 0", count)
    }

    /// The side of a square: one number, or two that are equal.
    pub(super) fn square(&mut self, key: &'static str) -> Result<Option<usize>, ConfigError> {
        self.of_kind(key, "side of a square", |value| match value.as_array() {
            None => count(value),
            Some(sides) => match &sides[..] {
                [height, width] if height == width => count(height),
                _ => None,
            },
        })
    }

    /// Three numbers, or one that stands for all.
    pub(super) fn bands(&mut self, key: &'static str) -> Result<Option<[f64; 3]>, ConfigError> {
        self.of_kind(key, "number for each of three bands", |value| match value {
            Value::Number(number) => number.as_f64().map(|number| [number; 3]),
            Value::Array(numbers) => {
                let numbers: Option<Vec<f64>> = numbers.iter().map(Value::as_f64).collect();
                numbers?.try_into().ok()
            }
            _ => None,
        })
    }

    /// Two whole numbers.
    pub(super) fn two(&mut self, key: &'static str) -> Result<Option<[usize; 2]>, ConfigError> {
        self.of_kind(key, "pair of whole numbers", |value| {
            let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
            let numbers: Option<Vec<usize>> = value.as_array()?.iter().map(number).collect();
            numbers?.try_into().ok()
        })
    }

    /// Pairs of whole numbers above 0.
    pub(super) fn pairs(
        &mut self,
        key: &'static str,
    ) -> Result<Option<Vec<[usize; 2]>>, ConfigError> {
        self.of_kind(key, "list of pairs of whole numbers above 0", |value| {
            let pair = |pair: &Value| {
                let numbers: Option<Vec<usize>> = pair.as_array()?.iter().map(count).collect();
                numbers?.try_into().ok()
            };
            value.as_array()?.iter().map(pair).collect()
        })
    }

    /// Sides in pixels by name (`height`, `shortest_edge`), or one number for all of `single`.
    pub(super) fn sides(
        &mut self,
        key: &'static str,
        single: &[&str],
    ) -> Result<Option<Sides>, ConfigError> {
        self.of_kind(key, "size in pixels", |value| match value {
            Value::Object(sides) => {
                let sides = sides.iter().filter(|(_, side)| !side.is_null());
                let named = |(name, side): (&String, &Value)| Some((name.clone(), count(side)?));
                sides.map(named).collect::<Option<_>>().map(Sides)
            }
            _ => {
                let side = count(value)?;
                Some(Sides(single.iter().map(|&name| (name.to_owned(), side)).collect()))
            }
        })
    }

    /// Names of keys that were not read and are not known to be harmless.
    pub(crate) fn unread(&self) -> Vec<&str> {
        let keys = self.object.iter().filter(|(_, value)| !value.is_null());
        let keys = keys.map(|(key, _)| key.as_str());
        keys.filter(|key| !self.read.contains(key) && !self.harmless.contains(key)).collect()
    }
}

fn count(value: &Value) -> Option<usize> {
    let count = value.as_u64().filter(|count| (1..=1 << 32).contains(count))?;
    usize::try_from(count).ok()
}

/// Sides of a size, by name.
pub(super) struct Sides(Vec<(String, usize)>);

impl Sides {
    /// The sides of these names, if the size has them and no others.
    pub(super) fn only<const N: usize>(&self, names: [&str; N]) -> Option<[usize; N]> {
        let side = |name: &str| self.0.iter().find(|(key, _)| key == name).map(|(_, side)| *side);
        let sides = names.map(side);
        let is_all = self.0.len() == N && sides.iter().all(Option::is_some);
        is_all.then(|| sides.map(Option::unwrap_or_default))
    }

    pub(super) fn both(&self) -> Option<Size> {
        let [width, height] = self.only(["width", "height"])?;
        Some(Size { width, height })
    }

    /// The names, for a message.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    }
}
