//! Replacements of instructions, filters, tests and methods: the same, counted first.
//!
//! Unknown ones are counted as if they read their arguments in full. So an unforeseen filter is
//! counted too much, not too little.

use std::sync::Arc;

use minijinja::tests as builtin;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, State, Value};
use num_bigint::Sign;

use super::super::dialect::{INTEGER, MADE};
use super::super::filters::lists;
use super::super::python::operators::{self, Operator};
use super::super::python::{Pieces, arguments, html, number};
use super::super::{python, python_methods};
use super::budget::{Budget, check_items, check_text, num_items, too_much};
use super::sequences::Sequence;
use super::weight::{ITEM_BYTES, LARGE_BYTES, is_container, is_weighed};

/// Widest column, highest precision, largest batch that a template may ask for.
const MAX_WIDTH: usize = 1 << 16;

/// Names of filters that instructions call. A template may call them too, and gains nothing.
pub(super) const COUNTED: &str = "__counted__";
pub(super) const CONCATENATED: &str = "__concatenated__";
pub(super) const INDEXED: &str = "__indexed__";
pub(super) const ASSIGNED: &str = "__assigned__";
pub(super) const LOOPED: &str = "__looped__";
pub(super) const UNPACKED: &str = "__unpacked__";
pub(super) const READ: &str = "__read__";
/// `==`, `!=`, `<`, `<=`, `>`, `>=`.
pub(super) const COMPARISONS: [&str; 6] =
    ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"];

/// `+`, `-`, `*`, `/`, `//`, `%`, `**`.
pub(super) const OPERATORS: [(&str, Operator); 7] = [
    ("__add__", operators::add),
    ("__sub__", operators::sub),
    ("__mul__", operators::mul),
    ("__div__", operators::div),
    ("__floordiv__", operators::int_div),
    ("__mod__", operators::rem),
    ("__pow__", operators::pow),
];
/// `-a`.
pub(super) const NEGATED: &str = "__neg__";
/// `in`.
pub(super) const CONTAINS: &str = "__contains__";
/// Comparisons of a chain, which leave the right operand for the next one.
pub(super) const CHAINED: [&str; 8] = [
    "__chained_eq__",
    "__chained_ne__",
    "__chained_lt__",
    "__chained_le__",
    "__chained_gt__",
    "__chained_ge__",
    "__chained_in__",
    "__chained_not_in__",
];

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
const READ_LITTLE: [&str; 10] =
    ["length", "count", "default", "d", "first", "abs", "int", "float", "round", "random"];

/// Filters that look at the items of their arguments and not at what those hold, or leave that to
/// other filters and tests.
const READ_ITEMS: [&str; 11] = [
    "list",
    "reverse",
    "batch",
    "slice",
    "last",
    "items",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
];

/// Filters that compare items with each other.
const SORTING: [&str; 6] = ["sort", "dictsort", "unique", "groupby", "min", "max"];

/// Filters that take a text apart into its characters.
const TAKE_CHARACTERS: [&str; 15] = [
    "batch",
    "slice",
    "list",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "sort",
    "unique",
    "groupby",
    "min",
    "max",
    "sum",
    "join",
];

/// Registers what instructions call, and tests.
pub(super) fn add_to(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    // Keeps the compiler from computing constants of any size.
    environment.add_filter(MADE, |value: Value| value);
    let counts = Arc::clone(budget);
    environment.add_filter(COUNTED, move |value: Value| counts.made(value));
    let counts = Arc::clone(budget);
    environment.add_filter(CONCATENATED, move |state: &State<'_, '_>, a: &Value, b: &Value| {
        concatenated(state, &counts, a, b)
    });
    let counts = Arc::clone(budget);
    environment.add_filter(INDEXED, move |value: &Value, key: &Value| {
        charge_indexed(&counts, value, key)?;
        // Iterators and views have no places, and no more has None.
        let has_places = value.downcast_object_ref::<Sequence>().is_none_or(Sequence::has_places);
        let none = Value::from(());
        Ok::<Value, Error>(given_back(if has_places { value } else { &none }, key))
    });
    let counts = Arc::clone(budget);
    environment.add_filter(ASSIGNED, move |value: &Value, namespace: &Value| {
        counts.check_assigned(value)?;
        Ok::<Value, Error>(given_back(value, namespace))
    });
    let counts = Arc::clone(budget);
    environment.add_filter(LOOPED, move |value: Value| looped(&counts, value));
    let counts = Arc::clone(budget);
    environment.add_filter(UNPACKED, move |value: Value| match value.as_str() {
        Some(_) => looped(&counts, value),
        None => Ok(value),
    });
    let counts = Arc::clone(budget);
    environment.add_filter(READ, move |values: &Value| read(&counts, values));
    add_operators(environment, budget);
    add_tests(environment, budget);
}

