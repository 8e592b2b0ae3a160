//! `dict`, `cycler` and `joiner` of jinja2.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::lists::items;
use crate::python::arguments::{bind, refused, split};
use crate::python::operators;

/// `dict(map_or_pairs, **named)`.
pub(super) fn dict(args: &[Value]) -> Result<Value, Error> {
    let (places, named) = split(args)?;
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    for value in places {
        for item in items(value)? {
            pairs.push(match value.kind() {
                ValueKind::Map => (item.clone(), value.get_item(&item)?),
                _ => match items(&item)?.as_slice() {
                    [key, value] => (key.clone(), value.clone()),
                    _ => return Err(refused("dict() takes a dict or pairs")),
                },
            });
        }
    }
    if places.len() > 1 || pairs.iter().any(|(key, _)| !operators::hashable(key)) {
        return Err(refused("dict() takes one dict or list of pairs, whose keys may be keys"));
    }
    pairs.extend(named.into_iter().map(|(name, value)| (Value::from(name), value)));
    Ok(Value::from_pairs(pairs))
}

#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    place: AtomicUsize,
}

/// `cycler(*items)`.
pub(super) fn cycler(args: &[Value]) -> Result<Value, Error> {
    if args.is_empty() || args.iter().any(Value::is_kwargs) {
        return Err(refused("at least one item has to be provided, and none by name"));
    }
    Ok(Value::from_object(Cycler { items: args.to_vec(), place: AtomicUsize::new(0) }))
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let current = || self.items[self.place.load(Relaxed)].clone();
        (key.as_str() == Some("current")).then(current)
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let [] = bind(method, args, 0, [])?;
        match method {
            "next" => {
                let place = self.place.load(Relaxed);
                self.place.store((place + 1) % self.items.len(), Relaxed);
                Ok(self.items[place].clone())
            }
            "reset" => {
                self.place.store(0, Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

#[derive(Debug)]
struct Joiner {
    separator: Value,
    num_calls: AtomicUsize,
}

/// `joiner(sep=", ")`.
pub(super) fn joiner(args: &[Value]) -> Result<Value, Error> {
    let [separator] = bind("joiner", args, 0, ["sep"])?;
    let separator = separator.unwrap_or_else(|| Value::from(", "));
    Ok(Value::from_object(Joiner { separator, num_calls: AtomicUsize::new(0) }))
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let [] = bind("joiner", args, 0, [])?;
        let is_first = self.num_calls.fetch_add(1, Relaxed) == 0;
        Ok(if is_first { Value::from("") } else { self.separator.clone() })
    }
}
