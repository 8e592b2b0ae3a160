//! jinja2's filters of lists.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::{escapes, iterator};
use crate::chat_template::sequences::{Kind, Sequence};
use crate::python::arguments::{as_int, bind, flag, given, int, refused, soft, split, text};
use crate::python::{Pieces, html, number, operators, type_name};

/// The items of what Python iterates over: a text has its characters.
pub(crate) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.chars().map(|c| Value::from(c.to_string())).collect());
    }
    match value.kind() {
        ValueKind::Undefined => Ok(Vec::new()),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => Ok(value.try_iter()?.collect()),
        _ => Err(refused(format!("'{}' object is not iterable", type_name(value)))),
    }
}

/// `a.b.0`: the attributes that lead to a value.
pub(super) struct Path {
    parts: Vec<Value>,
    default: Option<Value>,
}

impl Path {
    pub(super) fn new(attribute: &Value) -> Result<Self, Error> {
        let part = |part: &str| match !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()) {
            true => part.parse::<usize>().map_or_else(|_| Value::from(part), Value::from),
            false => Value::from(part),
        };
        let parts = match attribute.as_str() {
            Some(text) => text.split('.').map(part).collect(),
            None if number::is_integer(attribute) => vec![attribute.clone()],
            None => return Err(refused("an attribute is a name or a number")),
        };
        Ok(Self { parts, default: None })
    }

    pub(super) fn of(&self, item: &Value) -> Result<Value, Error> {
        let mut value = item.clone();
        for part in &self.parts {
            value = value.get_item(part)?;
            if let Some(default) = self.default.as_ref().filter(|_| value.is_undefined()) {
                value = default.clone();
            }
        }
        Ok(value)
    }
}

/// Key that items are compared by.
struct Key {
    paths: Vec<Path>,
    ignores_case: bool,
}

impl Key {
    fn new(attribute: &Option<Value>, case_sensitive: &Option<Value>) -> Result<Self, Error> {
        let paths = given(attribute).map(Path::new).transpose()?.into_iter().collect();
        Ok(Self { paths, ignores_case: !flag(case_sensitive, false) })
    }

    fn of(&self, item: &Value) -> Result<Value, Error> {
        match self.paths.as_slice() {
            [] => Ok(self.cased(item.clone())),
            [path] => Ok(self.cased(path.of(item)?)),
            paths => paths.iter().map(|path| Ok(self.cased(path.of(item)?))).collect(),
        }
    }

    fn cased(&self, value: Value) -> Value {
        match value.as_str().filter(|_| self.ignores_case) {
            Some(text) => Value::from(text.to_lowercase()),
            None => value,
        }
    }
}

/// Whether a value comes before another.
pub(crate) fn less(a: &Value, b: &Value) -> Result<bool, Error> {
    Ok(operators::order(a, b)?.is_some_and(Ordering::is_lt))
}

/// Sorts as Python does: stable, and by `less` alone, which may fail.
pub(crate) fn sorted<T>(
    mut items: Vec<T>,
    less: impl Fn(&T, &T) -> Result<bool, Error> + Copy,
) -> Result<Vec<T>, Error> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = sorted(items.split_off(items.len() / 2), less)?;
    let left = sorted(items, less)?;
    let mut out = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        out.extend(if less(b, a)? { right.next() } else { left.next() });
    }
    out.extend(left);
    out.extend(right);
    Ok(out)
}

/// Items with their keys, sorted by them.
fn sorted_by(items: Vec<Value>, key: &Key, reverse: bool) -> Result<Vec<(Value, Value)>, Error> {
    let keyed = items.into_iter().map(|item| Ok((key.of(&item)?, item)));
    let mut keyed = keyed.collect::<Result<Vec<_>, Error>>()?;
    // Backwards twice, which leaves equal ones in their order.
    if reverse {
        keyed.reverse();
    }
    let mut keyed = sorted(keyed, |(a, _), (b, _)| less(a, b))?;
    if reverse {
        keyed.reverse();
    }
    Ok(keyed)
}

