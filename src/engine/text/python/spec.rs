//! Python's format of one value to a width: shared by `%5.2f` and `{:>5,.2f}`.

use minijinja::{Error, Value};
use num_bigint::{BigInt, Sign};

use super::arguments::refused;
use super::number::{self, Number};
use super::{float_repr, type_name};

/// Widest field and highest precision that a template may ask for.
const MAX_WIDTH: usize = 1 << 15;

/// The format of one value.
#[derive(Clone, Debug, Default)]
pub(super) struct Spec {
    pub fill: Option<char>,
    /// `<`, `>`, `^`, or `=` for between sign and digits.
    pub align: Option<char>,
    /// `+`, `-` or a space.
    pub sign: Option<char>,
    pub alternate: bool,
    pub zero: bool,
    pub width: usize,
    pub grouping: Option<char>,
    pub precision: Option<usize>,
    pub kind: Option<char>,
}

impl Spec {
    /// Reads `[[fill]align][sign][#][0][width][,_][.precision][type]`.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let invalid = || refused(format!("invalid format specifier '{text}'"));
        let mut spec = Self::default();
        let mut chars = text.chars().peekable();
        let is_align = |c: char| matches!(c, '<' | '>' | '^' | '=');
        let mut ahead = text.chars();
        match (ahead.next(), ahead.next()) {
            (fill, Some(align)) if is_align(align) => {
                (spec.fill, spec.align) = (fill, Some(align));
                chars.nth(1);
            }
            (Some(align), _) if is_align(align) => spec.align = chars.next(),
            _ => {}
        }
        spec.sign = chars.next_if(|c| matches!(c, '+' | '-' | ' '));
        spec.alternate = chars.next_if_eq(&'#').is_some();
        spec.zero = chars.next_if_eq(&'0').is_some();
        spec.width = digits(&mut chars)?.unwrap_or(0);
        spec.grouping = chars.next_if(|c| matches!(c, ',' | '_'));
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(digits(&mut chars)?.ok_or_else(invalid)?);
        }
        spec.kind = chars.next();
        match chars.next() {
            None => Ok(spec),
            Some(_) => Err(invalid()),
        }
    }

    /// Whether nothing is asked for.
    fn is_plain(&self) -> bool {
        let Self { align, sign, alternate, zero, width, grouping, precision, kind, .. } = self;
        let flags = *alternate || *zero || *width > 0;
        !flags && align.or(*sign).or(*grouping).or(*kind).is_none() && precision.is_none()
    }

    /// `format(value, spec)`.
    pub(super) fn format(&self, value: &Value) -> Result<String, Error> {
        if self.is_plain() {
            return super::arguments::soft(value);
        }
        if let Some(text) = value.as_str() {
            return self.text(text);
        }
        match Number::of(value) {
            Some(Number::Float(float)) => self.float(float),
            Some(Number::Int(int)) => self.int(&int),
            None => {
                let kind = type_name(value);
                Err(refused(format!("unsupported format string passed to {kind}.__format__")))
            }
        }
    }

    fn unknown(&self, kind: &str) -> Error {
        let code = self.kind.unwrap_or(' ');
        refused(format!("unknown format code '{code}' for object of type '{kind}'"))
    }

    fn text(&self, text: &str) -> Result<String, Error> {
        if self.kind.is_some_and(|kind| kind != 's') {
            return Err(self.unknown("str"));
        }
        if self.sign.or(self.grouping).is_some() || self.alternate || self.align == Some('=') {
            return Err(refused("a sign, '=', ',' and '#' do not go with texts in a format"));
        }
        let text: String = text.chars().take(self.precision.unwrap_or(usize::MAX)).collect();
        Ok(self.padded("", &text, '<'))
    }

    fn int(&self, int: &BigInt) -> Result<String, Error> {
        let (radix, prefix) = match self.kind {
            Some('b') => (2, "0b"),
            Some('o') => (8, "0o"),
            Some('x') => (16, "0x"),
            Some('X') => (16, "0X"),
            None | Some('d' | 'n') => (10, ""),
            Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => {
                return self.float(number::to_float(int)?);
            }
            Some('c') => {
                let c = u32::try_from(int).ok().and_then(char::from_u32);
                let c = c.ok_or_else(|| refused("%c arg not in range(0x110000)"))?;
                return Ok(self.padded("", &c.to_string(), '<'));
            }
            _ => return Err(self.unknown("int")),
        };
        if self.precision.is_some() {
            return Err(refused("precision not allowed in integer format specifier"));
        }
        let mut digits = BigInt::from(int.magnitude().clone()).to_str_radix(radix);
        if self.kind == Some('X') {
            digits.make_ascii_uppercase();
        }
        let prefix = if self.alternate { prefix } else { "" };
        let sign = self.sign_of(int.sign() == Sign::Minus);
        Ok(self.number(&format!("{sign}{prefix}"), &digits, "", if radix == 10 { 3 } else { 4 }))
    }

    fn float(&self, float: f64) -> Result<String, Error> {
        let upper = self.kind.is_some_and(|kind| kind.is_ascii_uppercase());
        let percent = self.kind == Some('%');
        let value = float.abs() * if percent { 100.0 } else { 1.0 };
        let mut text = match (self.kind.map(|kind| kind.to_ascii_lowercase()), self.precision) {
            _ if !value.is_finite() => if value.is_nan() { "nan" } else { "inf" }.to_string(),
            (None, None) => float_repr(value),
            (None, Some(precision)) => general(value, precision, self.alternate, true),
            (Some('g' | 'n'), precision) => {
                general(value, precision.unwrap_or(6), self.alternate, false)
            }
            (Some('f' | '%'), precision) => format!("{value:.*}", precision.unwrap_or(6)),
            (Some('e'), precision) => scientific(value, precision.unwrap_or(6)),
            _ => return Err(self.unknown("float")),
        };
        if self.alternate && value.is_finite() && !text.contains('.') {
            text.insert(text.find('e').unwrap_or(text.len()), '.');
        }
        if upper {
            text.make_ascii_uppercase();
        }
        let whole = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (whole, rest) = text.split_at(if value.is_finite() { whole } else { text.len() });
        let rest = format!("{rest}{}", if percent { "%" } else { "" });
        let sign = self.sign_of(float.is_sign_negative() && !float.is_nan());
        Ok(self.number(sign, whole, &rest, 3))
    }

    fn sign_of(&self, is_negative: bool) -> &'static str {
        match self.sign {
            _ if is_negative => "-",
            Some('+') => "+",
            Some(' ') => " ",
            _ => "",
        }
    }

    /// Sign, digits and what is behind them, grouped and padded.
    fn number(&self, sign: &str, digits: &str, rest: &str, group: usize) -> String {
        let fills_zeros = self.zero && self.align.is_none()
            || self.align == Some('=') && self.fill.map_or(self.zero, |fill| fill == '0');
        let Some(separator) = self.grouping else {
            return self.padded(sign, &format!("{digits}{rest}"), '>');
        };
        // Zeros in front are grouped too.
        let room = self.width.saturating_sub(sign.len() + rest.len());
        let mut grouped = Vec::new();
        let mut left = digits.chars().rev();
        loop {
            let next = left.next();
            let wanted = fills_zeros && grouped.len() < room;
            let Some(digit) = next.or(wanted.then_some('0')) else { break };
            if grouped.len() % (group + 1) == group {
                grouped.push(separator);
            }
            grouped.push(digit);
        }
        let grouped: String = grouped.into_iter().rev().collect();
        self.padded(sign, &format!("{grouped}{rest}"), '>')
    }

    /// The text to the width, aligned as asked for or as is usual.
    fn padded(&self, sign: &str, text: &str, usual: char) -> String {
        let missing = self.width.saturating_sub(sign.len() + text.chars().count());
        let fill = self.fill.unwrap_or(if self.zero { '0' } else { ' ' });
        let align = self.align.unwrap_or(if self.zero && usual == '>' { '=' } else { usual });
        let fill = |count: usize| fill.to_string().repeat(count);
        match align {
            '<' => format!("{sign}{text}{}", fill(missing)),
            '^' => format!("{}{sign}{text}{}", fill(missing / 2), fill(missing - missing / 2)),
            '=' => format!("{sign}{}{text}", fill(missing)),
            _ => format!("{}{sign}{text}", fill(missing)),
        }
    }

    /// An integer of `%d` and its like: a precision is the least number of digits.
    pub(super) fn percent_int(&self, int: &BigInt) -> Result<String, Error> {
        let plain = Self { width: 0, precision: None, ..self.clone() };
        let mut text = Self { zero: false, ..plain }.int(int)?;
        if let Some(precision) = self.precision {
            let start = text.find(|c: char| c.is_ascii_hexdigit()).unwrap_or(0);
            let start = start + if self.alternate && self.kind != Some('d') { 2 } else { 0 };
            let missing = precision.saturating_sub(text.len() - start);
            text.insert_str(start, &"0".repeat(missing));
        }
        let start = text.find(|c: char| c.is_ascii_hexdigit()).unwrap_or(0);
        let start = start + if self.alternate && self.kind != Some('d') { 2 } else { 0 };
        let (sign, digits) = text.split_at(start);
        Ok(self.padded(sign, digits, '>'))
    }
}

