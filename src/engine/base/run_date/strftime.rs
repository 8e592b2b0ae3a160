//! Python's `datetime.strftime` in the C locale: the directives of glibc.

use super::RunDate;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A directive: `%`, flags, a width, `E` or `O`, and a letter.
#[derive(Clone, Copy, Debug, Default)]
struct Directive {
    /// `-` no padding, `_` spaces, `0` zeros.
    padding: Option<char>,
    upper: bool,
    swapped: bool,
    width: Option<usize>,
}

/// Widest field that is written.
const MAX_WIDTH: usize = 1 << 10;

impl RunDate {
    /// Python's `datetime.strftime`. What is no directive stays as it is.
    pub fn strftime(&self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            let end = self.directive(&rest[1..], &mut out);
            match end {
                Some(len) => rest = &rest[1 + len..],
                None => {
                    out.push('%');
                    rest = &rest[1..];
                }
            }
        }
        out.push_str(rest);
        out
    }

    /// Writes the directive that a text begins with. Returns its length; None if it is none.
    fn directive(&self, text: &str, out: &mut String) -> Option<usize> {
        let mut directive = Directive::default();
        let mut chars = text.chars();
        let mut c = chars.next()?;
        while matches!(c, '-' | '_' | '0' | '^' | '#') {
            match c {
                '^' => directive.upper = true,
                '#' => directive.swapped = true,
                padding => directive.padding = Some(padding),
            }
            c = chars.next()?;
        }
        while let Some(digit) = c.to_digit(10) {
            let width = directive.width.unwrap_or(0) * 10 + digit as usize;
            directive.width = Some(width.min(MAX_WIDTH));
            c = chars.next()?;
        }
        if matches!(c, 'E' | 'O') {
            c = chars.next()?;
        }
        let made = self.number(c, directive).or_else(|| self.text(c, directive))?;
        out.push_str(&made);
        Some(text.len() - chars.as_str().len())
    }

    /// The directives of numbers, with their usual width and padding.
    fn number(&self, letter: char, directive: Directive) -> Option<String> {
        let twelve = |hour: u8| (hour + 11) % 12 + 1;
        let (iso_year, iso_week) = self.iso_week();
        let days = self.day_of_year() as i64;
        let weekday = self.weekday() as i64;
        let (number, width, usual) = match letter {
            'Y' => (self.year.into(), 1, '0'),
            'G' => (iso_year.into(), 1, '0'),
            'C' => (i64::from(self.year) / 100, 2, '0'),
            'y' => (i64::from(self.year) % 100, 2, '0'),
            'g' => (i64::from(iso_year) % 100, 2, '0'),
            'm' => (self.month.into(), 2, '0'),
            'd' => (self.day.into(), 2, '0'),
            'e' => (self.day.into(), 2, '_'),
            'H' => (self.hour.into(), 2, '0'),
            'k' => (self.hour.into(), 2, '_'),
            'I' => (twelve(self.hour).into(), 2, '0'),
            'l' => (twelve(self.hour).into(), 2, '_'),
            'M' => (self.minute.into(), 2, '0'),
            'S' => (self.second.into(), 2, '0'),
            'j' => (days, 3, '0'),
            's' => (self.unix(), 1, '0'),
            'U' => ((days - 1 + 7 - weekday) / 7, 2, '0'),
            'W' => ((days - 1 + 7 - (weekday + 6) % 7) / 7, 2, '0'),
            'V' => (iso_week.into(), 2, '0'),
            'u' => (if weekday == 0 { 7 } else { weekday }, 1, '0'),
            'w' => (weekday, 1, '0'),
            _ => return None,
        };
        let width = directive.width.unwrap_or(width);
        Some(match directive.padding.unwrap_or(usual) {
            '-' => number.to_string(),
            '_' => format!("{number:width$}"),
            _ => format!("{number:0width$}"),
        })
    }

    /// The directives of names, and those that stand for several.
    fn text(&self, letter: char, directive: Directive) -> Option<String> {
        let (month, weekday) = (MONTHS[usize::from(self.month) - 1], DAYS[self.weekday()]);
        let noon = if self.hour < 12 { "AM" } else { "PM" };
        let Directive { upper, swapped, .. } = directive;
        let named =
            |name: &str| if upper || swapped { name.to_uppercase() } else { name.to_string() };
        let several = |format| {
            let made = self.strftime(format);
            if upper { made.to_uppercase() } else { made }
        };
        let made = match letter {
            'A' => named(weekday),
            'a' => named(&weekday[..3]),
            'B' => named(month),
            'b' | 'h' => named(&month[..3]),
            'p' if swapped => noon.to_lowercase(),
            'p' => noon.to_string(),
            'P' => noon.to_lowercase(),
            'c' => several("%a %b %e %H:%M:%S %Y"),
            'D' | 'x' => several("%m/%d/%y"),
            'F' => several("%Y-%m-%d"),
            'r' => several("%I:%M:%S %p"),
            'R' => several("%H:%M"),
            'T' | 'X' => several("%H:%M:%S"),
            'f' => "000000".to_string(),
            'n' => "\n".to_string(),
            't' => "\t".to_string(),
            '%' => "%".to_string(),
            // A naive datetime has no zone.
            'z' | 'Z' => String::new(),
            _ => return None,
        };
        let missing = directive.width.unwrap_or(0).saturating_sub(made.chars().count());
        let fill = if directive.padding == Some('0') { "0" } else { " " };
        Some(fill.repeat(missing) + &made)
    }
}