/// `sort(value, reverse=False, case_sensitive=False, attribute=None)`.
pub(super) fn sort(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["", "reverse", "case_sensitive", "attribute"];
    let [value, reverse, case_sensitive, attribute] = bind("sort", args, 1, names)?;
    let mut key = Key::new(&None, &case_sensitive)?;
    key.paths = match given(&attribute) {
        None => Vec::new(),
        Some(attribute) => match attribute.as_str() {
            Some(text) => text
                .split(',')
                .map(|name| Path::new(&Value::from(name)))
                .collect::<Result<_, _>>()?,
            None => vec![Path::new(attribute)?],
        },
    };
    let items = items(&value.unwrap_or_default())?;
    let sorted = sorted_by(items, &key, flag(&reverse, false))?;
    Ok(sorted.into_iter().map(|(_, item)| item).collect())
}

/// `dictsort(value, case_sensitive=False, by="key", reverse=False)`.
pub(super) fn dictsort(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["", "case_sensitive", "by", "reverse"];
    let [value, case_sensitive, by, reverse] = bind("dictsort", args, 1, names)?;
    let place = match by.as_ref().map_or(Ok("key"), text)? {
        "key" => 0,
        "value" => 1,
        _ => return Err(refused("you can only sort by either 'key' or 'value'")),
    };
    let key = Key::new(&Some(Value::from(place)), &case_sensitive)?;
    let sorted = sorted_by(pairs(&value.unwrap_or_default())?, &key, flag(&reverse, false))?;
    Ok(sorted.into_iter().map(|(_, item)| item).collect())
}

/// The items of a dict.
fn pairs(value: &Value) -> Result<Vec<Value>, Error> {
    if value.kind() != ValueKind::Map {
        return Err(refused(format!("'{}' object has no items", type_name(value))));
    }
    let pair = |key: Value| Ok(Value::from(Tuple::from([key.clone(), value.get_item(&key)?])));
    value.try_iter()?.map(pair).collect()
}

pub(super) fn items_of(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("items", args, 1, [""])?;
    let value = value.unwrap_or_default();
    iterator("items", if value.is_undefined() { Vec::new() } else { pairs(&value)? })
}

/// `unique(value, case_sensitive=False, attribute=None)`.
pub(super) fn unique(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["", "case_sensitive", "attribute"];
    let [value, case_sensitive, attribute] = bind("unique", args, 1, names)?;
    let key = Key::new(&attribute, &case_sensitive)?;
    let mut seen = HashSet::new();
    let mut unique = Vec::new();
    for item in items(&value.unwrap_or_default())? {
        let key = key.of(&item)?;
        if !operators::hashable(&key) {
            return Err(refused(format!("unhashable type: '{}'", type_name(&key))));
        }
        // True is 1.
        let key = if key.kind() == ValueKind::Bool { Value::from(as_int(&key)?) } else { key };
        if seen.insert(key) {
            unique.push(item);
        }
    }
    iterator("unique", unique)
}

