//! What instructions, filters, tests and methods are replaced by: the same, counted first.
//!
//! What is not known to look at little is taken to read its arguments in full. So a filter that
//! nobody thought of is counted too much, not too little.

use std::fmt::Write;
use std::sync::Arc;

use minijinja::tests as builtin;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, State, Value};

use super::super::dialect::MADE;
use super::super::{python, python_methods};
use super::budget::{BoundedText, Budget, check_items, check_text, too_much};
use super::weight::{ITEM_BYTES, is_container};

/// Widest column, highest precision, largest batch that a template may ask for.
const MAX_WIDTH: usize = 1 << 16;

/// Names of filters that instructions call. A template may call them too, and gains nothing.
pub(super) const COUNTED: &str = "__counted__";
pub(super) const CONCATENATED: &str = "__concatenated__";
pub(super) const FACTORS: &str = "__factors__";
pub(super) const CONTAINED_IN: &str = "__contained_in__";
pub(super) const INDEXED: &str = "__indexed__";
pub(super) const ASSIGNED: &str = "__assigned__";
pub(super) const LOOPED: &str = "__looped__";
pub(super) const READ: &str = "__read__";
/// `==`, `!=`, `<`, `<=`, `>`, `>=`.
pub(super) const COMPARISONS: [&str; 6] =
    ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"];

const COMPARE: [fn(&Value, &Value) -> bool; 6] =
    [|a, b| a == b, |a, b| a != b, |a, b| a < b, |a, b| a <= b, |a, b| a > b, |a, b| a >= b];

/// The tests that compare, in the order of `COMPARISONS`.
const COMPARING_TESTS: [&[&str]; 6] = [
    &["eq", "equalto", "=="],
    &["ne", "!="],
    &["lt", "lessthan", "<"],
    &["le", "<="],
    &["gt", "greaterthan", ">"],
    &["ge", ">="],
];

/// Filters that look at the first items of their arguments, or at none.
const READ_LITTLE: [&str; 11] =
    ["length", "count", "default", "d", "first", "bool", "abs", "int", "float", "round", "safe"];

/// Filters that look at the items of their arguments and not at what those hold, or leave that to
/// other filters and tests.
const READ_ITEMS: [&str; 14] = [
    "list",
    "reverse",
    "batch",
    "slice",
    "last",
    "items",
    "zip",
    "chain",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "split",
];

/// Filters that compare items with each other.
const SORTING: [&str; 6] = ["sort", "dictsort", "unique", "groupby", "min", "max"];

/// Filters that take every value for a text.
const TEXT_FILTERS: [&str; 12] = [
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
    "safe",
];

/// Registers what instructions call, and tests.
pub(super) fn add_to(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    // Keeps the compiler from computing constants of any size.
    environment.add_filter(MADE, |value: Value| value);
    let counts = Arc::clone(budget);
    environment.add_filter(COUNTED, move |value: Value| counts.made(value));
    let counts = Arc::clone(budget);
    environment.add_filter(CONCATENATED, move |a: &Value, b: &Value| concatenated(&counts, a, b));
    environment.add_filter(FACTORS, factors);
    let counts = Arc::clone(budget);
    environment.add_filter(CONTAINED_IN, move |item: &Value, container: &Value| {
        charge_contained(&counts, container, item)?;
        Ok::<Value, Error>(given_back(item, container))
    });
    let counts = Arc::clone(budget);
    environment.add_filter(INDEXED, move |value: &Value, key: &Value| {
        charge_indexed(&counts, value, key)?;
        Ok::<Value, Error>(given_back(value, key))
    });
    let counts = Arc::clone(budget);
    environment.add_filter(ASSIGNED, move |value: &Value, namespace: &Value| {
        counts.check_assigned(value)?;
        Ok::<Value, Error>(given_back(value, namespace))
    });
    let counts = Arc::clone(budget);
    environment.add_filter(LOOPED, move |value: Value| {
        counts.charge_items(&value)?;
        Ok::<Value, Error>(value)
    });
    let counts = Arc::clone(budget);
    environment.add_filter(READ, move |values: &Value| read(&counts, values));
    for ((name, tests), compare) in COMPARISONS.into_iter().zip(COMPARING_TESTS).zip(COMPARE) {
        let compared = |counts: Arc<Budget>| {
            move |a: &Value, b: &Value| {
                charge_compared(&counts, a, b)?;
                Ok::<bool, Error>(compare(a, b))
            }
        };
        environment.add_filter(name, compared(Arc::clone(budget)));
        for test in tests {
            environment.add_test(*test, compared(Arc::clone(budget)));
        }
    }
    add_tests(environment, budget);
}

