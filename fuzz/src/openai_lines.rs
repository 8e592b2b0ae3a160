//! Requests of batch APIs to lines of batch APIs: parsed, their parameters applied, answered. A
//! line has the fields of its API, and the `custom_id` of its request.

use serde_json::Value;
use vllm_batch::cli::input::batch_line::{BatchKind, BatchLine, BatchLines};
use vllm_batch::cli::input::fields::Passthrough;
use vllm_batch::cli::input::reader::InputFormat;
use vllm_batch::cli::input::row::RowOptions;

use super::rows::{self, MAX_INPUT};

/// The first byte chooses the flags (`0`: none), the rest is the input.
pub fn check(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    if input.len() > MAX_INPUT || rows::is_compressed(input) {
        return;
    }
    let choice = choice ^ b'0';
    let lines = [BatchLines::Own, BatchLines::OpenAi][usize::from(choice % 2)];
    let options = RowOptions { lines, ..RowOptions::default() };
    let output = rows::json_format(choice / 2);
    // An input that is refused as a whole has no lines.
    let _ = rows::run(input, InputFormat::Jsonl, &options, output, &mut |passthrough, line| {
        rows::assert_one_json_line(line);
        match passthrough {
            Passthrough::Batch(batch) => assert_batch_line(batch, line),
            _ => assert_eq!(lines, BatchLines::Own, "a row without its line"),
        }
    });
}

fn assert_batch_line(batch: &BatchLine, line: &[u8]) {
    let shown = String::from_utf8_lossy(line);
    let value: Value = serde_json::from_slice(line).expect("checked before");
    let names: Vec<&str> =
        value.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    assert_eq!(value["custom_id"].as_str(), batch.custom_id.as_deref(), "{shown}");
    if batch.kind == BatchKind::Message {
        assert_eq!(names, ["custom_id", "result"], "{shown}");
        let kind = value["result"]["type"].as_str();
        let part = if kind == Some("succeeded") { "message" } else { "error" };
        assert!(value["result"][part].is_object(), "{shown}");
        return;
    }
    assert_eq!(names, ["id", "custom_id", "response", "error"], "{shown}");
    let response = &value["response"];
    match response["status_code"].as_u64() {
        Some(200) => {
            assert!(!response["body"]["choices"].as_array().unwrap().is_empty(), "{shown}")
        }
        Some(400..600) => assert!(response["body"]["error"]["message"].is_string(), "{shown}"),
        _ => panic!("no status: {shown}"),
    }
}
