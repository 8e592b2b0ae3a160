//! Values that JSON has no type for, as text and back: dates and times as RFC 3339 has them,
//! decimals with all their digits, UUIDs, intervals as ISO 8601 has them.

use super::schema::Clock;

const SECONDS_OF_DAY: i64 = 86_400;

/// A date. Years outside of 0 to 9999 have a sign.
pub fn date(days: i64) -> String {
    let (year, month, day) = civil(days);
    match year {
        0..=9999 => format!("{year:04}-{month:02}-{day:02}"),
        _ => format!("{year:+05}-{month:02}-{day:02}"),
    }
}

/// A time of day, `count` units after midnight; None if it is none.
pub fn time(count: i64, clock: Clock) -> Option<String> {
    let of_day = 0..clock.per_second * SECONDS_OF_DAY;
    of_day.contains(&count).then(|| time_text(count, clock))
}

/// A time of any day, `count` units after 1970 began.
pub fn timestamp(count: i64, clock: Clock) -> String {
    let of_day = clock.per_second * SECONDS_OF_DAY;
    let (days, count) = (count.div_euclid(of_day), count.rem_euclid(of_day));
    format!("{}T{}", date(days), time_text(count, clock))
}

fn time_text(count: i64, clock: Clock) -> String {
    let (seconds, fraction) = (count / clock.per_second, count % clock.per_second);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = format!("{hour:02}:{minute:02}:{second:02}");
    if fraction > 0 {
        let width = digits(clock.per_second);
        let fraction = format!("{fraction:0width$}");
        text = text + "." + fraction.trim_end_matches('0');
    }
    if clock.is_utc { text + "Z" } else { text }
}

/// Digits of a fraction of a second.
fn digits(per_second: i64) -> usize {
    per_second.ilog10() as usize
}

/// Days since 1970 to a date of the Gregorian calendar, which is taken back before its time.
/// (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".)
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The days of what `date` wrote.
pub fn parse_date(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut parts = digits.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let days = days_of(sign * year, month, day);
    (date(days) == text).then_some(days)
}

/// The units of what `time` wrote.
pub fn parse_time(text: &str, clock: Clock) -> Option<i64> {
    let plain = text.strip_suffix('Z').unwrap_or(text);
    let (whole, fraction) = plain.split_once('.').unwrap_or((plain, ""));
    let mut parts = whole.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let width = digits(clock.per_second);
    let fraction: i64 = format!("{fraction:0<width$}").parse().ok()?;
    let seconds = hour.checked_mul(3600)?.checked_add(minute.checked_mul(60)?)?;
    let count = seconds.checked_add(second)?.checked_mul(clock.per_second)?;
    let count = count.checked_add(fraction)?;
    (time(count, clock)? == text).then_some(count)
}

/// The units of what `timestamp` wrote.
pub fn parse_timestamp(text: &str, clock: Clock) -> Option<i64> {
    let (days, time) = text.split_once('T')?;
    let of_day = i128::from(clock.per_second * SECONDS_OF_DAY);
    let count = i128::from(parse_date(days)?) * of_day + i128::from(parse_time(time, clock)?);
    i64::try_from(count).ok()
}