fn add_tests(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    let counts = Arc::clone(budget);
    environment.add_test("in", move |state: &State<'_, '_>, item: &Value, container: &Value| {
        charge_contained(&counts, container, item)?;
        builtin::is_in(state, item, container)
    });
    let counts = Arc::clone(budget);
    environment.add_test("sameas", move |a: &Value, b: &Value| {
        charge_texts(&counts, &[a.clone(), b.clone()])?;
        Ok::<bool, Error>(builtin::is_sameas(a, b))
    });
    for (name, test) in
        [("lower", builtin::is_lower as fn(&Value) -> bool), ("upper", builtin::is_upper)]
    {
        let counts = Arc::clone(budget);
        environment.add_test(name, move |value: &Value| {
            counts.charge_items(value)?;
            Ok::<bool, Error>(test(value))
        });
    }
    for (name, test) in [
        ("startingwith", (|text, start| text.starts_with(start)) as fn(&str, &str) -> bool),
        ("endingwith", |text, end| text.ends_with(end)),
    ] {
        let counts = Arc::clone(budget);
        environment.add_test(name, move |value: &Value, other: &Value| {
            let text = |value: &Value| {
                counts.charge_all(value)?;
                python::to_str(value)
            };
            Ok::<bool, Error>(test(&text(value)?, &text(other)?))
        });
    }
}

/// Two values for `UnpackList`, which turns them round.
fn given_back(left: &Value, right: &Value) -> Value {
    Value::from(vec![right.clone(), left.clone()])
}

/// Values of the stack that are read in full, for `UnpackList`.
fn read(budget: &Budget, values: &Value) -> Result<Value, Error> {
    let mut all = Vec::new();
    for value in values.try_iter()? {
        budget.charge_all(&value)?;
        all.push(value);
    }
    all.reverse();
    Ok(Value::from(all))
}

/// `left ~ right`.
fn concatenated(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    let mut text = BoundedText::default();
    let mut result = Ok(());
    for value in [left, right] {
        result = result.and_then(|()| match value.as_str() {
            Some(part) => text.write_str(part),
            None => Ok(()),
        });
        if value.as_str().is_none() {
            budget.charge_all(value)?;
            let part = python::to_str(value)?;
            result = result.and_then(|()| text.write_str(&part));
        }
    }
    budget.made(Value::from(text.written(result)?))
}

/// Both operands of `*`, if their product may be made.
fn factors(left: &Value, right: &Value) -> Result<Value, Error> {
    for (value, number) in [(left, right), (right, left)] {
        let Some(number) = number.as_usize() else { continue };
        if let Some(text) = value.as_str() {
            check_text(text.len().saturating_mul(number))?;
        } else if is_container(value) {
            check_items(value.len().unwrap_or(0).saturating_mul(number))?;
        }
    }
    Ok(given_back(left, right))
}

/// A comparison ends with the shorter value at the latest.
fn charge_compared(budget: &Budget, a: &Value, b: &Value) -> Result<(), Error> {
    if !is_container(a) && !is_container(b) {
        let len = |value: &Value| value.as_str().map_or(0, str::len);
        return budget.charge(len(a).min(len(b)));
    }
    let lighter = budget.weigh(a)?.min(budget.weigh(b)?);
    budget.charge(lighter)
}

fn charge_contained(budget: &Budget, container: &Value, item: &Value) -> Result<(), Error> {
    let item_weight = budget.weigh(item)?;
    let each = match container.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let num_items = container.len().unwrap_or(0);
            num_items.saturating_mul(ITEM_BYTES + item_weight).min(budget.weigh(container)?)
        }
        _ => container.as_str().map_or(0, str::len),
    };
    budget.charge(each.saturating_add(item_weight))
}

/// A key is hashed, a place in a text is counted out.
fn charge_indexed(budget: &Budget, value: &Value, key: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        budget.charge(text.len())?;
    }
    match is_container(key) || key.as_str().is_some() {
        true => budget.charge_all(key).map(drop),
        false => Ok(()),
    }
}

/// Calls a filter that is registered under another name: what it reads and makes is counted.
pub(in crate::engine::text) fn filtered(
    budget: &Budget,
    state: &mut State<'_, '_>,
    name: &str,
    alias: &str,
    mut args: Vec<Value>,
) -> Result<Value, Error> {
    budget.charge(args.len() * ITEM_BYTES)?;
    charge_filter(budget, name, &args)?;
    if TEXT_FILTERS.contains(&name) {
        // The filters themselves would write out a list of lists in full.
        for arg in args.iter_mut().filter(|arg| is_container(arg) && !arg.is_kwargs()) {
            *arg = Value::from(python::to_str(arg)?);
        }
    }
    check_call(budget, name, &args)?;
    let value = state.apply_filter(alias, &args)?;
    budget.made(value)
}