fn add_operators(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    for (name, operator) in OPERATORS {
        let counts = Arc::clone(budget);
        environment.add_filter(name, move |a: &Value, b: &Value| {
            charge_operands(&counts, name, a, b)?;
            counts.made(operator(a, b)?)
        });
    }
    environment.add_filter(NEGATED, |value: &Value| operators::neg(value));
    let counts = Arc::clone(budget);
    environment.add_filter(INTEGER, move |digits: &str| {
        counts.charge(LARGE_BYTES)?;
        let digits = number::parse_int(digits, 10);
        digits.map_or_else(
            || Err(too_much("an integer of the chat template is too long")),
            number::value,
        )
    });
    let comparing = COMPARISONS.into_iter().zip(operators::COMPARISONS).zip(COMPARING_TESTS);
    for (((name, compare), tests), chained) in comparing.zip(CHAINED) {
        let compared = |counts: Arc<Budget>| {
            move |a: &Value, b: &Value| {
                charge_compared(&counts, a, b)?;
                compare(a, b)
            }
        };
        environment.add_filter(name, compared(Arc::clone(budget)));
        let compared_first = compared(Arc::clone(budget));
        environment.add_filter(chained, move |a: &Value, b: &Value| {
            Ok::<_, Error>(Value::from(vec![compared_first(a, b)?.into(), b.clone()]))
        });
        for test in tests {
            environment.add_test(*test, compared(Arc::clone(budget)));
        }
    }
    let contained = |counts: Arc<Budget>| {
        move |item: &Value, container: &Value| {
            charge_contained(&counts, container, item)?;
            operators::contains(container, item)
        }
    };
    environment.add_filter(CONTAINS, contained(Arc::clone(budget)));
    environment.add_test("in", contained(Arc::clone(budget)));
    for (name, wanted) in [(CHAINED[6], true), (CHAINED[7], false)] {
        let is_contained = contained(Arc::clone(budget));
        environment.add_filter(name, move |item: &Value, container: &Value| {
            let is_true = is_contained(item, container)? == wanted;
            Ok::<_, Error>(Value::from(vec![is_true.into(), container.clone()]))
        });
    }
}

fn add_tests(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    let counts = Arc::clone(budget);
    environment.add_test("sameas", move |a: &Value, b: &Value| {
        charge_texts(&counts, &[a.clone(), b.clone()])?;
        Ok::<bool, Error>(builtin::is_sameas(a, b))
    });
    for (name, is_other) in
        [("lower", char::is_uppercase as fn(char) -> bool), ("upper", char::is_lowercase)]
    {
        let counts = Arc::clone(budget);
        environment.add_test(name, move |value: &Value| {
            counts.charge_all(value)?;
            let text = arguments::soft(value)?;
            let has_case = text.contains(|c: char| c.is_lowercase() || c.is_uppercase());
            Ok::<bool, Error>(has_case && !text.contains(is_other))
        });
    }
}

/// Two values for `UnpackList`, which turns them round.
fn given_back(left: &Value, right: &Value) -> Value {
    Value::from(vec![right.clone(), left.clone()])
}

