//! Scorers over finished rows, as pure functions of a row. Knows no model and no run;
//! what a whole output is worth is the command's (`commands/eval`).

mod asserts;
mod command;
mod criterion;
pub mod keeper;
pub mod row;
mod rubric;
pub mod scorers;
mod scoring;
pub mod settings;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
mod verdict;
mod work;

use std::sync::Arc;

use serde_json::{Map, Value};

pub use self::command::CommandError;
use self::command::CommandJudge;
use self::criterion::{Criterion, Scored, Test};
use self::row::JudgedRow;
use self::rubric::Rubric;
use self::scorers::words::Patterns;
use self::scoring::Text;
use self::settings::{Normalize, Settings, first_match};
pub use self::verdict::{NOT_JUDGED, Sample, Verdict};
use self::work::{TooMuch, Work};
use crate::input::fields::{JsonFields, Passthrough, json_string};

/// Fields that a judged row may get. An input's own field of such a name is kept as `input_<name>`.
pub const FIELDS: &[&str] =
    &["score", "passed", "scorer", "extracted", "scores", "errors", "samples", "reason"];

/// Scorer of the rows of a run, or of an output.
#[derive(Debug)]
pub struct Judge {
    settings: Settings,
    patterns: Arc<Patterns>,
    command: Option<CommandJudge>,
}

/// Why a finished row gets no verdict.
#[derive(Debug)]
pub enum JudgeError {
    /// It has not what the scorers need.
    Row(String),
    /// It is too much work: the names of the scorers, and for which.
    TooMuch(String, String),
    /// The program of the user's says none.
    Command(CommandError),
}

/// A completion, and whose it is.
struct Answer<'a> {
    text: &'a str,
    fields: &'a JsonFields,
    /// JSON.
    expected: Option<&'a str>,
    work: &'a Work,
}

impl Judge {
    /// A judge by the flags.
    pub fn new(settings: Settings) -> Self {
        let timeout = settings.command_timeout;
        let command = settings.command.clone().map(|program| CommandJudge::new(program, timeout));
        Self { settings, patterns: Arc::default(), command }
    }

    /// Everything that a verdict depends on besides the row and where its answer is.
    pub fn text(&self) -> String {
        Value::Object(self.described()).to_string()
    }

    /// The settings that change what a verdict means.
    pub fn described(&self) -> Map<String, Value> {
        self.settings.described()
    }

    /// The field of a row that holds the answer.
    pub fn out_field(&self) -> &str {
        &self.settings.out_field
    }

    /// Whether a row can be judged when it is answered.
    ///
    /// # Errors
    /// It has not what the scorers need.
    pub fn check(&self, passthrough: &Passthrough) -> Result<(), String> {
        let of_cells;
        let fields = match passthrough {
            Passthrough::Json(fields) => fields,
            Passthrough::Cells { names, cells } => {
                let cells: Vec<String> = cells.iter().map(|cell| json_string(cell)).collect();
                let pairs = names.iter().map(String::as_str).zip(cells.iter().map(String::as_str));
                of_cells = JsonFields::from_pairs(&pairs.collect::<Vec<_>>());
                &of_cells
            }
            Passthrough::Batch(_) => {
                return Err("a line of a batch API shows no expected answer".to_owned());
            }
        };
        self.rubric(&JudgedRow::of_input(fields)).map(drop)
    }

    /// Whether a finished row can be judged: false of an error row. A program is not asked.
    ///
    /// # Errors
    /// It has not what the scorers need.
    pub fn check_output(&self, fields: &JsonFields) -> Result<bool, String> {
        let row = JudgedRow::of_output(fields, &self.settings.out_field);
        if row.is_error() {
            return Ok(false);
        }
        let rubric = self.rubric(&row)?;
        let given = rubric.criteria.iter().filter(|criterion| !criterion.test.is_of_text());
        for criterion in given {
            criterion.test.score_row(&row)?;
        }
        Ok(true)
    }

