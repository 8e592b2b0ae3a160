//! `Numbers`: the numbers that are written in a text, one after the other.

use super::{Decimal, is_currency};

/// Signs that are a minus where nothing before them is joined to the number.
const MINUS: [char; 11] = ['-', '−', '‐', '‑', '‒', '–', '—', '―', '﹣', '－', '⁻'];

/// What separates groups of thousands besides a comma and a point.
const SEPARATORS: [&str; 8] = ["{,}", "\\,", "'", "’", "_", "\u{a0}", "\u{202f}", "\u{2009}"];

/// Fractions that are one character.
const VULGAR: [(char, u128, u128); 15] = [
    ('½', 1, 2),
    ('⅓', 1, 3),
    ('⅔', 2, 3),
    ('¼', 1, 4),
    ('¾', 3, 4),
    ('⅕', 1, 5),
    ('⅖', 2, 5),
    ('⅗', 3, 5),
    ('⅘', 4, 5),
    ('⅙', 1, 6),
    ('⅚', 5, 6),
    ('⅛', 1, 8),
    ('⅜', 3, 8),
    ('⅝', 5, 8),
    ('⅞', 7, 8),
];

/// LaTeX's names of fractions.
const FRACTIONS: [&str; 3] = ["\\frac", "\\dfrac", "\\tfrac"];

/// Signs between a number and a power of ten.
const TIMES: [&str; 8] = ["×", "\\times", "\\cdot", "·", "⋅", "*", "x", "X"];

/// A number of a text.
#[derive(Debug)]
pub(super) struct Number {
    /// Where it begins, its sign and its currency included.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
    /// As it is written, `-` for every minus, without its currency.
    pub text: String,
    /// None: it is too large to be told from others.
    pub value: Option<Decimal>,
    /// It is an exponent, an index, or digits behind a letter.
    pub is_part_of_word: bool,
}

/// The numbers of a text, from its beginning.
#[derive(Debug)]
pub(super) struct Numbers<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Numbers<'a> {
    /// Of a text.
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }
}

impl Iterator for Numbers<'_> {
    type Item = Number;

    fn next(&mut self) -> Option<Number> {
        loop {
            let rest = &self.text[self.at..];
            let first = rest.chars().next()?;
            let is_decimal = |byte: &u8| *byte == b'.' && !ends_with_digit(&self.text[..self.at]);
            let begins = first.is_ascii_digit()
                || rest.as_bytes().first().is_some_and(is_decimal) && digits(&rest[1..]) > 0
                || first == '\\' && signed_fraction(rest).is_some()
                || vulgar(rest).is_some();
            if !begins {
                self.at += first.len_utf8();
                continue;
            }
            let (length, value) = unsigned(rest);
            let number = with_sign(self.text, self.at, length, value);
            self.at += length;
            return Some(number);
        }
    }
}

/// The number of digits that a text begins with.
fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn ends_with_digit(text: &str) -> bool {
    text.ends_with(|c: char| c.is_ascii_digit())
}

/// The number at the beginning of a text, without a sign: its length, and what it is.
fn unsigned(text: &str) -> (usize, Option<Decimal>) {
    if let Some((length, is_negative, above, below)) = signed_fraction(text) {
        let value = Decimal::of_fraction(above, below);
        return (length, if is_negative { value.map(Decimal::negated) } else { value });
    }
    if let Some((length, above, below)) = vulgar(text) {
        return (length, Decimal::of_fraction(above, below));
    }
    let (length, mantissa) = decimal(text);
    let is_integer = mantissa.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(found) = is_integer.then(|| composed(text, length, &mantissa)).flatten() {
        return found;
    }
    let rest = &text[length..];
    let (more, power) =
        exponent(rest).or_else(|| times_power_of_ten(rest)).unwrap_or((0, "0".to_owned()));
    (length + more, Decimal::of(&mantissa, &power))
}

/// A whole number with a fraction or an exponent behind it.
fn composed(text: &str, length: usize, whole: &str) -> Option<(usize, Option<Decimal>)> {
    let rest = &text[length..];
    if let Some((more, below)) = over(rest) {
        let above = whole.parse::<u128>();
        return Some((
            length + more,
            above.ok().and_then(|above| Decimal::of_fraction(above, below?)),
        ));
    }
    if let Some((more, power)) = raised(rest) {
        let base = whole.parse::<u128>().ok();
        let value =
            base.zip(power.parse::<u32>().ok()).and_then(|(base, power)| base.checked_pow(power));
        let value = match whole {
            "10" => Decimal::of("1", &power),
            _ => value.and_then(|value| Decimal::of(&value.to_string(), "0")),
        };
        return Some((length + more, value));
    }
    // 2 1/2, 2½, 2\frac{1}{2}.
    let space = usize::from(rest.starts_with(' '));
    let part = &rest[space..];
    let of_digits = || {
        let above = digits(part);
        let (more, below) = over(&part[above..]).filter(|_| above > 0 && space > 0)?;
        Some((above + more, part[..above].parse::<u128>().ok()?, below?))
    };
    let (more, above, below) = fraction(part).or_else(|| vulgar(part)).or_else(of_digits)?;
    let whole = whole.parse::<u128>().ok().filter(|_| above < below)?;
    let above = whole.checked_mul(below).and_then(|whole| whole.checked_add(above));
    Some((length + space + more, above.and_then(|above| Decimal::of_fraction(above, below))))
}

