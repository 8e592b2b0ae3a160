//! The arguments of a call, bound to the names of its parameters as Python binds them.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};

use super::{number, to_str, type_name};

/// The error of a call that Python refuses.
pub(crate) fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Error of a feature of jinja2 that is not supported.
pub(crate) fn unsupported(feature: &str) -> Error {
    refused(format!("{feature} is not supported in chat templates"))
}

/// Arguments by name.
pub(crate) type Named = Vec<(String, Value)>;

/// The arguments by place, and those by name.
pub(crate) fn split(args: &[Value]) -> Result<(&[Value], Named), Error> {
    let Some((last, places)) = args.split_last().filter(|(last, _)| last.is_kwargs()) else {
        return Ok((args, Vec::new()));
    };
    let named = Kwargs::try_from(last.clone())?;
    let named = named.args().map(|name| Ok((name.to_string(), named.peek(name)?)));
    Ok((places, named.collect::<Result<_, Error>>()?))
}

/// Arguments in the order of the parameters. A parameter without a name is by place only; the first
/// `num_needed` must be there.
///
/// # Errors
/// There are too many or too few, or one has a name that is not known or was given before.
pub(crate) fn bind<const N: usize>(
    function: &str,
    args: &[Value],
    num_needed: usize,
    parameters: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let (places, named) = split(args)?;
    if places.len() > N {
        let text = format!("{function}() takes {N} arguments, and {} were given", places.len());
        return Err(refused(text));
    }
    let mut bound = [const { None }; N];
    for (slot, value) in bound.iter_mut().zip(places) {
        *slot = Some(value.clone());
    }
    for (name, value) in named {
        let slot = parameters.iter().position(|parameter| *parameter == name);
        let slot = slot.filter(|_| !name.is_empty()).ok_or_else(|| {
            refused(format!("{function}() got an unexpected keyword argument '{name}'"))
        })?;
        if bound[slot].replace(value).is_some() {
            return Err(refused(format!("{function}() got multiple values for '{name}'")));
        }
    }
    if bound[..num_needed].iter().any(Option::is_none) {
        return Err(refused(format!("{function}() misses an argument")));
    }
    Ok(bound)
}

/// An argument that was given, if it is not None.
pub(crate) fn given(value: &Option<Value>) -> Option<&Value> {
    value.as_ref().filter(|value| !value.is_none())
}

/// The truth of an argument.
pub(crate) fn flag(value: &Option<Value>, default: bool) -> bool {
    value.as_ref().map_or(default, Value::is_true)
}

/// An argument that is an integer; None is not.
pub(crate) fn int(value: &Option<Value>, default: i64) -> Result<i64, Error> {
    match value {
        None => Ok(default),
        Some(value) => as_int(value),
    }
}

/// An integer, or True or False.
pub(crate) fn as_int(value: &Value) -> Result<i64, Error> {
    let int = number::integer(value).ok_or_else(|| {
        refused(format!("'{}' object cannot be interpreted as an integer", type_name(value)))
    })?;
    // Beyond, it is as good as the largest.
    let end = if int.sign() == num_bigint::Sign::Minus { i64::MIN } else { i64::MAX };
    Ok(i64::try_from(&int).unwrap_or(end))
}

/// An argument that must be a text.
pub(crate) fn text(value: &Value) -> Result<&str, Error> {
    let error = || refused(format!("a text is expected, not '{}'", type_name(value)));
    value.as_str().ok_or_else(error)
}

/// Any value as a text.
pub(crate) fn soft(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_string()),
        None => to_str(value),
    }
}
