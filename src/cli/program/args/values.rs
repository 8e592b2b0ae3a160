//! Values on the command line: numbers with units, ranges with vLLM's messages.

use vllm_batch_dataset::input::reader::is_delimiter;

/// Parses a count: `8192`, `8k` (8000), `8K` (8192), `1.5M`, as vLLM's `human_readable_int`.
///
/// # Errors
/// Not a number, a negative one, an unknown unit, or one that is no whole number.
pub fn count(text: &str) -> Result<usize, String> {
    let expected = "a number such as 8192, 8k, 8K or 1.5m";
    let value = scaled(text, &[("k", 1e3), ("m", 1e6), ("g", 1e9)], &BINARY, expected)?;
    usize::try_from(value).map_err(|_| "too large".to_owned())
}

/// Parses a count of at least one.
///
/// # Errors
/// As `count`, or zero.
pub fn positive(text: &str) -> Result<usize, String> {
    match count(text)? {
        0 => Err("must be at least 1, got 0.".to_owned()),
        value => Ok(value),
    }
}

/// Most media of a row, by their kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaLimits {
    /// Images.
    pub images: Option<usize>,
    /// Recordings.
    pub sounds: Option<usize>,
}

/// Parses the most media of a row, as vLLM writes it: `{"image": 4, "audio": 1}`.
///
/// # Errors
/// Another form. Limits of videos pass: rows have none.
pub fn media_limits(text: &str) -> Result<MediaLimits, String> {
    let wrong = || "expected JSON such as {\"image\": 4}".to_owned();
    let limits: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|_| wrong())?;
    let mut most = MediaLimits::default();
    for (name, limit) in &limits {
        // vLLM's longer form also says sizes, for its estimate of memory.
        let sizes = ["width", "height"].into_iter().find(|size| limit.get(size).is_some());
        if let Some(size) = sizes {
            return Err(format!("`{size}`: not supported; give the count alone"));
        }
        let count = limit.get("count").unwrap_or(limit).as_u64().ok_or_else(wrong)?;
        let count = usize::try_from(count).map_err(|_| wrong())?;
        match name.as_str() {
            "image" => most.images = Some(count),
            "audio" => most.sounds = Some(count),
            "video" => {}
            _ => return Err(format!("`{name}`: no such kind of media: image, video, audio")),
        }
    }
    Ok(most)
}

/// Parses the largest rank of an adapter.
///
/// # Errors
/// As `count`, or not 1 to 512.
pub fn lora_rank(text: &str) -> Result<usize, String> {
    match count(text)? {
        rank @ 1..=512 => Ok(rank),
        other => Err(format!("must be 1 to 512, got {other}.")),
    }
}

/// Parses a count of at least one that fits 32 bits.
///
/// # Errors
/// As `positive`, or too large.
pub fn positive_u32(text: &str) -> Result<u32, String> {
    u32::try_from(positive(text)?).map_err(|_| "too large".to_owned())
}

/// Parses a count that fits 32 bits.
///
/// # Errors
/// As `count`, or too large.
pub fn count_u32(text: &str) -> Result<u32, String> {
    u32::try_from(count(text)?).map_err(|_| "too large".to_owned())
}

/// Parses what separates the cells of a table.
///
/// # Errors
/// It is not one character that may.
pub fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [byte] if is_delimiter(*byte) => Ok(*byte),
        _ if text.eq_ignore_ascii_case("tab") => Ok(b'\t'),
        _ => Err("expected one character, as , ; | or tab: no letter, digit or quote".to_owned()),
    }
}

/// Parses a seed. vLLM's -1 stands for none; here equal commands give equal bytes.
///
/// # Errors
/// Not a whole number, or a negative one.
pub fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| match text.parse::<i64>() {
        Ok(negative) => format!("must be at least 0, got {negative}. A run always has a seed"),
        Err(_) => format!("expected a whole number from 0 to {}", u64::MAX),
    })
}

/// Parses a count, or vLLM's -1 for "all".
///
/// # Errors
/// Neither of them.
pub fn or_minus_one(text: &str) -> Result<i64, String> {
    match text {
        "-1" => Ok(-1),
        _ => match u32::try_from(count(text)?) {
            Ok(value) => Ok(value.into()),
            Err(_) => Err("too large".to_owned()),
        },
    }
}

