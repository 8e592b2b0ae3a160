//! Which row of B belongs to which row of A: by position, or by id.

use std::collections::{HashMap, VecDeque};

use super::difference::Difference;
use super::rows::{OutputFile, OutputRow};
use super::shown::Finding;
use vllm_batch_dataset::input::reader::{Content, Record};
use vllm_batch_dataset::terminal::error::CliError;

/// Rows by what was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// With equal answers.
    pub equal: u64,
    /// Of these, rows that differ in something else.
    pub equal_answers_only: u64,
    /// With different answers.
    pub different: u64,
    /// Of these, rows that are not the same row.
    pub other_ids: u64,
    /// Without partner in B.
    pub only_in_a: u64,
    /// Without partner in A.
    pub only_in_b: u64,
}

/// What takes the findings.
pub type Show<'a> = dyn FnMut(Finding) -> Result<(), CliError> + 'a;

/// Compares row by row, with one row of each file in memory.
///
/// # Errors
/// A row cannot be read, or a finding not be shown.
pub fn by_position(
    a: &mut OutputFile,
    b: &mut OutputFile,
    show: &mut Show<'_>,
) -> Result<Counts, CliError> {
    let mut counts = Counts::default();
    let are_alike = a.is_like(b);
    loop {
        match (a.next_record()?, b.next_record()?) {
            (None, None) => return Ok(counts),
            (Some(one), None) => counts.only_in_a(a.row(&one)?, show)?,
            (None, Some(other)) => counts.only_in_b(b.row(&other)?, show)?,
            // Most rows: no need to look into them.
            (Some(one), Some(other)) if are_alike && one.content == other.content => {
                counts.equal += 1;
            }
            (Some(one), Some(other)) => {
                counts.pair(a.row(&one)?, b.row(&other)?, !are_alike, show)?
            }
        }
    }
}

/// A row that waits for its partner.
struct Waiting {
    row: OutputRow,
    content: Content,
}

/// By id, those of equal ids in their order. Rows without id are paired with each other.
#[derive(Default)]
struct Lobby(HashMap<Option<String>, VecDeque<Waiting>>);

impl Lobby {
    fn enter(&mut self, waiting: Waiting) {
        self.0.entry(waiting.row.id.clone()).or_default().push_back(waiting);
    }

    fn leave(&mut self, id: &Option<String>) -> Option<Waiting> {
        let queue = self.0.get_mut(id)?;
        let waiting = queue.pop_front();
        if queue.is_empty() {
            self.0.remove(id);
        }
        waiting
    }

    /// Those who are left, in the order of their file.
    fn into_rows(self) -> Vec<OutputRow> {
        let mut rows: Vec<_> = self.0.into_values().flatten().map(|waiting| waiting.row).collect();
        rows.sort_by_key(|row| row.line);
        rows
    }
}

/// Pairs rows by their ids. Both files are read at the same time, and a row waits in memory for its
/// partner: outputs in nearly the same order take little.
///
/// # Errors
/// As [`by_position`].
pub fn by_id(
    a: &mut OutputFile,
    b: &mut OutputFile,
    show: &mut Show<'_>,
) -> Result<Counts, CliError> {
    let mut counts = Counts::default();
    let are_alike = a.is_like(b);
    let (mut in_a, mut in_b) = (Lobby::default(), Lobby::default());
    let arrive = |file: &OutputFile, record: Record| -> Result<Waiting, CliError> {
        Ok(Waiting { row: file.row(&record)?, content: record.content })
    };
    loop {
        let (one, other) = (a.next_record()?, b.next_record()?);
        if one.is_none() && other.is_none() {
            break;
        }
        if let Some(record) = one {
            let one = arrive(a, record)?;
            match in_b.leave(&one.row.id) {
                Some(other) => counts.found(one, other, are_alike, show)?,
                None => in_a.enter(one),
            }
        }
        if let Some(record) = other {
            let other = arrive(b, record)?;
            match in_a.leave(&other.row.id) {
                Some(one) => counts.found(one, other, are_alike, show)?,
                None => in_b.enter(other),
            }
        }
    }
    in_a.into_rows().into_iter().try_for_each(|row| counts.only_in_a(row, show))?;
    in_b.into_rows().into_iter().try_for_each(|row| counts.only_in_b(row, show))?;
    Ok(counts)
}

impl Counts {
    /// Whether nothing was found.
    pub fn all_equal(&self) -> bool {
        self.different + self.only_in_a + self.only_in_b == 0
    }

    fn found(
        &mut self,
        one: Waiting,
        other: Waiting,
        are_alike: bool,
        show: &mut Show<'_>,
    ) -> Result<(), CliError> {
        let is_same = !are_alike || one.content == other.content;
        self.pair(one.row, other.row, is_same, show)
    }

    /// `is_same`: nothing else differs, or nobody can say.
    fn pair(
        &mut self,
        a: OutputRow,
        b: OutputRow,
        is_same: bool,
        show: &mut Show<'_>,
    ) -> Result<(), CliError> {
        let Some(difference) = Difference::of(&a, &b) else {
            self.equal += 1;
            self.equal_answers_only += u64::from(!is_same);
            return Ok(());
        };
        self.different += 1;
        self.other_ids += u64::from(difference.ids.is_some());
        show(Finding::Different(a, b, Box::new(difference)))
    }

    fn only_in_a(&mut self, row: OutputRow, show: &mut Show<'_>) -> Result<(), CliError> {
        self.only_in_a += 1;
        show(Finding::OnlyInA(row))
    }

    fn only_in_b(&mut self, row: OutputRow, show: &mut Show<'_>) -> Result<(), CliError> {
        self.only_in_b += 1;
        show(Finding::OnlyInB(row))
    }
}