/// `/4`, and no date or path: its length, and what is divided by.
fn over(text: &str) -> Option<(usize, Option<u128>)> {
    let below = text.strip_prefix('/')?;
    let length = digits(below);
    let goes_on = below[length..].starts_with('/')
        || below[length..].starts_with('.') && digits(&below[length + 1..]) > 0;
    (length > 0 && !goes_on).then(|| (1 + length, below[..length].parse().ok()))
}

/// `\frac{1}{2}` or `\frac12`: its length and its parts.
fn fraction(text: &str) -> Option<(usize, u128, u128)> {
    let (length, is_negative, above, below) = signed_fraction(text)?;
    (!is_negative).then_some((length, above, below))
}

/// The same with a minus that may be above the line.
fn signed_fraction(text: &str) -> Option<(usize, bool, u128, u128)> {
    let rest = FRACTIONS.iter().find_map(|name| text.strip_prefix(name))?;
    let minus = rest.strip_prefix('{').and_then(|inside| inside.strip_prefix(MINUS));
    let (above, rest) = match minus {
        Some(inside) => inside.split_once('}').filter(|(above, _)| digits(above) == above.len())?,
        None => braced(rest)?,
    };
    let (below, rest) = braced(rest)?;
    let length = text.len() - rest.len();
    Some((length, minus.is_some(), above.parse().ok()?, below.parse().ok()?))
}

/// Digits between braces, or one digit; and what follows them.
fn braced(text: &str) -> Option<(&str, &str)> {
    match text.strip_prefix('{') {
        Some(inside) => {
            let length = digits(inside);
            let rest = inside[length..].strip_prefix('}')?;
            Some((&inside[..length], rest))
        }
        None => (digits(text) > 0).then(|| text.split_at(1)),
    }
}

fn vulgar(text: &str) -> Option<(usize, u128, u128)> {
    let first = text.chars().next()?;
    let (_, above, below) = VULGAR.iter().find(|(sign, ..)| *sign == first)?;
    Some((first.len_utf8(), *above, *below))
}

/// Digits with separators of thousands and a fraction: their length, and the same with a point and
/// no separators.
fn decimal(text: &str) -> (usize, String) {
    let first = digits(text);
    let (mut length, mut mantissa) = (first, text[..first].to_owned());
    let (point, of_groups) = match grouped(text, first) {
        Some((end, separator)) => {
            length = end;
            mantissa = text[..end].chars().filter(char::is_ascii_digit).collect();
            (if separator == "." { "," } else { "." }, Some(separator))
        }
        None => (".", None),
    };
    let is_european = of_groups.is_some_and(|separator| separator != ",");
    let points = if is_european && point == "." { &[".", ","][..] } else { &[point] };
    let fraction = points.iter().find_map(|point| {
        let fraction = text[length..].strip_prefix(point)?;
        let more = digits(fraction);
        // `1.234,567` may be two numbers.
        let is_unclear = *point == "," && more == 3;
        (more > 0 && !is_unclear).then(|| &fraction[..more])
    });
    if let Some(fraction) = fraction {
        length += 1 + fraction.len();
        mantissa = format!("{mantissa}.{fraction}");
    }
    (length, mantissa)
}

/// Groups of thousands behind `first` digits: where they end, and what is between them. Three
/// digits each, or two and at last three, as in India; `1,2,3` and `1,2345` are lists.
fn grouped(text: &str, first: usize) -> Option<(usize, &'static str)> {
    if first == 0 || first > 3 {
        return None;
    }
    let rest = &text[first..];
    let known = [",", "."].into_iter().chain(SEPARATORS);
    let separator = known.into_iter().find(|separator| rest.starts_with(separator))?;
    let group = |at: usize, size: usize| {
        let digits_of = text[at..].strip_prefix(separator)?;
        (digits(digits_of) == size).then_some(at + separator.len() + size)
    };
    let repeated = |from: usize, size: usize| {
        // A longer list of pairs is none of groups.
        let most = if size == 2 { 20 } else { usize::MAX };
        let ends = std::iter::successors(Some(from), |at| group(*at, size));
        ends.enumerate().take(most).last().unwrap_or((0, from))
    };
    let (num_groups, end) = match repeated(first, 3) {
        (0, _) if separator == "," && first < 3 => {
            let (pairs, end) = repeated(first, 2);
            (pairs, group(end, 3).filter(|_| pairs > 0)?)
        }
        found => found,
    };
    let has_comma =
        text[end..].strip_prefix(',').is_some_and(|rest| !matches!(digits(rest), 0 | 3));
    // One point is that of a fraction.
    let is_fraction = separator == "." && num_groups == 1 && !has_comma;
    (num_groups > 0 && !is_fraction).then_some((end, separator))
}

