//! What a file and a batch are: as they lie in the folder, and as OpenAI's API shows them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FileRecord {
    pub(crate) id: String,
    /// Its place among all records, by when they came.
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    pub(crate) created_at: i64,
    pub(crate) expires_at: Option<i64>,
    pub(crate) filename: String,
    pub(crate) purpose: String,
}

impl FileRecord {
    /// As OpenAI's `file`.
    pub(crate) fn shown(&self) -> Value {
        json!({
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": null,
        })
    }
}

/// Where a batch is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Validating,
    Failed,
    InProgress,
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Status::Validating => "validating",
            Status::Failed => "failed",
            Status::InProgress => "in_progress",
            Status::Finalizing => "finalizing",
            Status::Completed => "completed",
            Status::Expired => "expired",
            Status::Cancelling => "cancelling",
            Status::Cancelled => "cancelled",
        }
    }

    /// Nothing happens to it any more.
    pub(crate) fn has_ended(self) -> bool {
        use Status::{Cancelled, Completed, Expired, Failed};
        matches!(self, Failed | Completed | Expired | Cancelled)
    }
}

/// The API that a batch came by.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Api {
    OpenAi,
    Anthropic,
}

/// What is wrong with a line, or with all of a batch.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct LineError {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    /// From 1.
    pub(crate) line: Option<u64>,
}

/// Lines by how they ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) total: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    /// Given up, because the batch was cancelled.
    pub(crate) cancelled: u64,
    /// Given up, because its time was over.
    pub(crate) expired: u64,
}

/// Tokens of all answers.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) reasoning: u64,
}

/// A batch.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct BatchRecord {
    pub(crate) id: String,
    /// Its place among all records, by when they came.
    pub(crate) number: u64,
    pub(crate) api: Api,
    pub(crate) status: Status,
    pub(crate) endpoint: String,
    pub(crate) model: String,
    pub(crate) input_file_id: String,
    pub(crate) completion_window: String,
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// Seconds that its output files are kept.
    pub(crate) output_expires_after: Option<i64>,
    pub(crate) errors: Vec<LineError>,
    pub(crate) counts: Counts,
    pub(crate) usage: Usage,
    pub(crate) output_file_id: Option<String>,
    pub(crate) error_file_id: Option<String>,
    /// Every line has its place in the folder of the batch; what is left is to show them.
    pub(crate) is_run: bool,
    /// When it came into each of its states.
    pub(crate) created_at: i64,
    pub(crate) expires_at: i64,
    pub(crate) in_progress_at: Option<i64>,
    pub(crate) finalizing_at: Option<i64>,
    pub(crate) completed_at: Option<i64>,
    pub(crate) failed_at: Option<i64>,
    pub(crate) expired_at: Option<i64>,
    pub(crate) cancelling_at: Option<i64>,
    pub(crate) cancelled_at: Option<i64>,
}

impl BatchRecord {
    /// Its next state, which it came into now.
    pub(crate) fn enter(&mut self, status: Status, now: i64) {
        self.status = status;
        let at = match status {
            Status::Validating => return,
            Status::Failed => &mut self.failed_at,
            Status::InProgress => &mut self.in_progress_at,
            Status::Finalizing => &mut self.finalizing_at,
            Status::Completed => &mut self.completed_at,
            Status::Expired => &mut self.expired_at,
            Status::Cancelling => &mut self.cancelling_at,
            Status::Cancelled => &mut self.cancelled_at,
        };
        at.get_or_insert(now);
    }

    /// When it ended, if it has.
    pub(crate) fn ended_at(&self) -> Option<i64> {
        self.completed_at.or(self.failed_at).or(self.expired_at).or(self.cancelled_at)
    }

    /// As OpenAI's `batch`.
    pub(crate) fn shown(&self) -> Value {
        let errors =
            (!self.errors.is_empty()).then(|| json!({ "object": "list", "data": self.errors }));
        let Counts { total, completed, failed, .. } = self.counts;
        let Usage { input, output, reasoning } = self.usage;
        json!({
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status.name(),
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": self.in_progress_at,
            "expires_at": self.expires_at,
            "finalizing_at": self.finalizing_at,
            "completed_at": self.completed_at,
            "failed_at": self.failed_at,
            "expired_at": self.expired_at,
            "cancelling_at": self.cancelling_at,
            "cancelled_at": self.cancelled_at,
            "request_counts": { "total": total, "completed": completed, "failed": failed },
            "usage": {
                "input_tokens": input,
                "input_tokens_details": { "cached_tokens": 0 },
                "output_tokens": output,
                "output_tokens_details": { "reasoning_tokens": reasoning },
                "total_tokens": input + output,
            },
            "metadata": self.metadata,
        })
    }
}