/// Items of a loop: the characters of a text, and the rest of an iterator.
fn looped(budget: &Budget, value: Value) -> Result<Value, Error> {
    budget.charge_items(&value)?;
    if let Some(text) = value.as_str() {
        charge_parts(budget, text.chars().count())?;
        return budget.made(Value::from(lists::items(&value)?));
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::Seq | ValueKind::Map => Ok(value),
        _ => budget.made(Value::from(lists::items(&value)?)),
    }
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
fn concatenated(
    state: &State<'_, '_>,
    budget: &Budget,
    a: &Value,
    b: &Value,
) -> Result<Value, Error> {
    for value in [a, b] {
        if is_container(value) {
            budget.charge_all(value)?;
        }
    }
    let escapes = !matches!(state.auto_escape(), AutoEscape::None);
    let mut text = Pieces::default();
    if escapes && (a.is_safe() || b.is_safe()) {
        text.write(&html::escaped(a)?)?;
        text.write(&html::escaped(b)?)?;
        return budget.made(Value::from_safe_string(text.text()));
    }
    for value in [a, b] {
        match value.as_str() {
            Some(part) => text.write(part)?,
            None => text.write(&python::to_str(value)?)?,
        }
    }
    budget.made(Value::from(text.text()))
}

/// Refuses what an operator would make too large, and counts what it reads.
fn charge_operands(budget: &Budget, name: &str, a: &Value, b: &Value) -> Result<(), Error> {
    if name == "__pow__" || number::is_large(a) || number::is_large(b) {
        budget.charge(LARGE_BYTES)?;
    }
    match name {
        _ if a.is_number() && b.is_number() => Ok(()),
        "__mul__" => {
            for (value, times) in [(a, b), (b, a)] {
                let times = match number::integer(times) {
                    Some(times) if times.sign() == Sign::Minus => 0,
                    Some(times) => usize::try_from(&times).unwrap_or(usize::MAX),
                    None => continue,
                };
                if let Some(text) = value.as_str() {
                    check_text(text.len().saturating_mul(times))?;
                } else if is_container(value) {
                    check_items(num_items(value).saturating_mul(times))?;
                }
            }
            Ok(())
        }
        "__mod__" => {
            charge_texts(budget, std::slice::from_ref(a))?;
            budget.charge_all(b).map(drop)
        }
        "__add__" => {
            if is_container(a) && is_container(b) {
                check_items(num_items(a).saturating_add(num_items(b)))?;
            }
            budget.charge_items(a)?;
            budget.charge_items(b)
        }
        _ => Ok(()),
    }
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
        ValueKind::Seq | ValueKind::Iterable => num_items(container)
            .saturating_mul(ITEM_BYTES + item_weight)
            .min(budget.weigh(container)?),
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

/// Calls a filter: what it reads and makes is counted.
pub(crate) fn filtered(
    budget: &Budget,
    state: &mut State<'_, '_>,
    name: &str,
    filter: fn(&mut State<'_, '_>, &[Value]) -> Result<Value, Error>,
    args: Vec<Value>,
) -> Result<Value, Error> {
    charge_arguments(budget, &args)?;
    if args.is_empty() {
        return Err(too_much("a filter without a value"));
    }
    charge_filter(budget, name, &args)?;
    check_call(budget, name, &args)?;
    made_items(budget, filter(state, &args)?)
}

/// Counts the arguments of a call without what they hold.
fn charge_arguments(budget: &Budget, args: &[Value]) -> Result<(), Error> {
    let num_large = args.iter().filter(|arg| number::is_large(arg)).count();
    budget.charge(args.len() * ITEM_BYTES + num_large * LARGE_BYTES)
}

/// Counts a value that was made; the items of what is no list too.
pub(crate) fn made_items(budget: &Budget, value: Value) -> Result<Value, Error> {
    match value.downcast_object_ref::<Sequence>() {
        Some(sequence) if !is_weighed(sequence.list()) => {
            Ok(sequence.with(budget.made(sequence.list().clone())?))
        }
        _ => budget.made(value),
    }
}

fn charge_filter(budget: &Budget, name: &str, args: &[Value]) -> Result<(), Error> {
    let containers = || args.iter().filter(|arg| is_container(arg));
    if READ_LITTLE.contains(&name) {
        return Ok(());
    }
    if READ_ITEMS.contains(&name) {
        return containers().try_for_each(|arg| budget.charge_items(arg));
    }
    for arg in containers() {
        let weight = budget.charge_all(arg)?;
        let num_items = num_items(arg);
        if SORTING.contains(&name) {
            budget.charge(weight.saturating_mul(num_items.max(1).ilog2() as usize))?;
        }
        // Lists are added to lists, which copies them.
        let list = arg.downcast_object_ref::<Sequence>().map_or(arg, Sequence::list);
        if name == "sum" && list.try_iter()?.any(|item| is_container(&item)) {
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
    charge_arguments(budget, &all)?;
    match (value.kind(), method) {
        (ValueKind::Map, "copy") => {}
        (ValueKind::Map, "get") => {
            args.iter().take(1).try_for_each(|key| budget.charge_all(key).map(drop))?;
        }
        (ValueKind::Map, "keys" | "values" | "items") => budget.charge_items(value)?,
        (ValueKind::Seq | ValueKind::Iterable, "index" | "count") if !args.is_empty() => {
            args.iter().try_for_each(|item| charge_contained(budget, value, item))?;
        }
        _ if method == super::super::dialect::SLICE_METHOD => budget.charge_items(value)?,
        _ => {
            let containers = all.iter().filter(|value| is_container(value));
            containers.into_iter().try_for_each(|value| budget.charge_all(value).map(drop))?;
        }
    }
    made_items(budget, python_methods::unknown_method(state, value, method, args)?)
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
        _ if SORTING.contains(&name) => charge_parts(budget, text(0).map_or(0, str::len) * 16),
        _ if TAKE_CHARACTERS.contains(&name) => charge_parts(budget, text(0).map_or(0, str::len)),
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