fn charge_filter(budget: &Budget, name: &str, args: &[Value]) -> Result<(), Error> {
    let containers = || args.iter().filter(|arg| is_container(arg));
    if TEXT_FILTERS.contains(&name) {
        return containers().try_for_each(|arg| budget.charge_all(arg).map(drop));
    }
    if READ_LITTLE.contains(&name) {
        return Ok(());
    }
    if READ_ITEMS.contains(&name) {
        return containers().try_for_each(|arg| budget.charge_items(arg));
    }
    for arg in containers() {
        let weight = budget.charge_all(arg)?;
        let num_items = arg.len().unwrap_or(0);
        if SORTING.contains(&name) {
            budget.charge(weight.saturating_mul(num_items.max(1).ilog2() as usize))?;
        }
        // Lists are added to lists, which copies them.
        if name == "sum" && arg.try_iter()?.any(|item| is_container(&item)) {
            budget.charge(weight.saturating_mul(num_items))?;
        }
    }
    Ok(())
}

/// Calls a method: what it reads and makes is counted.
pub(super) fn called(
    budget: &Budget,
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let all: Vec<Value> = [value].into_iter().chain(args).cloned().collect();
    check_call(budget, method, &all)?;
    budget.charge(args.len() * ITEM_BYTES)?;
    match (value.kind(), method) {
        (ValueKind::Map, "copy") => {}
        (ValueKind::Map, "get") => {
            args.iter().take(1).try_for_each(|key| budget.charge_all(key).map(drop))?;
        }
        (ValueKind::Map, "keys" | "values" | "items") => budget.charge_items(value)?,
        (ValueKind::Seq | ValueKind::Iterable, "index" | "count") => {
            args.iter().try_for_each(|item| charge_contained(budget, value, item))?;
        }
        _ if method == super::super::dialect::SLICE_METHOD => budget.charge_items(value)?,
        _ => {
            let containers = all.iter().filter(|value| is_container(value));
            containers.into_iter().try_for_each(|value| budget.charge_all(value).map(drop))?;
        }
    }
    budget.made(python_methods::unknown_method(state, value, method, args)?)
}

fn charge_texts(budget: &Budget, args: &[Value]) -> Result<(), Error> {
    budget.charge(args.iter().filter_map(|arg| arg.as_str()).map(str::len).sum())
}

/// Counts the texts that a filter or a method is about to read, and refuses what it would make too
/// large. The first argument is the value that it is called on.
fn check_call(budget: &Budget, name: &str, args: &[Value]) -> Result<(), Error> {
    charge_texts(budget, args)?;
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
            match takes_widths(format) {
                true => check_widths(&args[1..]),
                false => Ok(()),
            }
        }
        "indent" | "round" => check_widths(&args[1..]),
        "split" | "rsplit" | "lines" | "splitlines" => {
            let parts = text(0).map(|split| match text(1) {
                Some(separator) => split.matches(separator).count(),
                None => split.chars().filter(|c| python::is_space(*c)).count(),
            });
            charge_parts(budget, parts.unwrap_or(0))
        }
        "batch" | "slice" => {
            check_widths(&args[1..])?;
            charge_parts(budget, text(0).map_or(0, str::len))
        }
        "list" | "map" | "select" | "reject" | "zip" | "chain" | "sum" => {
            args.iter().try_for_each(|arg| charge_parts(budget, arg.as_str().map_or(0, str::len)))
        }
        _ if SORTING.contains(&name) => charge_parts(budget, text(0).map_or(0, str::len) * 16),
        _ => Ok(()),
    }
}

/// Counts the items that a text is taken apart into.
fn charge_parts(budget: &Budget, num_parts: usize) -> Result<(), Error> {
    check_items(num_parts)?;
    budget.charge(num_parts * ITEM_BYTES)
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

/// Whether widths of a format are arguments: `%*d`, `{:{}}`.
fn takes_widths(format: &str) -> bool {
    let mut fields = format.split('{').skip(1).peekable();
    let mut nested = false;
    while let Some(field) = fields.next() {
        nested |= fields.peek().is_some() && !field.is_empty() && !field.contains('}');
    }
    nested || format.contains('*')
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
