//! `Task`: what rows are for, and what is called after it.

use super::compared;

/// Task of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// They are completed.
    #[default]
    Complete,
    /// Vectors are made of them.
    Embed,
    /// They are classified.
    Classify,
    /// They get the number of a model's only class.
    Reward,
    /// Their texts are compared.
    Score,
    /// Their documents are put in an order.
    Rerank,
}

impl Task {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Task::Complete, Task::Embed, Task::Classify, Task::Reward, Task::Score, Task::Rerank];

    /// The command that does it.
    pub fn command(self) -> &'static str {
        match self {
            Task::Complete => "run",
            Task::Embed => "embed",
            Task::Classify => "classify",
            Task::Reward => "reward",
            Task::Score => "score",
            Task::Rerank => "rerank",
        }
    }

    /// The field of a row that holds the answer, unless `--out-field` names it.
    pub fn answer_field(self) -> &'static str {
        match self {
            Task::Complete => "response",
            Task::Embed => "embedding",
            Task::Classify => "label",
            Task::Reward | Task::Score => "score",
            Task::Rerank => "results",
        }
    }

    /// Result of the rows, in words.
    pub fn gives(self) -> &'static str {
        match self {
            Task::Complete => "completions",
            Task::Embed => "vectors",
            Task::Classify => "classes",
            Task::Reward => "rewards",
            Task::Score | Task::Rerank => "scores",
        }
    }

    /// Whether rows may be images and nothing else.
    pub fn takes_images_alone(self) -> bool {
        matches!(self, Task::Embed | Task::Classify | Task::Reward)
    }

    /// Whether texts of a row are compared.
    pub fn compares(self) -> bool {
        compared::spellings(self).is_some()
    }
}
