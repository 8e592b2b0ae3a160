//! `Endpoint`: what a line of OpenAI's batch API asks for. Its url says it, as in vLLM's run-batch.

use super::Task;
use super::unsupported::Place;
use crate::input::batch_line::BatchKind;
use crate::input::fields::JsonFields;

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Completions,
    Responses,
    Transcriptions,
    Translations,
    Embeddings,
    Score,
    Rerank,
    /// vLLM's, which no batch has.
    Classify,
}

impl Endpoint {
    /// All urls of batches, for messages.
    pub(super) const ALL_URLS: &'static str = "/v1/chat/completions, /v1/completions, /v1/responses, \
         /v1/audio/transcriptions, /v1/audio/translations, /v1/embeddings, /v1/score, /v1/rerank \
         and /v2/rerank";

    /// The endpoint of a url. Those of scores are known by its end.
    pub(super) fn of_url(url: &str) -> Option<Self> {
        match url {
            "/v1/chat/completions" => Some(Endpoint::Chat),
            "/v1/completions" => Some(Endpoint::Completions),
            "/v1/responses" => Some(Endpoint::Responses),
            "/v1/audio/transcriptions" => Some(Endpoint::Transcriptions),
            "/v1/audio/translations" => Some(Endpoint::Translations),
            "/v1/embeddings" => Some(Endpoint::Embeddings),
            url if url.ends_with("/score") => Some(Endpoint::Score),
            url if url.ends_with("/rerank") => Some(Endpoint::Rerank),
            "/classify" => Some(Endpoint::Classify),
            _ => None,
        }
    }

    /// That of a line; None: its url is wrong, or no endpoint that there is.
    pub(super) fn of_line(fields: &JsonFields) -> Option<Self> {
        let url: String = serde_json::from_str(fields.get("url")?).ok()?;
        Self::of_url(&url)
    }

    /// Where fields of its requests stand.
    pub(super) fn place(self) -> Place {
        match self {
            Endpoint::Chat => Place::Chat,
            Endpoint::Completions => Place::Completions,
            Endpoint::Responses => Place::Responses,
            Endpoint::Transcriptions | Endpoint::Translations => Place::Recordings,
            Endpoint::Embeddings | Endpoint::Classify => Place::Embeddings,
            Endpoint::Score | Endpoint::Rerank => Place::Score,
        }
    }

    /// The field of a request that is asked about.
    pub(super) fn prompt_field(self) -> &'static str {
        match self {
            Endpoint::Chat => "messages",
            Endpoint::Completions => "prompt",
            Endpoint::Transcriptions | Endpoint::Translations => "file_url",
            Endpoint::Responses | Endpoint::Embeddings | Endpoint::Classify => "input",
            Endpoint::Score => "text_1",
            Endpoint::Rerank => "query",
        }
    }

    /// Task of a run whose first line goes there.
    pub(super) fn task(self) -> Task {
        match self {
            Endpoint::Chat
            | Endpoint::Completions
            | Endpoint::Responses
            | Endpoint::Transcriptions
            | Endpoint::Translations => Task::Complete,
            Endpoint::Embeddings => Task::Embed,
            Endpoint::Score => Task::Score,
            Endpoint::Rerank => Task::Rerank,
            Endpoint::Classify => Task::Classify,
        }
    }

    /// Whether lines of a batch may go there.
    pub(super) fn is_of_batches(self) -> bool {
        self != Endpoint::Classify
    }

    /// Whether a run of this task answers it. Scores and rankings go together: one model makes
    /// both.
    pub(super) fn is_served(self, task: Task) -> bool {
        self.task() == task || self.task().compares() && task.compares()
    }

    /// Kind of a line's answer in a run of this task. A line that is wrong about it gets an
    /// error, which looks the same in all.
    pub(super) fn kind_of_line(fields: Option<&JsonFields>, task: Task) -> BatchKind {
        let endpoint = fields.and_then(Self::of_line).filter(|endpoint| endpoint.is_served(task));
        match (endpoint, task) {
            (Some(Endpoint::Chat), _) => BatchKind::Chat,
            (Some(Endpoint::Completions), _) => BatchKind::Completions,
            (Some(Endpoint::Responses), _) => BatchKind::Response,
            (Some(Endpoint::Transcriptions | Endpoint::Translations), _) => {
                BatchKind::Transcription
            }
            (Some(Endpoint::Embeddings), _) | (None, Task::Embed) => BatchKind::Embeddings,
            (Some(Endpoint::Score), _) | (None, Task::Score) => BatchKind::Score,
            (Some(Endpoint::Rerank), _) | (None, Task::Rerank) => BatchKind::Rerank,
            (Some(Endpoint::Classify), _) => BatchKind::Classify,
            (None, Task::Complete | Task::Classify | Task::Reward) => BatchKind::Chat,
        }
    }

    /// The urls that runs of a task answer, for messages.
    pub(super) fn served(task: Task) -> &'static str {
        match task {
            Task::Complete => {
                "/v1/chat/completions, /v1/completions, /v1/responses and, by a model that \
                 hears, /v1/audio/transcriptions and /v1/audio/translations are served; \
                 /v1/embeddings, /v1/score and /v1/rerank in files of their own"
            }
            Task::Embed => "`embed` serves /v1/embeddings",
            Task::Score | Task::Rerank => {
                "`score` and `rerank` serve /v1/score, /v1/rerank and /v2/rerank"
            }
            Task::Classify => "`serve --task classify` serves /classify",
            Task::Reward => "there is none for rewards",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_what_a_line_asks_for() {
        for (url, endpoint) in [
            ("/v1/chat/completions", Some(Endpoint::Chat)),
            ("/v1/completions", Some(Endpoint::Completions)),
            ("/v1/embeddings", Some(Endpoint::Embeddings)),
            ("/v1/score", Some(Endpoint::Score)),
            ("/score", Some(Endpoint::Score)),
            ("/v2/rerank", Some(Endpoint::Rerank)),
            ("/v1/embeddings/", None),
            ("/v1/responses", Some(Endpoint::Responses)),
            ("/classify", Some(Endpoint::Classify)),
            ("/v1/images", None),
        ] {
            assert_eq!(Endpoint::of_url(url), endpoint, "{url}");
        }
        assert!(Endpoint::Rerank.is_served(Task::Score) && Endpoint::Score.is_served(Task::Rerank));
        assert!(!Endpoint::Embeddings.is_served(Task::Score));
        assert!(!Endpoint::Chat.is_served(Task::Classify));
        assert!(Endpoint::Classify.is_served(Task::Classify));
    }

    #[test]
    fn a_line_is_answered_in_the_form_of_its_endpoint() {
        let kind = |url: &str, task| {
            let row = format!(r#"{{"custom_id":"a","url":{url},"body":{{}}}}"#);
            let fields = JsonFields::parse(row, 1).map_err(|bad| bad.1).unwrap();
            Endpoint::kind_of_line(Some(&fields), task)
        };
        assert_eq!(kind(r#""/v1/completions""#, Task::Complete), BatchKind::Completions);
        assert_eq!(kind(r#""/v1/rerank""#, Task::Score), BatchKind::Rerank);
        assert_eq!(kind(r#""/v1/embeddings""#, Task::Complete), BatchKind::Chat);
        assert_eq!(kind("7", Task::Embed), BatchKind::Embeddings);
        assert_eq!(Endpoint::kind_of_line(None, Task::Rerank), BatchKind::Rerank);
    }
}
