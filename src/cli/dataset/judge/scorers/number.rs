//! Numbers in texts, and whether two of them are one: exactly, whatever their length.

mod written;

use written::Numbers;

/// A number without what does not change it: sign, digits, power of ten; and of a fraction that is
/// no decimal what it is divided by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    is_negative: bool,
    /// Without zeros at either end.
    digits: String,
    exponent: i64,
    /// Has no divisor in common with the digits, and neither 2 nor 5 as one of its own.
    divisor: u128,
}

impl Decimal {
    /// Reads a text that is one number, in any of the spellings that are looked for in answers.
    /// Signs of currencies and of percent beside it say nothing. Of a text with `\boxed` or `####`
    /// in it, as solutions of MATH and GSM8K have them, the number is there.
    pub fn parse(text: &str) -> Option<Self> {
        let text = match text.rsplit_once("####") {
            Some((_, answer)) => answer,
            None => boxed(text).unwrap_or(text),
        };
        let text = folded(text);
        let mut numbers = Numbers::new(&text);
        let found = numbers.next()?;
        let is_decoration =
            |c: char| c.is_whitespace() || is_currency(c) || matches!(c, '%' | '％' | '\\' | '.');
        let (before, after) = (&text[..found.start], &text[found.end..]);
        let is_alone = before.chars().chain(after.chars()).all(is_decoration);
        found.value.filter(|_| is_alone)
    }

    /// A JSON number.
    pub fn of_json(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        let (mantissa, power) = lower.split_once('e').unwrap_or((&lower, "0"));
        Self::of(mantissa, power).unwrap_or_else(|| Self {
            // Powers beyond i32 are told apart by how they are written.
            digits: lower.clone(),
            ..Self::zero()
        })
    }

    fn zero() -> Self {
        Self { is_negative: false, digits: String::new(), exponent: 0, divisor: 1 }
    }

