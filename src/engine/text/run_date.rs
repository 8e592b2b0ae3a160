//! `RunDate`: the date that `strftime_now` of chat templates sees, fixed for a whole run so that
//! the
//! same input gives the same prompts tomorrow.

use std::fmt::Write;

/// A calendar date and time of day, no time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunDate {
    year: i32,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
}

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

impl Default for RunDate {
    /// 1970-01-01 00:00:00.
    fn default() -> Self {
        Self { year: 1970, month: 1, day: 1, hour: 0, minute: 0, second: 0 }
    }
}

impl RunDate {
    /// Reads `YYYY-MM-DD`, or `YYYY-MM-DD HH:MM[:SS]` with a space or a `T` between.
    pub fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00:00"));
        let mut parts = date.splitn(3, '-');
        let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
        let mut parts = time.split('.').next()?.splitn(3, ':');
        let (hour, minute) = (parts.next()?, parts.next()?);
        let date = Self {
            year: year.parse().ok()?,
            month: month.parse().ok()?,
            day: day.parse().ok()?,
            hour: hour.parse().ok()?,
            minute: minute.parse().ok()?,
            second: parts.next().unwrap_or("0").parse().ok()?,
        };
        let valid = (1..=9999).contains(&date.year)
            && (1..=12).contains(&date.month)
            && (1..=date.days_in_month()).contains(&date.day)
            && date.hour < 24
            && date.minute < 60
            && date.second < 60;
        valid.then_some(date)
    }

    /// The date of a Unix time, in UTC.
    pub fn from_unix(seconds: i64) -> Self {
        let (mut days, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400) as u32);
        let mut date = Self {
            hour: (time / 3600) as u8,
            minute: (time / 60 % 60) as u8,
            second: (time % 60) as u8,
            ..Self::default()
        };
        while days < 0 {
            date.year -= 1;
            days += date.days_in_year();
        }
        while days >= date.days_in_year() {
            days -= date.days_in_year();
            date.year += 1;
        }
        while days >= i64::from(date.days_in_month()) {
            days -= i64::from(date.days_in_month());
            date.month += 1;
        }
        date.day = days as u8 + 1;
        date
    }

    fn is_leap(&self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    fn days_in_year(&self) -> i64 {
        if self.is_leap() { 366 } else { 365 }
    }

    fn days_in_month(&self) -> u8 {
        match self.month {
            2 if self.is_leap() => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// 1..=366.
    fn day_of_year(&self) -> u32 {
        let before = (1..self.month).map(|month| Self { month, ..*self }.days_in_month());
        before.map(u32::from).sum::<u32>() + u32::from(self.day)
    }

    /// 0 is Sunday (Sakamoto's method).
    fn weekday(&self) -> usize {
        let shift = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4][usize::from(self.month) - 1];
        let year = self.year - i32::from(self.month < 3);
        let day = year + year / 4 - year / 100 + year / 400 + shift + i32::from(self.day);
        day.rem_euclid(7) as usize
    }

    /// Python's `datetime.strftime` in the C locale. Unknown directives stay as they are.
    pub fn strftime(&self, format: &str) -> String {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                // `%-d` of glibc: no padding.
                Some('-') => match chars.next() {
                    Some(directive) => {
                        let text = self.directive(directive);
                        let trimmed = text.trim_start_matches(['0', ' ']);
                        out.push_str(if trimmed.is_empty() { "0" } else { trimmed });
                    }
                    None => out.push_str("%-"),
                },
                Some(directive) => out.push_str(&self.directive(directive)),
                None => out.push('%'),
            }
        }
        out
    }

    fn directive(&self, directive: char) -> String {
        let twelve = |hour: u8| (hour + 11) % 12 + 1;
        let (month, weekday) = (MONTHS[usize::from(self.month) - 1], DAYS[self.weekday()]);
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = match directive {
            'Y' => write!(out, "{:04}", self.year),
            'y' => write!(out, "{:02}", self.year % 100),
            'm' => write!(out, "{:02}", self.month),
            'd' => write!(out, "{:02}", self.day),
            'e' => write!(out, "{:2}", self.day),
            'B' => write!(out, "{month}"),
            'b' | 'h' => write!(out, "{}", &month[..3]),
            'A' => write!(out, "{weekday}"),
            'a' => write!(out, "{}", &weekday[..3]),
            'w' => write!(out, "{}", self.weekday()),
            'u' => write!(out, "{}", if self.weekday() == 0 { 7 } else { self.weekday() }),
            'j' => write!(out, "{:03}", self.day_of_year()),
            'H' => write!(out, "{:02}", self.hour),
            'I' => write!(out, "{:02}", twelve(self.hour)),
            'M' => write!(out, "{:02}", self.minute),
            'S' => write!(out, "{:02}", self.second),
            'f' => write!(out, "000000"),
            'p' => write!(out, "{}", if self.hour < 12 { "AM" } else { "PM" }),
            'F' => write!(out, "{}", self.strftime("%Y-%m-%d")),
            'T' | 'X' => write!(out, "{}", self.strftime("%H:%M:%S")),
            'R' => write!(out, "{}", self.strftime("%H:%M")),
            'D' | 'x' => write!(out, "{}", self.strftime("%m/%d/%y")),
            'c' => write!(out, "{}", self.strftime("%a %b %e %H:%M:%S %Y")),
            'n' => writeln!(out),
            't' => write!(out, "\t"),
            '%' => write!(out, "%"),
            // A naive datetime has no zone.
            'z' | 'Z' => Ok(()),
            other => write!(out, "%{other}"),
        };
        out
    }
}

#[cfg(test)]
mod tests {
    use super::RunDate;

    /// Expected values are Python's.
    #[test]
    fn strftime_is_pythons() {
        let date = RunDate::parse("2024-02-05T15:04:09").expect("a date");
        assert_eq!(date.strftime("%d %B %Y"), "05 February 2024");
        assert_eq!(date.strftime("%A, %b %-d %y %I:%M %p"), "Monday, Feb 5 24 03:04 PM");
        assert_eq!(date.strftime("%F|%j|%e|%c"), "2024-02-05|036| 5|Mon Feb  5 15:04:09 2024");
        assert_eq!(date.strftime("100%% %Q %"), "100% %Q %");
    }

    #[test]
    fn only_real_dates_are_read() {
        assert_eq!(RunDate::parse("2023-02-29"), None);
        assert_eq!(RunDate::parse("2024-13-01"), None);
        assert_eq!(RunDate::parse("tomorrow"), None);
        assert!(RunDate::parse("2024-02-29 23:59").is_some());
    }

    #[test]
    fn unix_times_are_utc_dates() {
        let text = |seconds| RunDate::from_unix(seconds).strftime("%F %T %a");
        assert_eq!(text(0), "1970-01-01 00:00:00 Thu");
        assert_eq!(text(1_709_251_199), "2024-02-29 23:59:59 Thu");
        assert_eq!(text(-1), "1969-12-31 23:59:59 Wed");
    }
}
