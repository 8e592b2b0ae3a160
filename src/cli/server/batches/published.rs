//! What the results of a batch say of it: how its lines ended, and the tokens of all answers. Read
//! from the files, so that it is the same however often the batch was begun again.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::Path;

use serde::Deserialize;

use super::record::{Counts, Usage};
use vllm_batch_dataset::input::row_error::NotRun;

/// A line, of OpenAI's or Anthropic's.
#[derive(Deserialize)]
struct Line<'a> {
    response: Option<Response>,
    #[serde(borrow)]
    error: Option<GivenUp<'a>>,
    #[serde(borrow)]
    result: Option<MessageResult<'a>>,
}

#[derive(Deserialize)]
struct Response {
    status_code: u16,
    body: Option<Answer>,
}

/// An answer: OpenAI's body, or Anthropic's message.
#[derive(Deserialize)]
struct Answer {
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct GivenUp<'a> {
    #[serde(borrow)]
    code: Cow<'a, str>,
}

#[derive(Deserialize)]
struct MessageResult<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    message: Option<Answer>,
}

/// Tokens by any of the names that they have.
#[derive(Default, Deserialize)]
struct Tokens {
    #[serde(alias = "prompt_tokens")]
    input_tokens: Option<u64>,
    #[serde(alias = "completion_tokens")]
    output_tokens: Option<u64>,
    #[serde(alias = "completion_tokens_details")]
    output_tokens_details: Option<Details>,
}

#[derive(Default, Deserialize)]
struct Details {
    reasoning_tokens: Option<u64>,
}

/// Counts the lines of files, of which those that are not there have none.
pub(super) fn counted(files: &[&Path], total: u64) -> io::Result<(Counts, Usage)> {
    let (mut counts, mut usage) = (Counts { total, ..Counts::default() }, Usage::default());
    let mut line = Vec::new();
    for path in files {
        let file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            file => file?,
        };
        let mut lines = BufReader::with_capacity(1 << 20, file);
        loop {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            add(&line, &mut counts, &mut usage)?;
        }
    }
    Ok((counts, usage))
}

fn add(line: &[u8], counts: &mut Counts, usage: &mut Usage) -> io::Result<()> {
    let line: Line<'_> = serde_json::from_slice(line)?;
    let (ended, tokens) = match line {
        Line { result: Some(MessageResult { kind, message }), .. } => match &*kind {
            "succeeded" => (&mut counts.completed, message.and_then(|message| message.usage)),
            "canceled" => (&mut counts.cancelled, None),
            "expired" => (&mut counts.expired, None),
            _ => (&mut counts.failed, None),
        },
        Line { error: Some(GivenUp { code }), .. } => match NotRun::of_code(&code) {
            Some(NotRun::Expired) => (&mut counts.expired, None),
            _ => (&mut counts.cancelled, None),
        },
        Line { response: Some(Response { status_code: 200, body }), .. } => {
            (&mut counts.completed, body.and_then(|body| body.usage))
        }
        _ => (&mut counts.failed, None),
    };
    *ended += 1;
    let Tokens { input_tokens, output_tokens, output_tokens_details } = tokens.unwrap_or_default();
    usage.input += input_tokens.unwrap_or_default();
    usage.output += output_tokens.unwrap_or_default();
    let details = output_tokens_details.unwrap_or_default();
    usage.reasoning += details.reasoning_tokens.unwrap_or_default();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_how_they_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (output, errors) = (folder.path().join("output"), folder.path().join("errors"));
        let lines = [
            r#"{"id":"a","custom_id":"a","response":{"status_code":200,"body":{"object":"x","usage":{"prompt_tokens":3,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":2}}}},"error":null}"#,
            r#"{"custom_id":"b","response":{"status_code":200,"body":{"usage":{"input_tokens":1,"output_tokens":1}}},"error":null}"#,
            r#"{"custom_id":"c","result":{"type":"succeeded","message":{"usage":{"input_tokens":10,"output_tokens":20}}}}"#,
            r#"{"custom_id":"d","result":{"type":"canceled"}}"#,
        ];
        std::fs::write(&output, lines.map(|line| format!("{line}\n")).concat()).unwrap();
        let lines = [
            r#"{"custom_id":"e","response":{"status_code":400,"body":{"error":{"code":"x"}}},"error":null}"#,
            r#"{"custom_id":"f","response":null,"error":{"code":"batch_expired","message":"m"}}"#,
            r#"{"custom_id":"g","response":null,"error":{"code":"batch_cancelled","message":"m"}}"#,
            r#"{"custom_id":"h","result":{"type":"errored","error":{"type":"error"}}}"#,
        ];
        std::fs::write(&errors, lines.map(|line| format!("{line}\n")).concat()).unwrap();
        let missing = folder.path().join("missing");
        let (counts, usage) = counted(&[&output, &errors, &missing], 9).unwrap();
        let expected = Counts { total: 9, completed: 3, failed: 2, cancelled: 2, expired: 1 };
        assert_eq!(counts, expected);
        assert_eq!(usage, Usage { input: 14, output: 26, reasoning: 2 });
    }
}
