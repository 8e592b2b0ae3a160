//! Python's numbers in templates: integers of any size, floats, and booleans, which are integers.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Object, ObjectRepr, ValueKind};
use minijinja::{Error, Value};
use num_bigint::{BigInt, Sign};

use super::arguments::refused;
use super::classes::decimal_value;
use super::is_space;

/// Python reads and writes no integers of more than 4300 digits. These are their bits.
const MAX_BITS: u64 = 14_284;

/// An integer that minijinja has no room for.
#[derive(Debug)]
struct Large(BigInt);

impl Object for Large {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        Some(self.0.cmp(&other.downcast_ref::<Self>()?.0))
    }
}

/// A number of a template.
#[derive(Clone, Debug)]
pub(crate) enum Number {
    Int(BigInt),
    Float(f64),
}

impl Number {
    /// Number of a value; `None` if it is no number, True or False.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        match value.kind() {
            ValueKind::Number if !value.is_integer() => {
                f64::try_from(value.clone()).ok().map(Self::Float)
            }
            _ => integer(value).map(Self::Int),
        }
    }

    /// As a float.
    ///
    /// # Errors
    /// It is too large for one.
    pub(crate) fn float(&self) -> Result<f64, Error> {
        match self {
            Self::Float(float) => Ok(*float),
            Self::Int(int) => to_float(int),
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Int(int) => int.sign() == Sign::NoSign,
            Self::Float(float) => *float == 0.0,
        }
    }

    /// Order of both; `None` if one of them is no number.
    pub(crate) fn order(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(b),
            (Self::Int(a), Self::Float(b)) => compare(a, *b),
            (Self::Float(a), Self::Int(b)) => compare(b, *a).map(Ordering::reverse),
        }
    }
}

/// The integer that a value is; True is 1.
pub(crate) fn integer(value: &Value) -> Option<BigInt> {
    match value.kind() {
        ValueKind::Bool => Some(BigInt::from(u8::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => match value.as_i64() {
            Some(int) => Some(int.into()),
            None => value.to_string().parse().ok(),
        },
        _ => value.downcast_object_ref::<Large>().map(|large| large.0.clone()),
    }
}

/// An integer of 64 bits, which most are; not True or False.
pub(crate) fn small(value: &Value) -> Option<i64> {
    if value.is_integer() { value.as_i64() } else { None }
}

/// Whether a value is an integer that minijinja has no room for.
pub(crate) fn is_large(value: &Value) -> bool {
    value.downcast_object_ref::<Large>().is_some()
}

/// Whether a value is an integer and not True or False.
pub(crate) fn is_integer(value: &Value) -> bool {
    value.is_integer() || is_large(value)
}

/// Whether a value is a number and not True or False.
pub(crate) fn is_number(value: &Value) -> bool {
    value.is_number() || is_integer(value)
}

/// An integer as a value.
///
/// # Errors
/// It is larger than Python writes.
pub(crate) fn value(int: BigInt) -> Result<Value, Error> {
    if int.bits() > MAX_BITS {
        return Err(refused("the chat template makes an integer of more than 4300 digits"));
    }
    Ok(match i64::try_from(&int) {
        Ok(int) => Value::from(int),
        Err(_) => i128::try_from(&int).map_or_else(|_| Value::from_object(Large(int)), Value::from),
    })
}

/// The float next to an integer.
///
/// # Errors
/// There is none.
pub(crate) fn to_float(int: &BigInt) -> Result<f64, Error> {
    let float = match i32::try_from(int) {
        Ok(small) => f64::from(small),
        Err(_) => int.to_string().parse().unwrap_or(f64::INFINITY),
    };
    match float.is_finite() {
        true => Ok(float),
        false => Err(refused("int too large to convert to float")),
    }
}

/// A float without its fraction; None if it has no end or is no number.
pub(crate) fn truncated(float: f64) -> Option<BigInt> {
    // Rust writes all digits of a float.
    float.is_finite().then(|| format!("{:.0}", float.trunc())).and_then(|text| text.parse().ok())
}

fn compare(int: &BigInt, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    if int.bits() <= 53 {
        // Exact as a float.
        return to_float(int).ok()?.partial_cmp(&float);
    }
    let Some(whole) = truncated(float) else {
        return Some(if float > 0.0 { Ordering::Less } else { Ordering::Greater });
    };
    let fraction = 0.0.partial_cmp(&(float - float.trunc()))?;
    Some(int.cmp(&whole).then(fraction))
}

/// `int(text, base)`; None if the text is no integer.
pub(crate) fn parse_int(text: &str, base: u32) -> Option<BigInt> {
    let text = text.trim_matches(is_space);
    let (sign, digits) = signed(text);
    let prefix = digits.get(..2).map(str::to_ascii_lowercase);
    let of_prefix = match prefix.as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 0,
    };
    let (base, digits) = match base {
        0 if of_prefix > 0 => (of_prefix, digits[2..].strip_prefix('_').unwrap_or(&digits[2..])),
        // Other zeros in front are octal to some, so they are refused.
        0 if digits.starts_with('0') && digits.contains(|c| !matches!(c, '0' | '_')) => {
            return None;
        }
        0 => (10, digits),
        base if base == of_prefix => (base, digits[2..].strip_prefix('_').unwrap_or(&digits[2..])),
        base => (base, digits),
    };
    let digits = plain_digits(digits)?;
    if digits.len() > MAX_BITS as usize || digits.starts_with(['+', '-']) {
        return None;
    }
    let int = BigInt::parse_bytes(digits.as_bytes(), base)?;
    Some(if sign { -int } else { int })
}

/// `float(text)`; None if the text is no number.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let text = plain_digits(text.trim_matches(is_space))?;
    let (sign, digits) = signed(&text);
    let float = match digits.to_ascii_lowercase().as_str() {
        "inf" | "infinity" => f64::INFINITY,
        "nan" => f64::NAN,
        // Rust takes two signs for none, and Python's words are above.
        digits if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
            digits.parse().ok()?
        }
        _ => return None,
    };
    Some(if sign { -float } else { float })
}

/// Whether there is a minus, and what is behind the sign.
fn signed(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// Digits of all scripts as those of ASCII, without the underscores between them.
fn plain_digits(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    for c in text.chars() {
        let after_underscore = before == '_';
        if (c == '_' && !before.is_alphanumeric()) || (after_underscore && !c.is_alphanumeric()) {
            return None;
        }
        before = c;
        match decimal_value(c) {
            Some(value) => out.extend(char::from_digit(value, 10)),
            None if c == '_' => {}
            None if c.is_ascii() => out.push(c),
            None => return None,
        }
    }
    (before != '_').then_some(out)
}