/// Parses a number of bytes: `4GiB`, `512M` (binary), `4g` or `4GB` (decimal), plain bytes.
///
/// # Errors
/// As `count`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let value = text.strip_suffix('B').unwrap_or(text);
    // `GB` is decimal, `GiB` and vLLM's bare `G` are binary.
    let decimal = [("k", 1e3), ("m", 1e6), ("g", 1e9), ("t", 1e12)];
    let expected = "bytes such as 4GiB or 512M";
    match value.strip_suffix('i') {
        Some(binary) => scaled(binary, &[], &BINARY, expected),
        None if value.len() < text.len() => scaled(&value.to_lowercase(), &decimal, &[], expected),
        None => scaled(value, &decimal, &BINARY, expected),
    }
}

const KIB: f64 = 1024.0;
const BINARY: [(&str, f64); 4] =
    [("K", KIB), ("M", KIB * KIB), ("G", KIB * KIB * KIB), ("T", KIB * KIB * KIB * KIB)];

fn scaled(
    text: &str,
    decimal: &[(&str, f64)],
    binary: &[(&str, f64)],
    expected: &str,
) -> Result<u64, String> {
    if let Ok(value) = text.parse::<u64>() {
        return Ok(value);
    }
    let units = decimal.iter().chain(binary);
    let found = units.filter_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale))).next();
    let Some((digits, scale)) = found else {
        return Err(format!("expected {expected}"));
    };
    let number: f64 = digits.trim().parse().map_err(|_| format!("`{digits}` is not a number"))?;
    let value = number * scale;
    if !(0.0..=9e15).contains(&value) {
        return Err("out of range".to_owned());
    }
    if value.fract() != 0.0 {
        return Err(format!("{value} is not a whole number"));
    }
    Ok(value as u64)
}

fn number(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err("must be a finite number".to_owned()),
        Err(_) => Err("expected a number".to_owned()),
    }
}

fn check(text: &str, holds: fn(f32) -> bool, rule: &str) -> Result<f32, String> {
    let value = number(text)?;
    if holds(value) { Ok(value) } else { Err(format!("{rule}, got {value}.")) }
}

/// `length_penalty`: any number.
///
/// # Errors
/// No finite number.
pub fn length_penalty(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|_| "expected a number".to_owned())?;
    if value.is_finite() { Ok(value) } else { Err("must be a finite number".to_owned()) }
}

/// `temperature`: [0, 2].
///
/// # Errors
/// Out of range.
pub fn temperature(text: &str) -> Result<f32, String> {
    check(text, |v| (0.0..=2.0).contains(&v), "temperature must be in [0, 2]")
}

/// `top_p`: (0, 1].
///
/// # Errors
/// Out of range.
pub fn top_p(text: &str) -> Result<f32, String> {
    check(text, |v| v > 0.0 && v <= 1.0, "top_p must be in (0, 1]")
}

/// `min_p`: [0, 1].
///
/// # Errors
/// Out of range.
pub fn min_p(text: &str) -> Result<f32, String> {
    check(text, |v| (0.0..=1.0).contains(&v), "min_p must be in [0, 1]")
}

/// A presence or frequency penalty: [-2, 2].
///
/// # Errors
/// Out of range.
pub fn penalty(text: &str) -> Result<f32, String> {
    check(text, |v| (-2.0..=2.0).contains(&v), "must be in [-2, 2]")
}

/// `repetition_penalty`: > 0.
///
/// # Errors
/// Out of range.
pub fn repetition_penalty(text: &str) -> Result<f32, String> {
    check(text, |v| v > 0.0, "repetition_penalty must be greater than zero")
}

/// A share of a whole: (0, 1].
///
/// # Errors
/// Out of range.
pub fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if value > 0.0 && value <= 1.0 => Ok(value),
        _ => Err(format!("must be in (0, 1], got {text}.")),
    }
}

/// A share that varies a length: [0, 1).
///
/// # Errors
/// Out of range.
pub fn ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..1.0).contains(&value) => Ok(value),
        _ => Err("must be a number in [0, 1)".to_owned()),
    }
}