    /// Judges a finished row, a JSON line, and puts the verdict at its end. An error row stays as
    /// it is.
    ///
    /// # Errors
    /// A program of the user's gives no verdict.
    pub fn append(&self, line: &mut Vec<u8>) -> Result<(), CommandError> {
        let Ok(text) = std::str::from_utf8(line) else { return Ok(()) };
        let Ok(fields) = JsonFields::parse(text.trim_end().to_owned(), 0) else { return Ok(()) };
        let verdict = match self.judge(&fields) {
            Ok(None) => return Ok(()),
            Ok(Some(verdict)) => verdict,
            Err(JudgeError::Row(reason)) => Verdict::none(String::new(), &reason),
            Err(JudgeError::TooMuch(scorer, reason)) => Verdict::none(scorer, &reason),
            Err(JudgeError::Command(error)) => return Err(error),
        };
        line.truncate(fields.text().len() - 1);
        verdict.append(line);
        line.extend_from_slice(b"}\n");
        Ok(())
    }

    /// Whether a program of the user's judges.
    pub fn has_program(&self) -> bool {
        self.command.is_some()
    }

    /// Ends the program of the user's: the run ends.
    pub fn stop(&self) {
        self.command.iter().for_each(CommandJudge::stop);
    }

    /// The verdict over a finished row; None of an error row.
    fn judge(&self, fields: &JsonFields) -> Result<Option<Verdict>, JudgeError> {
        let row = JudgedRow::of_output(fields, &self.settings.out_field);
        if row.is_error() {
            return Ok(None);
        }
        let rubric = self.rubric(&row).map_err(JudgeError::Row)?;
        let is_of_text = rubric.criteria.iter().all(|criterion| criterion.test.is_of_text());
        if !is_of_text {
            let scored = rubric.criteria.iter().map(|one| one.test.score_row(&row));
            let scored = scored.collect::<Result<Vec<_>, _>>().map_err(JudgeError::Row)?;
            return Ok(Some(Verdict::new(&rubric, vec![Sample::new(&rubric, &scored, None)])));
        }
        let name = row.expected_name(self.settings.expected_column.as_deref());
        let expected = name.and_then(|name| row.own_json(name));
        let samples = row.answers().into_iter().map(|text| {
            let answer = Answer { text: &text, fields, expected, work: &Work::default() };
            self.sample(&rubric, &answer)
        });
        let samples = samples.collect::<Result<Vec<_>, _>>()?;
        Ok(Some(Verdict::new(&rubric, samples)))
    }

    fn rubric(&self, row: &JudgedRow<'_>) -> Result<Rubric, String> {
        Rubric::of(row, &self.settings, &self.patterns)
    }

    /// The worth of one completion.
    fn sample(&self, rubric: &Rubric, answer: &Answer<'_>) -> Result<Sample, JudgeError> {
        let failed = |name: &str, TooMuch(reason): TooMuch| {
            JudgeError::TooMuch(rubric.names(), format!("{name}: {reason}"))
        };
        let extracted = match &self.settings.extract {
            Some(pattern) => Some(
                first_match(pattern, answer.text).map_err(|error| failed("--extract", error))?,
            ),
            None => None,
        };
        let text = match &extracted {
            None => Some(answer.text),
            Some(found) => *found,
        };
        let normalize = self.settings.normalize.unwrap_or_default();
        let score = |criterion: &Criterion| match (text, &criterion.test) {
            (Some(text), Test::Command) => self.asked(text, answer).map_err(JudgeError::Command),
            (Some(text), test) => {
                let normalize = match self.settings.normalize {
                    None if criterion.is_assert => Normalize::None,
                    _ => normalize,
                };
                let text = Text { text, normalize, patterns: &self.patterns, work: answer.work };
                test.score(text).map_err(|error| failed(&criterion.name, error))
            }
            // Nothing was found that could be right.
            (None, _) => Ok(Scored { passed: Some(false), ..Scored::default() }),
        };
        let mut scored = rubric.criteria.iter().map(score).collect::<Result<Vec<_>, _>>()?;
        if let (Some(found), Some(first)) = (extracted, scored.first_mut()) {
            first.extracted.get_or_insert(found.map(str::to_owned));
        }
        let vote = self.patterns.normalized(text.unwrap_or_default(), normalize);
        Ok(Sample::new(rubric, &scored, Some(vote)))
    }

    /// Verdict of the user's program on an answer. It gets the row as it is written.
    fn asked(&self, text: &str, answer: &Answer<'_>) -> Result<Scored, CommandError> {
        let Some(command) = &self.command else {
            return Err(CommandError::Failed("--scorer command has no program".to_owned()));
        };
        let (text, expected) = (json_string(text), answer.expected.unwrap_or("null"));
        let row = answer.fields.text().trim_end();
        command.ask(format!("{{\"answer\":{text},\"expected\":{expected},\"row\":{row}}}\n"))
    }
}
