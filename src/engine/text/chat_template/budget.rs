//! What the values of one render may take together. Every text and list that a template makes is
//! counted, every text that a filter or a method reads as well; so neither memory nor time is a
//! matter of how often a value is doubled.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use minijinja::value::{Object, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::super::dialect::MADE;
use super::super::python;

/// Largest text that a template may make.
pub(in crate::engine::text) const MAX_TEXT: usize = 16 << 20;

/// Longest list that a template may make.
const MAX_ITEMS: usize = 1 << 20;

/// Bytes that all values of a render may take, those that are dropped again included.
const MAX_MADE: usize = 256 << 20;

/// Bytes that a render may write, to blocks whose text is a value as well.
const MAX_WRITTEN: usize = 4 * MAX_TEXT;

/// Containers of containers that a template may make: so deep can values be nested at most, and
/// whatever looks at them or drops them takes stack for each level.
const MAX_NESTED: usize = 200_000;

/// Bytes of an entry of a list, roughly.
const ITEM_BYTES: usize = 32;

/// Widest column, highest precision, largest batch that a template may ask for.
const MAX_WIDTH: usize = 1 << 16;

/// The variable that has the `Budget`. A template that gives the name to another value fails.
pub(super) const BUDGET: &str = "__budget__";

/// Names of functions and of a filter that instructions call.
pub(super) const CONCATENATED: &str = "__concatenated__";
pub(super) const FACTORS: &str = "__factors__";
pub(super) const CONTAINED_IN: &str = "__contained_in__";
pub(super) const NESTED: &str = "__nested__";
/// `==`, `!=`, `<`, `<=`, `>`, `>=`.
pub(super) const COMPARISONS: [&str; 6] =
    ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"];

/// How much a render has made so far.
#[derive(Debug, Default)]
pub(super) struct Budget {
    made: AtomicUsize,
    written: AtomicUsize,
    nested: AtomicUsize,
}

impl Object for Budget {}

fn too_much(text: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.to_owned())
}

/// Counts bytes that a render makes or reads.
pub(super) fn charge(state: &State<'_, '_>, num_bytes: usize) -> Result<(), Error> {
    let text = "the chat template makes more than 256 MiB of values";
    count(state, |budget| &budget.made, num_bytes, MAX_MADE, text)
}

/// Counts bytes that a render writes.
pub(super) fn charge_written(state: &State<'_, '_>, num_bytes: usize) -> Result<(), Error> {
    let text = "the chat template writes more than 16 MiB";
    count(state, |budget| &budget.written, num_bytes, MAX_WRITTEN, text)
}

fn count(
    state: &State<'_, '_>,
    counter: fn(&Budget) -> &AtomicUsize,
    more: usize,
    max: usize,
    text: &str,
) -> Result<(), Error> {
    let budget = state.lookup(BUDGET);
    let Some(budget) = budget.as_ref().and_then(|value| value.downcast_object_ref::<Budget>())
    else {
        return Err(too_much("the chat template changes what counts its values"));
    };
    let before = counter(budget).fetch_add(more, Relaxed);
    match before.saturating_add(more) > max {
        true => Err(too_much(text)),
        false => Ok(()),
    }
}

/// Counts a container that holds others.
pub(in crate::engine::text) fn nested(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    let nests = match value.kind() {
        ValueKind::Map => true,
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter().is_ok_and(|mut items| items.any(|item| is_container(&item)))
        }
        _ => false,
    };
    if nests {
        let text = "the chat template nests its values too deeply";
        count(state, |budget| &budget.nested, 1, MAX_NESTED, text)?;
    }
    Ok(value)
}

/// Counts a value that was made.
pub(in crate::engine::text) fn made(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        check_text(text.len())?;
        charge(state, text.len())?;
    } else if is_container(&value)
        && let Some(num_items) = value.len()
    {
        check_items(num_items)?;
        charge(state, num_items.saturating_mul(ITEM_BYTES))?;
    }
    Ok(value)
}

fn check_text(num_bytes: usize) -> Result<(), Error> {
    match num_bytes > MAX_TEXT {
        true => Err(too_much("the chat template makes a text of more than 16 MiB")),
        false => Ok(()),
    }
}

fn check_items(num_items: usize) -> Result<(), Error> {
    match num_items > MAX_ITEMS {
        true => Err(too_much("the chat template makes a list of more than a million items")),
        false => Ok(()),
    }
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)
}

/// A text that grows up to `MAX_TEXT`.
#[derive(Default)]
pub(in crate::engine::text) struct BoundedText(String);

