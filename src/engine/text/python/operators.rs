//! Python's operators on the values of templates.

use std::cmp::Ordering;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use num_bigint::{BigInt, Sign};

use super::arguments::refused;
use super::number::{self, Number};
use super::{escaped, is_tuple, percent, type_name};

/// An operator that compares.
pub(crate) type Comparison = fn(&Value, &Value) -> Result<bool, Error>;

/// An operator with two operands.
pub(crate) type Operator = fn(&Value, &Value) -> Result<Value, Error>;

fn unfit(operator: &str, a: &Value, b: &Value) -> Error {
    if let Some(error) = undefined([a, b]) {
        return error;
    }
    let (a, b) = (type_name(a), type_name(b));
    refused(format!("unsupported operand type(s) for {operator}: '{a}' and '{b}'"))
}

/// The error of an undefined value that is used.
fn undefined<const N: usize>(values: [&Value; N]) -> Option<Error> {
    let is_undefined = values.into_iter().any(Value::is_undefined);
    is_undefined.then(|| Error::new(ErrorKind::UndefinedError, "an undefined value is used"))
}

fn numbers(operator: &str, a: &Value, b: &Value) -> Result<(Number, Number), Error> {
    Number::of(a).zip(Number::of(b)).ok_or_else(|| unfit(operator, a, b))
}

fn float(float: f64) -> Result<Value, Error> {
    Ok(Value::from(float))
}

/// `a + b`.
pub(crate) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        return Ok(match a.is_safe() || b.is_safe() {
            true => Value::from_safe_string(escaped(a)? + &escaped(b)?),
            false => Value::from([left, right].concat()),
        });
    }
    if a.kind() == ValueKind::Seq && b.kind() == ValueKind::Seq && is_tuple(a) == is_tuple(b) {
        let items: Vec<Value> = a.try_iter()?.chain(b.try_iter()?).collect();
        return Ok(sequence(items, is_tuple(a)));
    }
    match numbers("+", a, b)? {
        (Number::Int(a), Number::Int(b)) => number::value(a + b),
        (a, b) => float(a.float()? + b.float()?),
    }
}

/// A list, or a tuple.
fn sequence(items: Vec<Value>, is_tuple: bool) -> Value {
    if is_tuple { Value::from(Tuple::from(items)) } else { Value::from(items) }
}

/// `a - b`.
pub(crate) fn sub(a: &Value, b: &Value) -> Result<Value, Error> {
    match numbers("-", a, b)? {
        (Number::Int(a), Number::Int(b)) => number::value(a - b),
        (a, b) => float(a.float()? - b.float()?),
    }
}

/// `a * b`; what it makes of a text or a list must have been checked before.
pub(crate) fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    for (value, times) in [(a, b), (b, a)] {
        let Some(times) = number::integer(times) else { continue };
        let is_negative = times.sign() == Sign::Minus;
        let times = if is_negative { Some(0) } else { usize::try_from(&times).ok() };
        let times = times.ok_or_else(|| refused("cannot repeat it that often"));
        if let Some(text) = value.as_str() {
            let text = text.repeat(times?);
            let is_safe = value.is_safe();
            return Ok(if is_safe { Value::from_safe_string(text) } else { Value::from(text) });
        }
        if value.kind() == ValueKind::Seq {
            let items: Vec<Value> = value.try_iter()?.collect();
            let items = (0..times?).flat_map(|_| items.iter().cloned()).collect();
            return Ok(sequence(items, is_tuple(value)));
        }
    }
    match numbers("*", a, b)? {
        (Number::Int(a), Number::Int(b)) => number::value(a * b),
        (a, b) => float(a.float()? * b.float()?),
    }
}

/// `a / b`.
pub(crate) fn div(a: &Value, b: &Value) -> Result<Value, Error> {
    let (a, b) = numbers("/", a, b)?;
    if b.is_zero() {
        return Err(refused("division by zero"));
    }
    match (&a, &b) {
        (Number::Int(a), Number::Int(b)) if a.bits() > 53 || b.bits() > 53 => ratio(a, b),
        _ => float(a.float()? / b.float()?),
    }
}