/// `min` and `max(value, case_sensitive=False, attribute=None)`.
fn extreme(
    args: &[Value],
    name: &'static str,
    is_better: fn(&Value, &Value) -> Result<bool, Error>,
) -> Result<Value, Error> {
    let [value, case_sensitive, attribute] =
        bind(name, args, 1, ["", "case_sensitive", "attribute"])?;
    let key = Key::new(&attribute, &case_sensitive)?;
    let mut best: Option<(Value, Value)> = None;
    for item in items(&value.unwrap_or_default())? {
        let key = key.of(&item)?;
        if best.as_ref().map_or(Ok(true), |(other, _)| is_better(&key, other))? {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

pub(super) fn min(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    extreme(args, "min", less)
}

pub(super) fn max(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    extreme(args, "max", |a, b| less(b, a))
}

/// A group: a tuple whose places have names.
#[derive(Debug)]
pub(crate) struct Group {
    grouper: Value,
    list: Value,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_usize()) {
            (Some("grouper"), _) | (None, Some(0)) => Some(self.grouper.clone()),
            (Some("list"), _) | (None, Some(1)) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

/// `groupby(value, attribute, default=None, case_sensitive=False)`.
pub(super) fn groupby(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["", "attribute", "default", "case_sensitive"];
    let [value, attribute, default, case_sensitive] = bind("groupby", args, 2, names)?;
    let mut key = Key::new(&attribute, &case_sensitive)?;
    for path in &mut key.paths {
        path.default = given(&default).cloned();
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sorted_by(items(&value.unwrap_or_default())?, &key, false)? {
        match groups.last_mut().filter(|(last, _)| operators::equal(last, &key)) {
            Some((_, group)) => group.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    // A group is called as its first item has it.
    key.ignores_case = false;
    let groups = groups.into_iter().map(|(_, items)| {
        let grouper = key.of(&items[0])?;
        Ok(Value::from_object(Group { grouper, list: Value::from(items) }))
    });
    groups.collect()
}

pub(super) fn first(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("first", args, 1, [""])?;
    let value = value.unwrap_or_default();
    match (value.as_str(), value.kind()) {
        (Some(text), _) => {
            Ok(text.chars().next().map(|c| c.to_string().into()).unwrap_or_default())
        }
        (_, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) => {
            Ok(value.try_iter()?.next().unwrap_or_default())
        }
        _ => items(&value).map(|_| Value::UNDEFINED),
    }
}

/// Refuses what Python cannot read backwards.
fn check_reversible(value: &Value) -> Result<(), Error> {
    match type_name(value) {
        "generator" => Err(refused("'generator' object is not reversible")),
        _ => Ok(()),
    }
}

pub(super) fn last(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("last", args, 1, [""])?;
    let value = value.unwrap_or_default();
    check_reversible(&value)?;
    if let Some(text) = value.as_str() {
        return Ok(text.chars().next_back().map(|c| c.to_string().into()).unwrap_or_default());
    }
    match value.len().filter(|len| *len > 0 && value.kind() == ValueKind::Seq) {
        Some(len) => value.get_item_by_index(len - 1),
        None => Ok(items(&value)?.pop().unwrap_or_default()),
    }
}

/// An undefined value has length 0.
pub(super) fn length(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("length", args, 1, [""])?;
    length_of(&value.unwrap_or_default()).map(Value::from)
}

/// `len(value)`.
pub(super) fn length_of(value: &Value) -> Result<usize, Error> {
    let len = match value.kind() {
        ValueKind::Undefined => Some(0),
        _ if value.downcast_object_ref::<Sequence>().is_some() => {
            value.downcast_object_ref::<Sequence>().and_then(Sequence::len)
        }
        _ => value.len(),
    };
    len.ok_or_else(|| refused(format!("object of type '{}' has no len()", type_name(value))))
}

pub(super) fn list(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("list", args, 1, [""])?;
    Ok(Value::from(items(&value.unwrap_or_default())?))
}

pub(super) fn reverse(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("reverse", args, 1, [""])?;
    let value = value.unwrap_or_default();
    if let Some(text) = value.as_str() {
        return Ok(html::as_safe_as(&value, text.chars().rev().collect()));
    }
    let mut items = items(&value)?;
    items.reverse();
    match check_reversible(&value) {
        Ok(()) => iterator("reverse", items),
        Err(_) => Ok(Value::from(items)),
    }
}

/// `batch(value, linecount, fill_with=None)`.
pub(super) fn batch(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["", "linecount", "fill_with"];
    let [value, count, fill] = bind("batch", args, 2, names)?;
    let count = int(&count, 0)?;
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    for item in items(&value.unwrap_or_default())? {
        if batch.len() as i64 == count {
            batches.push(Value::from(std::mem::take(&mut batch)));
        }
        batch.push(item);
    }
    if !batch.is_empty() {
        if let Some(fill) = given(&fill) {
            let missing = usize::try_from(count).unwrap_or(0).saturating_sub(batch.len());
            batch.extend(std::iter::repeat_n(fill.clone(), missing));
        }
        batches.push(Value::from(batch));
    }
    iterator("batch", batches)
}

/// `slice(value, slices, fill_with=None)`.
pub(super) fn slice(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, slices, fill] = bind("slice", args, 2, ["", "slices", "fill_with"])?;
    let items = items(&value.unwrap_or_default())?;
    let slices = int(&slices, 0)?;
    if slices == 0 {
        return Err(refused("integer division or modulo by zero"));
    }
    let slices = usize::try_from(slices).unwrap_or(0);
    let (each, extra) = (items.len() / slices.max(1), items.len() % slices.max(1));
    let mut rest = items.into_iter();
    let of_slice = |at: usize| {
        let mut slice: Vec<_> = rest.by_ref().take(each + usize::from(at < extra)).collect();
        slice.extend(given(&fill).filter(|_| at >= extra).cloned());
        Value::from(slice)
    };
    iterator("slice", (0..slices).map(of_slice).collect())
}

/// Items for `map`, `select` and others: none of a false value.
fn mapped_items(value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_true() { items(value) } else { Ok(Vec::new()) }
}

/// `map(attribute=.., default=None)`, `map(filter, ..)`.
pub(super) fn map(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (places, named) = split(args)?;
    let items = mapped_items(&args[0])?;
    let mut mapped = Vec::with_capacity(items.len());
    if places.len() == 1 && named.iter().any(|(name, _)| name == "attribute") {
        let [_, attribute, default] = bind("map", args, 2, ["", "attribute", "default"])?;
        let mut path = Path::new(&attribute.unwrap_or_default())?;
        path.default = given(&default).cloned();
        for item in &items {
            mapped.push(path.of(item)?);
        }
        return iterator("map", mapped);
    }
    let name = places.get(1).ok_or_else(|| refused("map requires a filter argument"))?;
    let name = text(name)?.to_string();
    let mut call = vec![Value::UNDEFINED];
    call.extend(args[2..].iter().cloned());
    for item in items {
        call[0] = item;
        mapped.push(state.apply_filter(&name, &call)?);
    }
    iterator("map", mapped)
}

/// `select(test, ..)` and its like.
fn chosen(
    state: &mut State<'_, '_>,
    args: &[Value],
    by_attribute: bool,
    wanted: bool,
) -> Result<Vec<Value>, Error> {
    let (places, named) = split(args)?;
    let mut places = places[1..].iter();
    let path = match by_attribute {
        true => {
            let attribute = places.next();
            Some(Path::new(
                attribute.ok_or_else(|| refused("missing parameter for attribute name"))?,
            )?)
        }
        false => None,
    };
    let test = places.next().map(text).transpose()?.map(str::to_string);
    let mut call = vec![Value::UNDEFINED];
    call.extend(places.cloned());
    if !named.is_empty() {
        call.push(Value::from(named.into_iter().collect::<Kwargs>()));
    }
    let mut chosen = Vec::new();
    for item in mapped_items(&args[0])? {
        call[0] = path.as_ref().map_or_else(|| Ok(item.clone()), |path| path.of(&item))?;
        let is_true = match &test {
            Some(test) => state.perform_test(test, &call)?,
            None => call[0].is_true(),
        };
        if is_true == wanted {
            chosen.push(item);
        }
    }
    Ok(chosen)
}

pub(super) fn select(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    iterator("select", chosen(state, args, false, true)?)
}

pub(super) fn reject(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    iterator("reject", chosen(state, args, false, false)?)
}

pub(super) fn selectattr(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    iterator("selectattr", chosen(state, args, true, true)?)
}

pub(super) fn rejectattr(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    iterator("rejectattr", chosen(state, args, true, false)?)
}

/// `join(value, d="", attribute=None)`.
pub(super) fn join(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, with, attribute] = bind("join", args, 1, ["", "d", "attribute"])?;
    let mut items = items(&value.unwrap_or_default())?;
    if let Some(attribute) = given(&attribute) {
        let path = Path::new(attribute)?;
        items = items.iter().map(|item| path.of(item)).collect::<Result<_, _>>()?;
    }
    let with = with.unwrap_or_else(|| Value::from(""));
    let is_safe = escapes(state) && (with.is_safe() || items.iter().any(Value::is_safe));
    let text = |value: &Value| if is_safe { html::escaped(value) } else { soft(value) };
    let mut out = Pieces::default();
    let between = text(&with)?;
    for (index, item) in items.iter().enumerate() {
        out.write(if index > 0 { &between } else { "" })?;
        out.write(&text(item)?)?;
    }
    Ok(if is_safe { Value::from_safe_string(out.text()) } else { Value::from(out.text()) })
}

/// The items of a `Sequence` that is no iterator, as a list.
pub(crate) fn view(list: Vec<Value>, name: &'static str) -> Value {
    Sequence::value(Value::from(list), Kind::View(name))
}