/// A rate: > 0.
///
/// # Errors
/// Out of range.
pub fn positive_number(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("must be a number greater than zero".to_owned()),
    }
}

/// A size: >= 0.
///
/// # Errors
/// Out of range.
pub fn size(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("must be a number, zero or more".to_owned()),
    }
}

/// `TOKEN_ID=BIAS`.
///
/// # Errors
/// Another form.
pub fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once(['=', ':']).ok_or("expected TOKEN_ID=BIAS, e.g. 15=-100")?;
    let id = id.trim().parse().map_err(|_| format!("`{id}` is not a token id"))?;
    Ok((id, number(bias.trim())?))
}

/// `--max-errors`: a number of rows, or a share of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MaxErrors {
    /// Stop after more than this many error rows.
    Rows(u64),
    /// Stop when more than this share of the finished rows are error rows, [0, 1].
    Share(f64),
}

/// `N` or `P%`.
///
/// # Errors
/// Neither form.
pub fn max_errors(text: &str) -> Result<MaxErrors, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return count(text).map(|rows| MaxErrors::Rows(rows as u64));
    };
    match percent.trim().parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(MaxErrors::Share(value / 100.0)),
        _ => Err("expected a number of rows, or a percentage such as 1%".to_owned()),
    }
}

/// A part of a whole: `1%` or `0.01`.
///
/// # Errors
/// It is no number between 0 and 1.
pub fn percentage(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    let share = share.ok().filter(|share| (0.0..=1.0).contains(share));
    let share = share.ok_or_else(|| "expected a share such as 1% or 0.01".to_owned())?;
    // Who writes 1 means 1 %, and a share of all fails no gate.
    match share == 1.0 && !text.ends_with('%') {
        true => Err("1 is all of it; write 1% or 100%".to_owned()),
        false => Ok(share),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_vllms_units() {
        for (text, value) in
            [("8192", 8192), ("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("1m", 1_000_000)]
        {
            assert_eq!(count(text), Ok(value), "{text}");
        }
        for text in ["", "k", "-1", "1.0001k", "8x", "1e3", "nan", "infk", "99999999999999999999k"]
        {
            assert!(count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn minus_one_stands_for_all() {
        assert_eq!([or_minus_one("-1"), or_minus_one("5")], [Ok(-1), Ok(5)]);
        assert!(or_minus_one("-2").is_err() && or_minus_one("5g").is_err());
    }

    #[test]
    fn bytes_know_decimal_and_binary_units() {
        for (text, value) in [
            ("1024", 1024),
            ("4GiB", 4 << 30),
            ("4G", 4 << 30),
            ("4g", 4_000_000_000),
            ("4GB", 4_000_000_000),
            ("512MiB", 512 << 20),
            ("1.5KiB", 1536),
        ] {
            assert_eq!(bytes(text), Ok(value), "{text}");
        }
        assert!(bytes("4XiB").is_err() && bytes("GiB").is_err());
        assert_eq!(bytes("4Gib"), Err("expected bytes such as 4GiB or 512M".to_owned()));
    }

    #[test]
    fn error_limits_are_rows_or_percent() {
        assert_eq!(max_errors("10"), Ok(MaxErrors::Rows(10)));
        assert_eq!(max_errors("2.5%"), Ok(MaxErrors::Share(0.025)));
        assert!(max_errors("101%").is_err() && max_errors("ten").is_err());
    }

    #[test]
    fn shares_are_percent_or_numbers() {
        assert_eq!(
            (percentage("1%"), percentage("0.25"), percentage("0")),
            (Ok(0.01), Ok(0.25), Ok(0.0))
        );
        assert_eq!(percentage("100%"), Ok(1.0));
        assert!(["101%", "-1%", "a", "1", "1.0"].into_iter().all(|text| percentage(text).is_err()));
    }

    #[test]
    fn biases_are_pairs() {
        assert_eq!(logit_bias("15=-100"), Ok((15, -100.0)));
        assert!(logit_bias("15").is_err() && logit_bias("x=1").is_err());
        assert!(logit_bias("1=inf").is_err());
    }
}
