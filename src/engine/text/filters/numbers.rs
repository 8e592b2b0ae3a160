//! jinja2's filters of numbers.

use minijinja::{Error, State, Value};
use num_bigint::{BigInt, Sign};

use crate::python::arguments::{as_int, bind, given, int, refused, text};
use crate::python::number::{self, Number, parse_float, parse_int};
use crate::python::{operators, type_name};

/// Most digits that a template may round to; a float has 323 at most.
const MAX_ROUNDED: u64 = 400;

fn undefined(value: &Value) -> Result<(), Error> {
    match value.is_undefined() {
        true => Err(refused("an undefined value is used")),
        false => Ok(()),
    }
}

/// `int(value, default=0, base=10)`.
pub(super) fn int_of(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, default, base] = bind("int", args, 1, ["", "default", "base"])?;
    let value = value.unwrap_or_default();
    undefined(&value)?;
    let base = int(&base, 10)?;
    let base = u32::try_from(base).ok().filter(|base| *base == 0 || (2..=36).contains(base));
    let of_float = |float: f64| number::truncated(float);
    let found = match (value.as_str(), Number::of(&value)) {
        // As jinja2, a base that is none gives the float.
        (Some(text), _) => base
            .and_then(|base| parse_int(text, base))
            .or_else(|| parse_float(text).and_then(of_float)),
        (_, Some(Number::Int(int))) => Some(int),
        (_, Some(Number::Float(float))) if float.is_infinite() => {
            return Err(refused("cannot convert float infinity to integer"));
        }
        (_, Some(Number::Float(float))) => of_float(float),
        _ => None,
    };
    found.map_or_else(|| Ok(default.unwrap_or_else(|| Value::from(0))), number::value)
}

/// `float(value, default=0.0)`.
pub(super) fn float_of(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, default] = bind("float", args, 1, ["", "default"])?;
    let value = value.unwrap_or_default();
    undefined(&value)?;
    let found = match (value.as_str(), Number::of(&value)) {
        (Some(text), _) => parse_float(text),
        (_, Some(number)) => Some(number.float()?),
        _ => None,
    };
    Ok(found.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

pub(super) fn abs(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("abs", args, 1, [""])?;
    let value = value.unwrap_or_default();
    match Number::of(&value) {
        Some(Number::Int(int)) => number::value(int.magnitude().clone().into()),
        Some(Number::Float(float)) => Ok(Value::from(float.abs())),
        None => Err(refused(format!("bad operand type for abs(): '{}'", type_name(&value)))),
    }
}

/// `round(value, precision=0, method="common")`.
pub(super) fn round(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, precision, method] = bind("round", args, 1, ["", "precision", "method"])?;
    let value = value.unwrap_or_default();
    let method = method.as_ref().map_or(Ok("common"), text)?;
    let digits = int(&precision, 0)?;
    if digits.unsigned_abs() > MAX_ROUNDED {
        return Err(refused("the chat template rounds to too many digits"));
    }
    let number = Number::of(&value)
        .ok_or_else(|| refused(format!("type {} has no number to round", type_name(&value))))?;
    let ten_to = |power: u64| BigInt::from(10).pow(power as u32);
    match (method, number) {
        ("common", Number::Int(int)) if digits >= 0 => number::value(int),
        ("common", Number::Int(int)) => {
            number::value(half_even(&int, &ten_to(digits.unsigned_abs())))
        }
        ("common", Number::Float(float)) => Ok(Value::from(rounded(float, digits)?)),
        ("ceil" | "floor", _) => {
            let power = match digits < 0 {
                true => Value::from(1.0 / 10f64.powi(digits.unsigned_abs() as i32)),
                false => number::value(ten_to(digits.unsigned_abs()))?,
            };
            let scaled = operators::mul(&value, &power)?;
            let whole = match Number::of(&scaled) {
                Some(Number::Float(float)) => {
                    let whole = if method == "ceil" { float.ceil() } else { float.floor() };
                    let whole = number::truncated(whole);
                    number::value(whole.ok_or_else(|| refused("cannot round what has no end"))?)?
                }
                _ => scaled,
            };
            operators::div(&whole, &power)
        }
        _ => Err(refused("method must be common, ceil or floor")),
    }
}