/// The float next to the quotient of two integers.
fn ratio(a: &BigInt, b: &BigInt) -> Result<Value, Error> {
    let shift = (b.bits() + 66).saturating_sub(a.bits());
    let (a, negative) = (BigInt::from(a.magnitude().clone()), (a.sign() == Sign::Minus));
    let negative = negative != (b.sign() == Sign::Minus);
    let b = BigInt::from(b.magnitude().clone());
    let shifted = a << shift;
    let mut quotient = &shifted / &b;
    // What is cut off counts only where the rest is half way between two floats.
    if &quotient * &b != shifted && !quotient.bit(0) {
        quotient += 1;
    }
    let mut quotient = number::to_float(&quotient)?;
    for _ in 0..shift {
        quotient /= 2.0;
    }
    float(if negative { -quotient } else { quotient })
}

/// Quotient and rest, rounded down.
fn floored(a: &BigInt, b: &BigInt) -> (BigInt, BigInt) {
    let (mut quotient, mut rest) = (a / b, a % b);
    if rest.sign() != Sign::NoSign && (rest.sign() == Sign::Minus) != (b.sign() == Sign::Minus) {
        quotient -= 1;
        rest += b;
    }
    (quotient, rest)
}

/// CPython's `float_divmod`.
fn floored_floats(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0.0f64.copysign(b);
    } else if (rest < 0.0) != (b < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0f64.copysign(a / b), rest);
    }
    let whole = quotient.floor();
    (if quotient - whole > 0.5 { whole + 1.0 } else { whole }, rest)
}

/// `a // b`.
pub(crate) fn int_div(a: &Value, b: &Value) -> Result<Value, Error> {
    let (a, b) = numbers("//", a, b)?;
    if b.is_zero() {
        return Err(refused("integer division or modulo by zero"));
    }
    match (&a, &b) {
        (Number::Int(a), Number::Int(b)) => number::value(floored(a, b).0),
        _ => float(floored_floats(a.float()?, b.float()?).0),
    }
}

/// `a % b`, which formats a text.
pub(crate) fn rem(a: &Value, b: &Value) -> Result<Value, Error> {
    if a.as_str().is_some() {
        return percent::format(a, b);
    }
    let (a, b) = numbers("%", a, b)?;
    if b.is_zero() {
        return Err(refused("integer division or modulo by zero"));
    }
    match (&a, &b) {
        (Number::Int(a), Number::Int(b)) => number::value(floored(a, b).1),
        _ => float(floored_floats(a.float()?, b.float()?).1),
    }
}

/// `a ** b`.
pub(crate) fn pow(a: &Value, b: &Value) -> Result<Value, Error> {
    let (a, b) = numbers("**", a, b)?;
    if let (Number::Int(base), Number::Int(exponent)) = (&a, &b)
        && exponent.sign() != Sign::Minus
    {
        if base.bits() < 2 {
            // 0, 1 and -1, for which no exponent is too large.
            let even = !exponent.bit(0);
            let one = exponent.sign() == Sign::NoSign || base.sign() == Sign::Minus && even;
            return number::value(if one { BigInt::from(1) } else { base.clone() });
        }
        let exponent = u32::try_from(exponent).unwrap_or(u32::MAX);
        // The number of bits of the result, or one more for each factor.
        if (base.bits() - 1).saturating_mul(u64::from(exponent)) > 1 << 15 {
            return Err(refused("the chat template makes an integer of more than 4300 digits"));
        }
        return number::value(base.pow(exponent));
    }
    let (base, exponent) = (a.float()?, b.float()?);
    if base == 0.0 && exponent < 0.0 {
        return Err(refused("0.0 cannot be raised to a negative power"));
    }
    if base < 0.0 && exponent.fract() != 0.0 && exponent.is_finite() && base.is_finite() {
        return Err(super::arguments::unsupported("a complex number"));
    }
    let power = base.powf(exponent);
    if power.is_infinite() && base.is_finite() && exponent.is_finite() {
        return Err(refused("the result of ** is too large for a float"));
    }
    float(power)
}