/// A number of a format, which is a width or a precision.
fn digits(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>, Error> {
    let mut number = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        number = Some(check_width(number.unwrap_or(0) * 10 + digit as usize)?);
    }
    Ok(number)
}

pub(super) fn check_width(width: usize) -> Result<usize, Error> {
    match width > MAX_WIDTH {
        true => Err(refused("the chat template formats with too large a width")),
        false => Ok(width),
    }
}

/// `%e`.
fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// `%g`; with `keeps_point` as floats are formatted without a type.
fn general(value: f64, precision: usize, alternate: bool, keeps_point: bool) -> String {
    let precision = precision.max(1);
    let text = scientific(value, precision - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let is_whole = |text: &str| !text.contains('.');
    let stripped = |text: &str| match alternate || is_whole(text) {
        true => text.to_string(),
        false => text.trim_end_matches('0').trim_end_matches('.').to_string(),
    };
    let limit = precision as i32 - i32::from(keeps_point);
    if !(-4..limit).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", stripped(digits), exponent.abs());
    }
    let text = stripped(&format!("{value:.*}", (precision as i32 - 1 - exponent).max(0) as usize));
    if keeps_point && is_whole(&text) { format!("{text}.0") } else { text }
}

/// The text of a conversion: `s`, `r` or `a`.
pub(super) fn converted(value: &Value, conversion: char) -> Result<String, Error> {
    match conversion {
        's' => super::arguments::soft(value),
        'r' => super::repr_of(value),
        'a' => {
            let mut out = String::new();
            for c in super::repr_of(value)?.chars() {
                match c {
                    c if c.is_ascii() => out.push(c),
                    c => super::escape_char(c, &mut out),
                }
            }
            Ok(out)
        }
        other => Err(refused(format!("unknown conversion specifier '{other}'"))),
    }
}
