//! Transcripts: the pieces of a text between timestamps, as Whisper writes them:
//! `<|0.00|> Hello.<|1.24|>`.

/// A piece of a transcript.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins, in hundredths of a second.
    pub start: u32,
    /// Where it ends; None: the answer was cut before it said so.
    pub end: Option<u32>,
    /// What is said, without space around it.
    pub text: String,
}

/// The pieces of a text, none of which is empty; no piece where it has no timestamps.
pub(super) fn segments(text: &str) -> Vec<Segment> {
    let mut found: Vec<Segment> = Vec::new();
    let mut start = None;
    let mut rest = text;
    while let Some((before, time, behind)) = next_time(rest) {
        match before.trim() {
            "" => start = Some(time),
            said => {
                let begin = start.take().unwrap_or_else(|| end_of(&found));
                found.push(Segment { start: begin, end: Some(time), text: said.to_owned() });
            }
        }
        rest = behind;
    }
    let said = rest.trim();
    if !said.is_empty() && rest.len() < text.len() {
        let start = start.unwrap_or_else(|| end_of(&found));
        found.push(Segment { start, end: None, text: said.to_owned() });
    }
    found
}

/// A text without timestamps, without space around it.
pub(super) fn without_times(text: &str) -> String {
    let mut said = String::new();
    let mut rest = text;
    while let Some((before, _, behind)) = next_time(rest) {
        said.push_str(before);
        rest = behind;
    }
    said.push_str(rest);
    said.trim().to_owned()
}

fn end_of(found: &[Segment]) -> u32 {
    found.last().map_or(0, |last| last.end.unwrap_or(last.start))
}

/// What is before the next timestamp, that, and what is behind it.
fn next_time(text: &str) -> Option<(&str, u32, &str)> {
    let mut from = 0;
    while let Some(at) = text[from..].find("<|").map(|at| from + at) {
        let inner = &text[at + 2..];
        let end = inner.find("|>")?;
        if let Some(time) = time_of(&inner[..end]) {
            return Some((&text[..at], time, &inner[end + 2..]));
        }
        from = at + 2;
    }
    None
}

/// Hundredths of `12.34`.
fn time_of(text: &str) -> Option<u32> {
    let (seconds, hundredths) = text.split_once('.')?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if hundredths.len() != 2 || !is_number(hundredths) || !is_number(seconds) {
        return None;
    }
    let [seconds, hundredths] = [seconds, hundredths].map(|text| text.parse::<u32>().ok());
    seconds?.checked_mul(100)?.checked_add(hundredths?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_between_pairs_of_timestamps() {
        let of = |text: &str| {
            let all = segments(text).into_iter();
            all.map(|piece| (piece.start, piece.end, piece.text)).collect::<Vec<_>>()
        };
        let text = "<|0.00|> It was.<|2.46|><|2.50|> It is.<|10.00|>";
        let (was, is) = ("It was.".to_owned(), "It is.".to_owned());
        assert_eq!(of(text), [(0, Some(246), was.clone()), (250, Some(1000), is.clone())]);
        assert_eq!(without_times(text), "It was. It is.");
        // Cut, with one timestamp alone between, and with what is no timestamp.
        assert_eq!(of("<|1.00|> It was."), [(100, None, was.clone())]);
        assert_eq!(of("<|0.02|> It was.<|2.00|> It is."), [(2, Some(200), was), (200, None, is)]);
        assert_eq!(of(" It <|en|> was."), []);
        assert_eq!(without_times(" It <|en|> was. "), "It <|en|> was.");
        assert_eq!(of("<|0.00|> <|2.00|>"), []);
    }
}