/// A decimal, of its digits as an integer in two's complement, the highest byte first.
pub fn decimal(bytes: &[u8], scale: i32) -> String {
    let is_negative = bytes.first().is_some_and(|byte| *byte >= 0x80);
    let mut magnitude = bytes.to_vec();
    if is_negative {
        let mut carry = true;
        for byte in magnitude.iter_mut().rev() {
            (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
        }
    }
    let mut digits = Vec::new();
    while magnitude.iter().any(|byte| *byte != 0) {
        let mut rest = 0u32;
        for byte in &mut magnitude {
            let value = rest << 8 | u32::from(*byte);
            (*byte, rest) = ((value / 10) as u8, value % 10);
        }
        digits.push(b'0' + rest as u8);
    }
    let scale = usize::try_from(scale).unwrap_or(0);
    while digits.len() <= scale {
        digits.push(b'0');
    }
    digits.reverse();
    let mut text = String::from_utf8(digits).expect("digits");
    if scale > 0 {
        text.insert(text.len() - scale, '.');
    }
    if is_negative { format!("-{text}") } else { text }
}

/// The integer of what `decimal` wrote, in so many bytes.
pub fn parse_decimal(text: &str, scale: i32, num_bytes: usize) -> Option<Vec<u8>> {
    let (is_negative, plain) = match text.strip_prefix('-') {
        Some(plain) => (true, plain),
        None => (false, text),
    };
    let (whole, fraction) = plain.split_once('.').unwrap_or((plain, ""));
    if fraction.len() != usize::try_from(scale).unwrap_or(0) {
        return None;
    }
    let mut bytes = vec![0u8; num_bytes];
    for digit in whole.bytes().chain(fraction.bytes()) {
        let mut carry = u32::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        for byte in bytes.iter_mut().rev() {
            let value = u32::from(*byte) * 10 + carry;
            (*byte, carry) = (value as u8, value >> 8);
        }
        if carry > 0 {
            return None;
        }
    }
    if is_negative {
        let mut carry = true;
        for byte in bytes.iter_mut().rev() {
            (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
        }
    }
    (decimal(&bytes, scale) == text).then_some(bytes)
}

/// A UUID.
pub fn uuid(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

/// The bytes of what `uuid` wrote.
pub fn parse_uuid(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    let bytes: Vec<u8> =
        digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
    (bytes.len() == 16 && uuid(&bytes) == text).then_some(bytes)
}

/// An interval: months, days and milliseconds, in four bytes each.
pub fn interval(bytes: &[u8]) -> String {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let (months, days, millis) = (number(0), number(4), number(8));
    format!("P{months}M{days}DT{}.{:03}S", millis / 1000, millis % 1000)
}

/// The bytes of what `interval` wrote.
pub fn parse_interval(text: &str) -> Option<Vec<u8>> {
    let (months, rest) = text.strip_prefix('P')?.split_once('M')?;
    let (days, rest) = rest.split_once("DT")?;
    let (seconds, millis) = rest.strip_suffix('S')?.split_once('.')?;
    let seconds: u32 = seconds.parse().ok()?;
    let millis = seconds.checked_mul(1000)?.checked_add(millis.parse().ok()?)?;
    let numbers = [months.parse::<u32>().ok()?, days.parse::<u32>().ok()?, millis];
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    (interval(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROS: Clock = Clock { per_second: 1_000_000, is_utc: true };
    const NANOS: Clock = Clock { per_second: 1_000_000_000, is_utc: false };

    #[test]
    fn dates_and_times_are_those_of_the_calendar_and_come_back() {
        for (days, text) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (19_782, "2024-02-29"),
            (-719_528, "0000-01-01"),
            (-719_529, "-0001-12-31"),
            (2_932_896, "9999-12-31"),
            (2_932_897, "+10000-01-01"),
        ] {
            assert_eq!((date(days), parse_date(text)), (text.to_owned(), Some(days)));
        }
        for days in [i64::from(i32::MIN), i64::from(i32::MAX), 11_016, 11_017, -25_567] {
            assert_eq!(parse_date(&date(days)), Some(days));
        }
        let last = SECONDS_OF_DAY * 1_000_000 - 1;
        assert_eq!(time(last, MICROS).unwrap(), "23:59:59.999999Z");
        assert_eq!((time(last + 1, MICROS), time(-1, MICROS)), (None, None));
        assert_eq!(timestamp(1_700_000_000_500_000, MICROS), "2023-11-14T22:13:20.5Z");
        assert_eq!(timestamp(-1, NANOS), "1969-12-31T23:59:59.999999999");
        for count in [0, 1, -1, last, i64::MAX, i64::MIN, 1_700_000_000_500_000] {
            for clock in [MICROS, NANOS, Clock { per_second: 1000, is_utc: true }] {
                assert_eq!(parse_timestamp(&timestamp(count, clock), clock), Some(count));
            }
        }
        for text in ["1970-1-1", "1970-02-30", "x", "", "1970-01-01T"] {
            assert_eq!((parse_date(text), parse_timestamp(text, MICROS)), (None, None), "{text}");
        }
        assert_eq!(parse_time("00:00:00.1234567Z", MICROS), None, "a digit too many");
    }

    #[test]
    fn decimals_keep_every_digit() {
        for (unscaled, scale, text) in [
            (0i128, 2, "0.00"),
            (-1, 2, "-0.01"),
            (1230, 2, "12.30"),
            (i128::from(i64::MIN), 0, "-9223372036854775808"),
            (10i128.pow(37) + 1, 30, "10000000.000000000000000000000000000001"),
        ] {
            assert_eq!(decimal(&unscaled.to_be_bytes(), scale), text);
            let found = parse_decimal(text, scale, 16).unwrap();
            assert_eq!(i128::from_be_bytes(found.try_into().unwrap()), unscaled);
        }
        let wide = decimal(&[&[0x7f][..], &[0xff; 31]].concat(), 0);
        assert_eq!(wide.len(), 77);
        assert_eq!(parse_decimal(&wide, 0, 32).unwrap()[0], 0x7f);
        for (text, bytes) in [("1.2", 16), ("1.234", 16), ("655.36", 2), ("x.xx", 16), ("", 16)] {
            assert_eq!(parse_decimal(text, 2, bytes), None, "{text}");
        }
    }

    #[test]
    fn bytes_come_back() {
        let bytes: Vec<u8> = (0..16).map(|byte| byte * 17).collect();
        assert_eq!(uuid(&bytes), "00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(parse_uuid(&uuid(&bytes)), Some(bytes));
        let bytes = [[1, 0, 0, 0], [2, 0, 0, 0], [0x39, 0x30, 0, 0]].concat();
        assert_eq!(interval(&bytes), "P1M2DT12.345S");
        assert_eq!(parse_interval("P1M2DT12.345S"), Some(bytes));
    }
}
