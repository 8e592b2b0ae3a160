//! Subtitles of transcripts: SRT and WebVTT, by the ending of a file's name.

use std::fmt::Write;

use serde_json::Value;

/// How a file's text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextForm {
    /// As it is.
    Plain,
    /// `.srt`
    Srt,
    /// `.vtt`
    Vtt,
}

/// A piece of a transcript, in milliseconds of its recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cue {
    start: u64,
    end: u64,
    text: String,
}

impl TextForm {
    /// By the ending of `--to`.
    pub(super) fn of(template: &str) -> Self {
        let ends = |ending: &str| template.to_ascii_lowercase().ends_with(ending);
        match (ends(".srt"), ends(".vtt")) {
            (true, _) => Self::Srt,
            (_, true) => Self::Vtt,
            _ => Self::Plain,
        }
    }

    /// What a file begins with.
    pub(super) fn head(self) -> &'static str {
        match self {
            Self::Plain | Self::Srt => "",
            Self::Vtt => "WEBVTT\n\n",
        }
    }

    /// Appends a cue, which is the file's of this number, from 1 on.
    pub(super) fn push(self, number: usize, cue: &Cue, out: &mut String) {
        let time = |time| self.time(time);
        let (start, end) = (time(cue.start), time(cue.end));
        if self == Self::Srt {
            let _ = writeln!(out, "{number}");
        }
        let _ = writeln!(out, "{start} --> {end}\n{}\n", cue.text);
    }

    fn time(self, milliseconds: u64) -> String {
        let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        let (hours, minutes) = (minutes / 60, minutes % 60);
        let point = if self == Self::Srt { ',' } else { '.' };
        format!("{hours:02}:{minutes:02}:{seconds:02}{point}{rest:03}")
    }
}

/// The cues of a row's `segments`, which begin at its `start`. None: it has no such list.
pub(super) fn cues(value: impl Fn(&str) -> Option<Value>) -> Option<Vec<Cue>> {
    let milliseconds = |value: &Value| {
        let seconds = value.as_f64().filter(|seconds| (0.0..1e9).contains(seconds))?;
        Some((seconds * 1000.0).round() as u64)
    };
    let first = value("start").as_ref().and_then(milliseconds).unwrap_or(0);
    let is_silent = value("response").is_some_and(|text| text == "");
    let segments = match value("segments") {
        Some(Value::Array(segments)) => segments,
        None if is_silent => Vec::new(),
        _ => return None,
    };
    let mut cues: Vec<Cue> = Vec::with_capacity(segments.len());
    for segment in &segments {
        let start = first + milliseconds(&segment["start"])?;
        // A piece that was cut has no end.
        let end = milliseconds(&segment["end"]).map_or(start, |end| first + end);
        // An empty line would end the cue.
        let text = segment["text"].as_str()?.split_whitespace().collect::<Vec<_>>().join(" ");
        cues.push(Cue { start, end, text });
    }
    Some(cues)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cues_are_numbered_and_begin_where_their_row_does() {
        let row = json!({"start": 3600.5, "response": "It was. It is.", "segments": [
            {"start": 0.0, "end": 2.46, "text": "It\n\nwas."},
            {"start": 2.5, "end": null, "text": "It is."}]});
        let cues = cues(|name| row.get(name).cloned()).unwrap();
        let written = |form: TextForm| {
            let mut out = form.head().to_owned();
            (7..).zip(&cues).for_each(|(number, cue)| form.push(number, cue, &mut out));
            out
        };
        assert_eq!(
            written(TextForm::of("a/{name}.SRT")),
            "7\n01:00:00,500 --> 01:00:02,960\nIt was.\n\n\
             8\n01:00:03,000 --> 01:00:03,000\nIt is.\n\n"
        );
        assert_eq!(
            written(TextForm::of("{file}.vtt")),
            "WEBVTT\n\n01:00:00.500 --> 01:00:02.960\nIt was.\n\n\
             01:00:03.000 --> 01:00:03.000\nIt is.\n\n"
        );
        assert_eq!(TextForm::of("{file}.md"), TextForm::Plain);
    }

    #[test]
    fn a_row_without_times_has_no_cues_unless_nothing_is_said() {
        let of = |row: Value| cues(|name| row.get(name).cloned());
        assert_eq!(of(json!({"response": "It was."})), None);
        assert_eq!(of(json!({"response": ""})), Some(Vec::new()));
        assert_eq!(of(json!({"response": "a", "segments": [{"start": -1, "text": "a"}]})), None);
    }
}
