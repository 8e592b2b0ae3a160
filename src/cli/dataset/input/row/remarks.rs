//! `Remarks`: what is said of rows once, at the first that gives cause, and how many it held for.

use std::fmt;

/// Different remarks that are said; an input with more has another problem.
const MAX_REMARKS: usize = 32;

/// Something about a row that its user may not expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remark {
    /// The last answer of a chat is not sent.
    DroppedAnswer,
    /// A field is almost named like a parameter.
    NearMiss { name: String, meant: &'static str },
    /// A field of a request has no effect on its answer.
    NoEffect { name: String },
    /// A field of a request wins over a flag that was typed.
    Overrules { name: String, flag: String },
    /// It has another shape than the first row.
    OtherShape { shape: String, treatment: &'static str },
}

/// Remarks with the number of rows that gave cause, in the order of their first row.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    counts: Vec<(Remark, u64)>,
    new: Vec<String>,
}

impl Remarks {
    /// A row gave cause.
    pub(super) fn add(&mut self, remark: Remark, line: u64) {
        if let Some((_, count)) = self.counts.iter_mut().find(|(known, _)| *known == remark) {
            *count += 1;
        } else if self.counts.len() < MAX_REMARKS {
            self.new.push(format!("line {line}: {remark}"));
            self.counts.push((remark, 1));
        }
    }

    /// Something about all rows, or about fields that the caller counts.
    pub(super) fn say(&mut self, text: String) {
        self.new.push(text);
    }

    /// New remarks since the last call.
    pub(super) fn take_new(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new)
    }

    /// At the end: how many rows each remark held for, where it was more than the first.
    pub(super) fn totals(&self) -> Vec<String> {
        let repeated = self.counts.iter().filter(|(_, count)| *count > 1);
        repeated.map(|(remark, count)| format!("{count} rows {}", remark.of_many())).collect()
    }
}

impl Remark {
    fn of_many(&self) -> String {
        match self {
            Remark::DroppedAnswer => "end with an answer, which was not sent".to_owned(),
            Remark::NearMiss { name, meant } => format!("have `{name}`; did you mean `{meant}`?"),
            Remark::NoEffect { name } => format!("have `{name}`, which changes nothing"),
            Remark::Overrules { name, flag } => format!("have `{name}`, which is over {flag}"),
            Remark::OtherShape { shape, treatment } => {
                format!("are {shape}, {treatment}, unlike the first")
            }
        }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::DroppedAnswer => f.write_str(
                "the chat ends with the assistant's answer, which is not sent; --last-assistant \
                 continue goes on from it",
            ),
            Remark::NearMiss { name, meant } => {
                write!(f, "`{name}` is no parameter and passes through; did you mean `{meant}`?")
            }
            Remark::NoEffect { name } => {
                write!(f, "`{name}` of the request changes nothing in its answer")
            }
            Remark::Overrules { name, flag } => {
                write!(f, "`{name}` of the request is over {flag}")
            }
            Remark::OtherShape { shape, treatment } => {
                write!(f, "the row is one of {shape}, unlike the first; such rows are {treatment}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remark_is_said_once_and_counted() {
        let mut remarks = Remarks::default();
        remarks.add(Remark::DroppedAnswer, 3);
        assert_eq!(remarks.take_new().len(), 1);
        assert!(remarks.totals().is_empty());
        remarks.add(Remark::DroppedAnswer, 4);
        assert!(remarks.take_new().is_empty());
        assert_eq!(remarks.totals(), ["2 rows end with an answer, which was not sent"]);
        for number in 0..100 {
            remarks.add(Remark::NearMiss { name: format!("top-p{number}"), meant: "top_p" }, 5);
        }
        assert_eq!(remarks.take_new().len(), MAX_REMARKS - 1);
    }
}