impl BoundedText {
    /// The text, or that it was too much.
    pub fn written(self, result: fmt::Result) -> Result<String, Error> {
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

/// Registers what instructions call.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    let counted = |state: &mut State<'_, '_>, value: &Value| made(state, value.clone());
    environment.add_filter(MADE, counted);
    let counted = |state: &mut State<'_, '_>, value: &Value| nested(state, value.clone());
    environment.add_filter(NESTED, counted);
    environment.add_function(CONCATENATED, concatenated);
    environment.add_function(FACTORS, factors);
    environment.add_function(CONTAINED_IN, contained_in);
    let comparisons: [fn(&Value, &Value) -> bool; 6] =
        [|a, b| a == b, |a, b| a != b, |a, b| a < b, |a, b| a <= b, |a, b| a > b, |a, b| a >= b];
    for (name, compare) in COMPARISONS.into_iter().zip(comparisons) {
        let counted = move |state: &mut State<'_, '_>, a: &Value, b: &Value| {
            charge(state, size(a).min(size(b)))?;
            Ok::<bool, Error>(compare(a, b))
        };
        environment.add_function(name, counted);
    }
}

/// What comparing or searching a value takes.
fn size(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None if is_container(value) => value.len().unwrap_or(0),
        None => 0,
    }
}

/// `left ~ right`.
fn concatenated(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let mut text = BoundedText::default();
    let result = write!(text, "{left}{right}");
    made(state, Value::from(text.written(result)?))
}

/// Both operands of `*`, the right one first, if their product may be made.
fn factors(left: &Value, right: &Value) -> Result<Value, Error> {
    for (value, number) in [(left, right), (right, left)] {
        let Some(number) = number.as_usize() else { continue };
        if let Some(text) = value.as_str() {
            check_text(text.len().saturating_mul(number))?;
        } else if is_container(value) {
            check_items(value.len().unwrap_or(0).saturating_mul(number))?;
        }
    }
    Ok(Value::from(vec![right.clone(), left.clone()]))
}

/// Both operands of `in`, the right one first.
fn contained_in(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    charge(state, size(right))?;
    Ok(Value::from(vec![right.clone(), left.clone()]))
}

/// Calls a filter that is registered under another name: what it reads and makes is counted.
pub(in crate::engine::text) fn filtered(
    state: &mut State<'_, '_>,
    name: &str,
    alias: &str,
    mut args: Vec<Value>,
) -> Result<Value, Error> {
    if TEXT_FILTERS.contains(&name) {
        // The filters themselves would write out a list of lists in full.
        for arg in args.iter_mut().filter(|arg| is_container(arg) && !arg.is_kwargs()) {
            *arg = Value::from(python::to_str(arg)?);
        }
    }
    check_call(state, name, &args)?;
    let value = state.apply_filter(alias, &args)?;
    nested(state, made(state, value)?)
}

/// Filters that take every value for a text.
const TEXT_FILTERS: [&str; 11] = [
    "upper",
    "lower",
    "title",
    "capitalize",
    "escape",
    "e",
    "replace",
    "indent",
    "split",
    "lines",
    "format",
];

/// Counts what a filter or a method is about to read, and refuses what it would make too large.
/// The first argument is the value that it is called on.
pub(in crate::engine::text) fn check_call(
    state: &State<'_, '_>,
    name: &str,
    args: &[Value],
) -> Result<(), Error> {
    let texts = args.iter().filter_map(|arg| arg.as_str());
    charge(state, texts.map(str::len).sum())?;
    let text = |index: usize| args.get(index).and_then(|arg| arg.as_str());
    match name {
        "replace" => {
            let (Some(text), Some(old), Some(new)) = (text(0), text(1), text(2)) else {
                return Ok(());
            };
            let matches = if old.is_empty() { text.len() + 1 } else { text.matches(old).count() };
            check_text(text.len().saturating_add(matches.saturating_mul(new.len())))
        }
        "format" => {
            let format = text(0).unwrap_or_default();
            check_numbers(format)?;
            let widest = args[1..].iter().map(|arg| arg.as_str().map_or(0, str::len)).max();
            let places = format.matches(['{', '%']).count();
            check_text(places.saturating_mul(widest.unwrap_or(0)))?;
            check_widths(&args[1..])
        }
        "indent" | "batch" | "slice" | "round" => check_widths(&args[1..]),
        _ => Ok(()),
    }
}

/// Numbers in a format are widths and precisions.
fn check_numbers(format: &str) -> Result<(), Error> {
    let numbers = format.split(|c: char| !c.is_ascii_digit());
    let too_wide = |digits: &str| digits.parse::<usize>().map_or(true, |width| width > MAX_WIDTH);
    match numbers.filter(|digits| !digits.is_empty()).any(too_wide) {
        true => Err(too_much("the chat template formats with too large a width")),
        false => Ok(()),
    }
}

/// Widths as arguments, by place or by name.
fn check_widths(args: &[Value]) -> Result<(), Error> {
    for arg in args {
        let named = arg.is_kwargs().then(|| arg.get_attr("width").ok()).flatten();
        let width = named.as_ref().unwrap_or(arg);
        if width.is_integer() && width.as_usize().is_some_and(|width| width > MAX_WIDTH) {
            return Err(too_much("the chat template asks for too large a width"));
        }
    }
    Ok(())
}