/// `-a`.
pub(crate) fn neg(a: &Value) -> Result<Value, Error> {
    match Number::of(a) {
        Some(Number::Int(int)) => number::value(-int),
        Some(Number::Float(value)) => float(-value),
        None => Err(undefined([a]).unwrap_or_else(|| {
            refused(format!("bad operand type for unary -: '{}'", type_name(a)))
        })),
    }
}

/// `a == b`.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return a == b;
    }
    if let (Some(a), Some(b)) = (number::small(a), number::small(b)) {
        return a == b;
    }
    if let (Some(a), Some(b)) = (Number::of(a), Number::of(b)) {
        return a.order(&b) == Some(Ordering::Equal);
    }
    match (a.kind(), b.kind()) {
        (ValueKind::Seq, ValueKind::Seq) => {
            let (Ok(left), Ok(right)) = (a.try_iter(), b.try_iter()) else { return false };
            type_name(a) == type_name(b)
                && a.len() == b.len()
                && left.zip(right).all(|(a, b)| equal(&a, &b))
        }
        (ValueKind::Map, ValueKind::Map) => {
            let Ok(mut keys) = a.try_iter() else { return false };
            let of = |map: &Value, key: &Value| map.get_item(key).unwrap_or_default();
            a.len() == b.len()
                && keys.all(|key| {
                    let other = of(b, &key);
                    !other.is_undefined() && equal(&of(a, &key), &other)
                })
        }
        _ => a == b,
    }
}

/// The order of two values; none for what is no number.
///
/// # Errors
/// Python has no order for them.
pub(crate) fn order(a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(Some(a.cmp(b)));
    }
    if let (Some(a), Some(b)) = (number::small(a), number::small(b)) {
        return Ok(Some(a.cmp(&b)));
    }
    if let (Some(a), Some(b)) = (Number::of(a), Number::of(b)) {
        return Ok(a.order(&b));
    }
    if a.kind() != ValueKind::Seq || b.kind() != ValueKind::Seq || is_tuple(a) != is_tuple(b) {
        return Err(undefined([a, b]).unwrap_or_else(|| {
            let (a, b) = (type_name(a), type_name(b));
            refused(format!("'<' not supported between instances of '{a}' and '{b}'"))
        }));
    }
    for (a, b) in a.try_iter()?.zip(b.try_iter()?) {
        if !equal(&a, &b) {
            return order(&a, &b);
        }
    }
    Ok(Some(a.len().cmp(&b.len())))
}

/// The six comparisons: `==`, `!=`, `<`, `<=`, `>`, `>=`.
pub(crate) const COMPARISONS: [Comparison; 6] = [
    |a, b| Ok(equal(a, b)),
    |a, b| Ok(!equal(a, b)),
    |a, b| order(a, b).map(|order| order.is_some_and(Ordering::is_lt)),
    |a, b| order(a, b).map(|order| order.is_some_and(Ordering::is_le)),
    |a, b| order(a, b).map(|order| order.is_some_and(Ordering::is_gt)),
    |a, b| order(a, b).map(|order| order.is_some_and(Ordering::is_ge)),
];

/// `item in container`.
pub(crate) fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        return match item.as_str() {
            Some(part) => Ok(text.contains(part)),
            None => Err(undefined([item]).unwrap_or_else(|| {
                let kind = type_name(item);
                refused(format!("'in <string>' requires string as left operand, not {kind}"))
            })),
        };
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Seq | ValueKind::Iterable => {
            Ok(container.try_iter()?.any(|other| equal(item, &other)))
        }
        ValueKind::Map => match hashable(item) {
            true => Ok(!container.get_item(item)?.is_undefined()),
            false => Err(refused(format!("unhashable type: '{}'", type_name(item)))),
        },
        _ => {
            let kind = type_name(container);
            Err(refused(format!("argument of type '{kind}' is not iterable")))
        }
    }
}

/// Whether a value may be a key.
pub(crate) fn hashable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Map => false,
        ValueKind::Seq if is_tuple(value) => {
            value.try_iter().is_ok_and(|mut items| items.all(|item| hashable(&item)))
        }
        ValueKind::Seq => false,
        _ => true,
    }
}
