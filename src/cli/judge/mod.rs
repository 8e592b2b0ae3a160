//! Who judges: scorers over finished rows, as pure functions of a row. Knows no model and no run;
//! what a whole output is worth is the command's (`commands/eval`).

mod asserts;
mod criterion;
pub mod row;
mod rubric;
pub mod scorers;
pub mod settings;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
mod verdict;

use std::sync::Arc;

use self::criterion::Scored;
use self::row::JudgedRow;
use self::rubric::Rubric;
use self::scorers::words::Patterns;
use self::settings::Settings;
pub use self::verdict::{Sample, Verdict};
use super::input::fields::{JsonFields, Passthrough, json_string};

/// Fields that a judged row may get. An input's own field of such a name is kept as `input_<name>`.
pub const FIELDS: &[&str] =
    &["score", "passed", "scorer", "extracted", "scores", "samples", "reason"];

/// What judges the rows of a run, or of an output.
#[derive(Debug)]
pub struct Judge {
    settings: Settings,
    patterns: Arc<Patterns>,
}

impl Judge {
    /// A judge by the flags.
    pub fn new(settings: Settings) -> Self {
        Self { settings, patterns: Arc::default() }
    }

    /// Everything that a verdict depends on besides the row.
    pub fn text(&self) -> String {
        format!("{:?}", self.settings)
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

    /// Judges a finished row, a JSON line, and puts the verdict at its end. An error row stays as
    /// it is.
    pub fn append(&self, line: &mut Vec<u8>) {
        let Ok(text) = std::str::from_utf8(line) else { return };
        let Ok(fields) = JsonFields::parse(text.trim_end().to_owned(), 0) else { return };
        let verdict = match self.judge(&fields) {
            Ok(None) => return,
            Ok(Some(verdict)) => verdict,
            Err(reason) => Verdict::refused(reason),
        };
        line.truncate(fields.text().len() - 1);
        verdict.append(line);
        line.extend_from_slice(b"}\n");
    }

    /// The verdict over a finished row; None of an error row.
    ///
    /// # Errors
    /// The row has not what the scorers need.
    pub fn judge(&self, fields: &JsonFields) -> Result<Option<Verdict>, String> {
        let row = JudgedRow::of_output(fields, &self.settings.out_field);
        if row.is_error() {
            return Ok(None);
        }
        let rubric = self.rubric(&row)?;
        let is_of_text = rubric.criteria.iter().all(|criterion| criterion.test.is_of_text());
        if !is_of_text {
            let scored = rubric.criteria.iter().map(|one| one.test.score_row(&row));
            let scored = scored.collect::<Result<Vec<_>, _>>()?;
            return Ok(Some(Verdict::new(&rubric, vec![Sample::new(&rubric, &scored, None)])));
        }
        let samples = row.answers().into_iter().map(|answer| self.sample(&rubric, &answer));
        Ok(Some(Verdict::new(&rubric, samples.collect())))
    }

    fn rubric(&self, row: &JudgedRow<'_>) -> Result<Rubric, String> {
        Rubric::of(row, &self.settings, &self.patterns)
    }

    /// The worth of one completion.
    fn sample(&self, rubric: &Rubric, answer: &str) -> Sample {
        let normalize = self.settings.normalize;
        let extracted = self.settings.extract.as_ref().map(|pattern| {
            let captures = pattern.captures(answer)?;
            Some(captures.get(1).or(captures.get(0))?.as_str())
        });
        let text = match &extracted {
            None => Some(answer),
            Some(found) => *found,
        };
        let score = |criterion: &criterion::Criterion| match text {
            Some(text) => criterion.test.score(text, normalize, &self.patterns),
            // Nothing was found that could be right.
            None => Scored::default(),
        };
        let mut scored: Vec<Scored> = rubric.criteria.iter().map(score).collect();
        if let (Some(found), Some(first)) = (extracted, scored.first_mut()) {
            first.extracted.get_or_insert(found.map(str::to_owned));
        }
        let vote = self.patterns.normalized(text.unwrap_or_default(), normalize);
        Sample::new(rubric, &scored, Some(vote))
    }
}