    /// Of a mantissa of digits, perhaps with a sign and a point, and a power of ten.
    fn of(mantissa: &str, power: &str) -> Option<Self> {
        let power = i64::from(power.parse::<i32>().ok()?);
        let (is_negative, mantissa) = match mantissa.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, mantissa.trim_start_matches('+')),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [whole, fraction].concat();
        let kept = digits.trim_end_matches('0');
        let exponent = power - fraction.len() as i64 + (digits.len() - kept.len()) as i64;
        let kept = kept.trim_start_matches('0');
        Some(match kept.is_empty() {
            true => Self::zero(),
            false => Self { is_negative, digits: kept.to_owned(), exponent, divisor: 1 },
        })
    }

    /// A fraction; None of one whose parts are too long, or that is divided by 0.
    fn of_fraction(mut above: u128, mut below: u128) -> Option<Self> {
        let common = greatest_common_divisor(above, below);
        (above, below) = (above.checked_div(common)?, below.checked_div(common)?);
        let mut power = 0;
        if below == 0 {
            return None;
        }
        for (divisor, other) in [(10, 1), (2, 5), (5, 2)] {
            while below.is_multiple_of(divisor) {
                (below, above, power) = (below / divisor, above.checked_mul(other)?, power - 1);
            }
        }
        let value = Self::of(&above.to_string(), &power.to_string())?;
        Some(Self { divisor: if above == 0 { 1 } else { below }, ..value })
    }

    fn negated(self) -> Self {
        Self { is_negative: !self.is_negative && !self.digits.is_empty(), ..self }
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The number that an answer gives: the last, as it is written with its sign. Within the last
/// `\boxed` if there is one. A number that is part of a word, as in `H2O` and `m^2`, counts if
/// there is no other.
pub fn last_of(text: &str) -> Option<(String, Option<Decimal>)> {
    let text = folded(boxed(text).unwrap_or(text));
    let mut last: Option<written::Number> = None;
    for number in Numbers::new(&text) {
        if !number.is_part_of_word || last.as_ref().is_none_or(|last| last.is_part_of_word) {
            last = Some(number);
        }
    }
    last.map(|number| (number.text, number.value))
}

/// What is in the last `\boxed{..}` of a text that is whole.
fn boxed(text: &str) -> Option<&str> {
    const BOX: &str = "\\boxed{";
    let mut end = text.len();
    // An unfinished box has none behind it that is whole, so few are tried.
    for _ in 0..4 {
        let begin = text[..end].rfind(BOX)?;
        let inside = &text[begin + BOX.len()..];
        let mut depth = 1;
        let close = inside.bytes().position(|byte| {
            depth += i32::from(byte == b'{') - i32::from(byte == b'}');
            depth == 0
        });
        if let Some(close) = close {
            return Some(&inside[..close]);
        }
        end = begin;
    }
    None
}

fn is_currency(c: char) -> bool {
    matches!(
        c,
        '$' | '¢' | '£' | '¤' | '¥' | '฿' | '₠'..='⃀' | '﹩' | '＄' | '￠' | '￡' | '￥' | '￦'
    )
}

/// The text with ASCII digits in place of full-width ones.
fn folded(text: &str) -> std::borrow::Cow<'_, str> {
    let is_wide = |c: char| ('０'..='９').contains(&c);
    if !text.contains(is_wide) {
        return text.into();
    }
    let fold =
        |c: char| if is_wide(c) { char::from((c as u32 - '０' as u32) as u8 + b'0') } else { c };
    text.chars().map(fold).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_of_a_text() {
        let cases = [
            ("It is 3, so 1,234.50 in all.", Some("1,234.50")),
            ("#### -42", Some("-42")),
            ("7-3", Some("3")),
            ("(2)-1", Some("1")),
            ("is - 5", Some("5")),
            ("+.5!", Some("+.5")),
            ("5.", Some("5")),
            ("1.2.3", Some("3")),
            ("2e3 or 2e", Some("2")),
            ("6.02E+23", Some("6.02E+23")),
            ("é-8", Some("8")),
            ("none", None),
            ("", None),
            // Signs.
            ("It is −3 degrees.", Some("-3")),
            ("It is –3", Some("-3")),
            ("—3", Some("-3")),
            ("x = \u{2010}3", Some("-3")),
            ("7−3", Some("3")),
            ("50%–60%", Some("60")),
            ("pages 3–5", Some("5")),
            ("negative 4", Some("-4")),
            // Currencies.
            ("costs -$5", Some("-5")),
            ("costs $-5", Some("-5")),
            ("costs −€1,000.50.", Some("-1,000.50")),
            ("\\$18", Some("18")),
            ("from $5-$10", Some("10")),
            // Lists and thousands.
            ("1, 2, 3", Some("3")),
            ("1,2,3", Some("3")),
            ("(3,5)", Some("5")),
            ("1,234,567", Some("1,234,567")),
            ("12,34,567", Some("12,34,567")),
            ("1234,567", Some("567")),
            ("1.234.567,89", Some("1.234.567,89")),
            ("1.234,56 €", Some("1.234,56")),
            ("1\u{202f}234\u{202f}567", Some("1\u{202f}234\u{202f}567")),
            ("1'234'567.5", Some("1'234'567.5")),
            // LaTeX.
            ("\\boxed{42} in 3 steps", Some("42")),
            ("\\boxed{\\frac{-1}{2}}, so 7", Some("\\frac{-1}{2}")),
            ("\\boxed{5}, cut \\boxed{7", Some("5")),
            ("\\(-\\frac{3}{4}\\)", Some("-\\frac{3}{4}")),
            ("$1{,}234$", Some("1{,}234")),
            ("25 cm^2", Some("25")),
            ("25 m2 of H2O", Some("25")),
            ("H2O", Some("2")),
            ("\\approx5", Some("5")),
            ("50\\%", Some("50")),
        ];
        for (text, expected) in cases {
            let found = last_of(text).map(|(found, _)| found);
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn one_number_in_many_spellings() {
        let number = |text: &str| Decimal::parse(text).expect(text);
        for spellings in [
            &["1234", "1,234", "1234.0", "+1234", "$1,234.00", "1.234e3", "1234000e-3"][..],
            &[
                "1234",
                "1 234",
                "1\u{a0}234",
                "1'234",
                "1_234",
                "1{,}234",
                "1.234 × 10^3",
                "１２３４",
            ],
            &[
                "1234567.5",
                "1.234.567,5",
                "1,234,567.50",
                "12,34,567.5",
                "1\u{202f}234\u{202f}567,5",
            ],
            &["0", "-0", "0.000", "0e9", "0/7", "−0"],
            &[
                "-0.5",
                "-.5",
                "-5e-1",
                "-0.50",
                "−0.5",
                "-1/2",
                "-\\frac{1}{2}",
                "\\frac{-1}{2}",
                "-\\dfrac12",
                "-½",
            ],
            &["50", "50%", "50\\%", "$50", "50.", "\\boxed{50}", "so\n#### 50", "50 €", "100/2"],
            &["2.5", "2½", "2 1/2", "2\\frac{1}{2}", "5/2", "25e-1"],
            &["1/3", "2/6", "\\tfrac{1}{3}", "⅓"],
            &["1200", "1.2e3", "1.2x10^3", "1.2 \\times 10^{3}", "1.2·10³", "12 * 10**2"],
            &["0.0012", "1.2e-3", "1.2 × 10^{-3}", "1.2 × 10⁻³", "1.2 \\cdot 10^−3"],
            &["1024", "2^10", "2^{10}", "4^5"],
        ] {
            for other in &spellings[1..] {
                if *other == "1 234" {
                    assert_eq!(Decimal::parse(other), None, "a list, for all one knows");
                    continue;
                }
                assert_eq!(number(spellings[0]), number(other), "{other}");
            }
        }
        assert_ne!(number("0.1"), number("0.10000000000000000001"));
        assert_ne!(number("9007199254740993"), number("9007199254740992"));
        assert_ne!(number("1/3"), number("0.333333333333333"));
        assert_ne!(number("3"), number("−3"));
        for text in ["12 apples", "", "a", "1-2", "1,2", "1/0", "x^2"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn looking_for_numbers_takes_linear_time() {
        let units = [
            "1,",
            "12,",
            "1/",
            "-",
            "\\boxed{",
            "1'234",
            "2^",
            "\\frac{",
            "1 ",
            "$",
            "1.",
            "negative ",
        ];
        for unit in units {
            let text = unit.repeat((1 << 18) / unit.len());
            let begin = std::time::Instant::now();
            last_of(&text);
            assert!(begin.elapsed().as_secs() < 10, "{unit}");
        }
    }
}
