//! Python's methods of str, list, tuple and dict.

mod texts;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::chat_template::sequences::Sequence;
use super::dialect::SLICE_METHOD;
use super::filters::lists::view;
use super::python::arguments::{as_int, bind, given, refused};
use super::python::{html, is_tuple, number, operators, type_name};
pub(super) use texts::{capitalize, pad, replaced, split_lines, strip};

/// What templates call on values that minijinja gives no methods.
pub(super) fn unknown_method(
    _: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let found = match value.kind() {
        _ if method == SLICE_METHOD => slice(value, args).map(Some),
        ValueKind::String => texts::method(value, method, args),
        ValueKind::Seq if value.downcast_object_ref::<Sequence>().is_none() => {
            sequence_method(value, method, args)
        }
        ValueKind::Map => map_method(value, method, args),
        _ => number_method(value, method, args),
    };
    found?.ok_or_else(|| {
        let kind = type_name(value);
        Error::new(ErrorKind::UnknownMethod, format!("'{kind}' object has no method '{method}'"))
    })
}

fn sequence_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let kind = type_name(value);
    let found = match method {
        "index" => {
            let [what, start, end] = bind(method, args, 1, [""; 3])?;
            let what = what.unwrap_or_default();
            let len = value.len().unwrap_or(0) as i64;
            let place = |place: &Option<Value>, default: i64| {
                let at = given(place).map_or(Ok(default), as_int)?;
                Ok::<_, Error>(if at < 0 { (at + len).max(0) } else { at } as usize)
            };
            let (start, end) = (place(&start, 0)?, place(&end, len)?);
            let mut places = value.try_iter()?.enumerate().take(end).skip(start);
            let at = places.find(|(_, item)| operators::equal(item, &what));
            at.map(|(at, _)| at.into())
                .ok_or_else(|| refused(format!("it is not in the {kind}")))?
        }
        "count" => {
            let [what] = bind(method, args, 1, [""])?;
            let what = what.unwrap_or_default();
            value.try_iter()?.filter(|item| operators::equal(item, &what)).count().into()
        }
        "copy" if kind == "list" => {
            let [] = bind(method, args, 0, [])?;
            value.clone()
        }
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse" => {
            return Err(unsafe_method(method, kind));
        }
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// As transformers' ImmutableSandboxedEnvironment: a template may not change its input.
fn unsafe_method(method: &str, kind: &str) -> Error {
    refused(format!("access to attribute '{method}' of '{kind}' object is unsafe"))
}

fn map_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if value.as_object().is_some_and(|object| object.type_name().contains("::Loop")) {
        return Ok(None);
    }
    let item = |key: &Value| value.get_item(key);
    let found = match method {
        "get" => {
            let [key, default] = bind(method, args, 1, [""; 2])?;
            let key = key.unwrap_or_default();
            if !operators::hashable(&key) {
                return Err(refused(format!("unhashable type: '{}'", type_name(&key))));
            }
            let found = item(&key)?;
            match found.is_undefined() {
                true => default.unwrap_or(Value::from(())),
                false => found,
            }
        }
        "keys" | "values" | "items" => {
            let [] = bind(method, args, 0, [])?;
            let (mut list, mut name) = (Vec::new(), "dict_keys");
            for key in value.try_iter()? {
                list.push(match method {
                    "keys" => key,
                    "values" => item(&key)?,
                    _ => Value::from(Tuple::from([key.clone(), item(&key)?])),
                });
            }
            if method != "keys" {
                name = if method == "values" { "dict_values" } else { "dict_items" };
            }
            view(list, name)
        }
        "copy" => {
            let [] = bind(method, args, 0, [])?;
            value.clone()
        }
        "clear" | "pop" | "popitem" | "setdefault" | "update" => {
            return Err(unsafe_method(method, "dict"));
        }
        _ => return Ok(None),
    };
    Ok(Some(found))
}

fn number_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let [] = bind(method, args, 0, []).or_else(|error| match number::is_number(value) {
        true => Err(error),
        false => Ok([]),
    })?;
    Ok(match (number::integer(value), method) {
        (Some(int), "bit_length") => Some(int.bits().into()),
        (Some(_), "conjugate") => Some(value.clone()),
        (None, "is_integer") if number::is_number(value) => {
            let float = f64::try_from(value.clone())?;
            Some((float.is_finite() && float.fract() == 0.0).into())
        }
        _ => None,
    })
}

/// `value[start:stop:step]` of Python.
fn slice(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let bound = |index: usize| match args.get(index).filter(|bound| !bound.is_none()) {
        Some(bound) => as_int(bound).map(Some),
        None => Ok(None),
    };
    let (start, stop, step) = (bound(0)?, bound(1)?, bound(2)?.unwrap_or(1));
    if step == 0 {
        return Err(refused("slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        return Ok(slice_indices(chars.len(), start, stop, step)
            .map(|i| chars[i])
            .collect::<String>())
        .map(|text| html::as_safe_as(value, text));
    }
    if value.kind() != ValueKind::Seq {
        return Err(refused(format!("'{}' object cannot be sliced", type_name(value))));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let sliced = slice_indices(items.len(), start, stop, step).map(|i| items[i].clone());
    let sliced: Vec<Value> = sliced.collect();
    Ok(if is_tuple(value) { Value::from(Tuple::from(sliced)) } else { Value::from(sliced) })
}

/// Python's `range(*slice(start, stop, step).indices(len))`.
fn slice_indices(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = len as i64;
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |bound: i64| {
        let bound = if bound < 0 { bound.saturating_add(len) } else { bound };
        bound.clamp(lowest, highest)
    };
    let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let (start, stop) = (start.map_or(first, clamp), stop.map_or(last, clamp));
    let next = move |at: &i64| at.checked_add(step);
    std::iter::successors(Some(start), next)
        .take_while(move |&at| if step > 0 { at < stop } else { at > stop })
        .map(|at| at as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are Python's.
    #[test]
    fn slices_are_pythons() {
        let slice = |len, start, stop, step| -> Vec<usize> {
            slice_indices(len, start, stop, step).collect()
        };
        assert_eq!(slice(0, None, None, -1), [0; 0]);
        assert_eq!(slice(3, None, None, -1), [2, 1, 0]);
        assert_eq!(slice(4, Some(2), Some(0), -1), [2, 1]);
        assert_eq!(slice(4, Some(-9), Some(9), 2), [0, 2]);
        assert_eq!(slice(4, Some(9), Some(-9), -3), [3, 0]);
        assert_eq!(slice(4, Some(-1), None, 1), [3]);
        assert_eq!(slice(4, Some(3), Some(1), i64::MAX), [0; 0]);
        assert_eq!(slice(4, Some(1), Some(3), i64::MAX), [1]);
    }
}