/// Rounds to a multiple of `unit`, halves to even multiples.
fn half_even(int: &BigInt, unit: &BigInt) -> BigInt {
    let half = unit / 2;
    let floor = |a: &BigInt| {
        let rest = a % unit;
        if rest.sign() == Sign::Minus { a - rest - unit } else { a - rest }
    };
    let low = floor(int);
    let rest = int - &low;
    let is_odd = (&low / unit).bit(0);
    if rest > half || rest == half && is_odd { low + unit } else { low }
}

/// Python's `round` of a float: to the nearest decimal, and halves to even ones.
fn rounded(float: f64, digits: i64) -> Result<f64, Error> {
    if !float.is_finite() || digits > 323 {
        return Ok(float);
    }
    if digits >= 0 {
        let text = format!("{float:.*}", digits as usize);
        return text.parse().map_err(|_| refused("cannot round it"));
    }
    if digits < -308 {
        return Ok(0.0f64.copysign(float));
    }
    let unit = BigInt::from(10).pow(digits.unsigned_abs() as u32);
    let whole = number::truncated(float).unwrap_or_default();
    let mut low = half_even(&whole, &unit);
    // A fraction above the half.
    let half: BigInt = &unit / 2;
    if float.fract() != 0.0 && (&whole % &unit).magnitude() == half.magnitude() {
        let up = if float < 0.0 { -&half } else { half };
        low = &whole + up;
    }
    Ok(number::to_float(&low)?.copysign(float))
}

/// `sum(values, attribute=None, start=0)`.
pub(super) fn sum(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [values, attribute, start] = bind("sum", args, 1, ["", "attribute", "start"])?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    if total.as_str().is_some() {
        return Err(refused("sum() can't sum strings"));
    }
    let attribute = given(&attribute).map(super::lists::Path::new).transpose()?;
    for item in super::lists::items(&values.unwrap_or_default())? {
        let item = attribute.as_ref().map_or_else(|| Ok(item.clone()), |path| path.of(&item))?;
        total = operators::add(&total, &item)?;
    }
    Ok(total)
}

/// `filesizeformat(value, binary=False)`.
pub(super) fn filesizeformat(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, binary] = bind("filesizeformat", args, 1, ["", "binary"])?;
    let value = value.unwrap_or_default();
    undefined(&value)?;
    let bytes = match (value.as_str(), Number::of(&value)) {
        (Some(text), _) => parse_float(text),
        (_, number) => number.map(|number| number.float()).transpose()?,
    };
    let bytes = bytes.ok_or_else(|| refused("a size in bytes is a number"))?;
    let is_binary = super::flag(&binary, false);
    let (base, i) = if is_binary { (1024.0, "i") } else { (1000.0, "") };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        let whole = number::truncated(bytes).ok_or_else(|| refused("a size has no end"))?;
        return Ok(Value::from(format!("{whole} Bytes")));
    }
    let mut unit = base;
    let mut last = String::new();
    for letter in ["k", "M", "G", "T", "P", "E", "Z", "Y"] {
        let letter = if is_binary { letter.to_uppercase() } else { letter.to_string() };
        unit *= base;
        last = format!("{:.1} {letter}{i}B", base * bytes / unit);
        if bytes < unit {
            break;
        }
    }
    Ok(Value::from(last))
}

/// `range(stop)`, `range(start, stop, step=1)`.
pub(super) fn range(args: &[Value]) -> Result<Value, Error> {
    let [first, second, step] = bind("range", args, 1, [""; 3])?;
    let (start, stop) = match (first, second) {
        (Some(start), Some(stop)) => (as_int(&start)?, as_int(&stop)?),
        (stop, _) => (0, as_int(&stop.unwrap_or_default())?),
    };
    let by = int(&step, 1)?;
    if by == 0 {
        return Err(refused("range() arg 3 must not be zero"));
    }
    let distance = if by > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
    let len = (distance.max(0) as u64).div_ceil(by.unsigned_abs());
    if len > super::MAX_RANGE {
        return Err(refused("range too big: jinja2's sandbox ends at 100000 items"));
    }
    let text = match by {
        1 => format!("range({start}, {stop})"),
        by => format!("range({start}, {stop}, {by})"),
    };
    let items: Vec<Value> = (0..len as i64).map(|at| Value::from(start + at * by)).collect();
    super::range_of(items, text)
}