/// `e+23`: its length, and the power.
fn exponent(text: &str) -> Option<(usize, String)> {
    let rest = text.strip_prefix(['e', 'E'])?;
    let (more, power) = signed_digits(rest)?;
    Some((1 + more, power))
}

/// Digits with a sign: their length, and the same with `-` as the minus.
fn signed_digits(text: &str) -> Option<(usize, String)> {
    let sign = text.chars().next().filter(|c| *c == '+' || MINUS.contains(c));
    let length = sign.map_or(0, char::len_utf8);
    let number = &text[length..][..digits(&text[length..])];
    let minus = if sign.is_some_and(|sign| sign != '+') { "-" } else { "" };
    (!number.is_empty()).then(|| (length + number.len(), format!("{minus}{number}")))
}

/// `× 10^3`: its length, and the power.
fn times_power_of_ten(text: &str) -> Option<(usize, String)> {
    let rest = text.trim_start_matches(' ');
    let rest = TIMES.iter().find_map(|sign| rest.strip_prefix(sign))?;
    let rest = rest.trim_start_matches(' ').strip_prefix("10")?;
    let (more, power) = raised(rest)?;
    Some((text.len() - rest.len() + more, power))
}

/// `^3`, `^{3}`, `**3`, `³`: its length, and the exponent.
fn raised(text: &str) -> Option<(usize, String)> {
    const SUPERSCRIPTS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    if let Some(rest) = text.strip_prefix('^').or_else(|| text.strip_prefix("**")) {
        let inside = rest.strip_prefix('{').unwrap_or(rest);
        let (more, power) = signed_digits(inside)?;
        let end = text.len() - inside.len() + more;
        let close = usize::from(inside.len() < rest.len());
        return (close == 0 || text[end..].starts_with('}')).then_some((end + close, power));
    }
    let (mut length, mut power) = (0, String::new());
    for c in text.chars() {
        match SUPERSCRIPTS.iter().position(|sign| *sign == c) {
            Some(digit) => power.push(char::from(b'0' + digit as u8)),
            None if c == '⁻' && power.is_empty() => power.push('-'),
            None => break,
        }
        length += c.len_utf8();
    }
    power.ends_with(|c: char| c.is_ascii_digit()).then_some((length, power))
}

/// The number at a place of a text, with what is before it: a currency, and a sign unless it joins
/// the number to something, as in `7-3` and `b-3`.
fn with_sign(text: &str, at: usize, length: usize, value: Option<Decimal>) -> Number {
    let of_currency = |text: &str| {
        let kept = text.strip_suffix(' ').unwrap_or(text);
        let kept = kept.strip_suffix(is_currency)?;
        Some(kept.strip_suffix('\\').unwrap_or(kept).len())
    };
    let sign_before = |end: usize| {
        let sign = text[..end].chars().next_back().filter(|c| *c == '+' || MINUS.contains(c))?;
        let start = end - sign.len_utf8();
        (!joins(&text[..start])).then_some((start, sign))
    };
    let currency = of_currency(&text[..at]);
    let (mut start, mut sign) = (currency.unwrap_or(at), None);
    // `$-5` and `-$5`.
    if let Some((begin, found)) = sign_before(start) {
        (start, sign) = (begin, Some(found));
    }
    if sign.is_some() && currency.is_none() {
        start = of_currency(&text[..start]).unwrap_or(start);
    }
    let word = text[..start].trim_end_matches(' ');
    let is_named = sign.is_none()
        && word.len() < start
        && word.len() >= 8
        && word.as_bytes()[word.len() - 8..].eq_ignore_ascii_case(b"negative");
    if is_named {
        start = word.len() - 8;
    }
    let is_negative = is_named || sign.is_some_and(|sign| sign != '+');
    let shown = match (is_negative, sign) {
        (true, _) => "-",
        (false, Some(_)) => "+",
        (false, None) => "",
    };
    Number {
        start,
        end: at + length,
        text: format!("{shown}{}", &text[at..at + length]),
        value: if is_negative { value.map(Decimal::negated) } else { value },
        is_part_of_word: is_part_of_word(&text[..start]),
    }
}

/// Whether a sign behind this text is an operator or a hyphen.
fn joins(text: &str) -> bool {
    let is_joined = |c: char| c.is_alphanumeric() || matches!(c, ')' | ']' | '}' | '%' | '‰' | '°');
    text.ends_with(is_joined)
}

/// Whether digits behind this text are an exponent, an index, or part of a word.
fn is_part_of_word(text: &str) -> bool {
    let script = text.strip_suffix('{').unwrap_or(text);
    if script.ends_with(['^', '_']) {
        return true;
    }
    let letters = text.bytes().rev().take(20).take_while(u8::is_ascii_alphabetic).count();
    // A command of LaTeX is no word.
    letters > 0 && !text[..text.len() - letters].ends_with('\\')
}
