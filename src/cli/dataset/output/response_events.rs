//! `ResponseEvents`: a response of OpenAI's `/v1/responses` in pieces, while it is made. Joined
//! they are the whole response: its items one after the other, each added, added to and done.
//! Thinking and calls are whole when they are added, a message grows.

use serde_json::{Value, json};

use super::growing::{Growing, New};
use super::openai_chunks::Streamed;
use super::{JsonFormat, RowWriter, Tokens};
use vllm_batch_api::request::{CompletionDelta, PositionLogprobs, RequestOutput};

/// Events of a response that goes on. Each has its name as `type`.
#[derive(Debug)]
pub struct ResponseEvents {
    streamed: Streamed,
    growing: Growing,
    /// Events that are out.
    num_events: u64,
    /// Items that are out, or have begun.
    num_items: usize,
    /// The message has begun.
    is_begun: bool,
    /// Positions that wait for its text.
    positions: Vec<PositionLogprobs>,
    /// Positions of the answer so far.
    num_positions: usize,
}

impl ResponseEvents {
    /// Nothing is out.
    pub fn new(streamed: Streamed) -> Self {
        Self {
            streamed,
            growing: Growing::default(),
            num_events: 0,
            num_items: 0,
            is_begun: false,
            positions: Vec::new(),
            num_positions: 0,
        }
    }

    /// What comes before the first token.
    pub fn begin(&mut self, format: &JsonFormat, tokens: &Tokens<'_>) -> Vec<Value> {
        let line = self.streamed.line.clone();
        let response = self.written(format, tokens, |row| row.begun_response(&line));
        let begun = ["response.created", "response.in_progress"];
        let begun = begun.map(|kind| self.event(kind, json!({"response": response})));
        begun.to_vec()
    }

    /// What is new.
    pub fn take_in(
        &mut self,
        deltas: &[CompletionDelta],
        format: &JsonFormat,
        tokens: &Tokens<'_>,
    ) -> Vec<Value> {
        let mut events = Vec::new();
        for delta in deltas {
            let form = self.streamed.form.as_ref();
            let New { reasoning, content } =
                self.growing.take_in(&delta.text, form, &format.parser);
            let positions = delta.logprobs.iter().flatten().cloned();
            self.positions.extend(positions);
            self.num_positions += delta.logprobs.as_ref().map_or(0, Vec::len);
            if content.is_empty() {
                continue;
            }
            events.extend(reasoning.iter().flat_map(|text| self.thought(text)));
            events.extend(self.begun_message());
            events.push(self.said(&content, format, tokens));
        }
        events
    }

    /// What is left of a response that is whole, and the response.
    pub fn finish(
        &mut self,
        output: &RequestOutput,
        format: &JsonFormat,
        tokens: &Tokens<'_>,
    ) -> Vec<Value> {
        let line = self.streamed.line.clone();
        let response = self.written(format, tokens, |row| row.response_body(&line, output));
        let positions = output.outputs.first().and_then(|first| first.logprobs.as_deref());
        let positions = positions.and_then(|all| all.get(self.num_positions..));
        self.positions.extend(positions.unwrap_or_default().iter().cloned());
        let mut events = Vec::new();
        for item in response["output"].as_array().into_iter().flatten() {
            match item["type"].as_str() {
                Some("reasoning") if !self.growing.reasoning.is_empty() => {}
                Some("reasoning") => {
                    events.extend(self.thought(item["content"][0]["text"].as_str().expect("ours")));
                }
                Some("message") => events.extend(self.rest_of_message(item, format, tokens)),
                _ => events.extend(self.called(item)),
            }
        }
        let kind = match response["status"].as_str() {
            Some("incomplete") => "response.incomplete",
            _ => "response.completed",
        };
        events.push(self.event(kind, json!({"response": response})));
        events
    }

    /// An error in the middle.
    pub fn error(&mut self, code: &str, message: &str) -> Value {
        self.event("error", json!({"code": code, "message": message, "param": null}))
    }

    /// JSON of an object.
    fn written(
        &self,
        format: &JsonFormat,
        tokens: &Tokens<'_>,
        fields: impl FnOnce(&mut RowWriter<'_>),
    ) -> Value {
        let options = format.options(tokens);
        let mut out = Vec::from(b"{");
        let form = self.streamed.form.as_ref();
        fields(&mut RowWriter { out: &mut out, options: &options, form });
        out.push(b'}');
        serde_json::from_slice(&out).expect("our own JSON")
    }

    fn event(&mut self, kind: &str, fields: Value) -> Value {
        let number = self.num_events;
        self.num_events += 1;
        with(json!({"type": kind, "sequence_number": number}), fields)
    }

    /// An event of an item, which is the last one that was added.
    fn of_item(&mut self, kind: &str, id: &str, fields: Value) -> Value {
        let item = json!({"item_id": id, "output_index": self.num_items - 1});
        self.event(kind, with(item, fields))
    }

    fn added(&mut self, item: Value) -> Value {
        self.num_items += 1;
        let output_index = self.num_items - 1;
        self.event(
            "response.output_item.added",
            json!({"output_index": output_index, "item": item}),
        )
    }

    fn done(&mut self, item: &Value) -> Value {
        let output_index = self.num_items - 1;
        self.event("response.output_item.done", json!({"output_index": output_index, "item": item}))
    }

    fn thought(&mut self, text: &str) -> Vec<Value> {
        let id = self.streamed.line.digest.id("rs_");
        let item =
            |parts: Value| json!({"type": "reasoning", "id": id, "summary": [], "content": parts});
        let part = |text: &str| json!({"type": "reasoning_text", "text": text});
        let at = |more| with(json!({"content_index": 0}), more);
        let of = [
            ("response.content_part.added", at(json!({"part": part("")}))),
            ("response.reasoning_text.delta", at(json!({"delta": text}))),
            ("response.reasoning_text.done", at(json!({"text": text}))),
            ("response.content_part.done", at(json!({"part": part(text)}))),
        ];
        let mut events = vec![self.added(item(json!([])))];
        events.extend(of.into_iter().map(|(kind, fields)| self.of_item(kind, &id, fields)));
        events.push(self.done(&item(json!([part(text)]))));
        events
    }

    /// The message and its text, where they have not begun.
    fn begun_message(&mut self) -> Vec<Value> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Vec::new();
        }
        let id = self.streamed.line.digest.id("msg_");
        let item = json!({
            "type": "message",
            "id": id,
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        });
        let part = json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
        let fields = json!({"content_index": 0, "part": part});
        vec![self.added(item), self.of_item("response.content_part.added", &id, fields)]
    }

    /// More of its text, with the positions that wait.
    fn said(&mut self, text: &str, format: &JsonFormat, tokens: &Tokens<'_>) -> Value {
        let positions = std::mem::take(&mut self.positions);
        let written = self.written(format, tokens, |row| {
            row.key("logprobs");
            row.list(&positions, RowWriter::response_position);
        });
        let id = self.streamed.line.digest.id("msg_");
        let fields = json!({"content_index": 0, "delta": text, "logprobs": written["logprobs"]});
        self.of_item("response.output_text.delta", &id, fields)
    }

    fn rest_of_message(
        &mut self,
        item: &Value,
        format: &JsonFormat,
        tokens: &Tokens<'_>,
    ) -> Vec<Value> {
        let part = &item["content"][0];
        let id = self.streamed.line.digest.id("msg_");
        let mut events = self.begun_message();
        let left = self.growing.left_of_content(part["text"].as_str()).to_owned();
        if !left.is_empty() || !self.positions.is_empty() {
            events.push(self.said(&left, format, tokens));
        }
        let text = json!({"content_index": 0, "text": part["text"], "logprobs": part["logprobs"]});
        events.push(self.of_item("response.output_text.done", &id, text));
        let whole = json!({"content_index": 0, "part": part});
        events.push(self.of_item("response.content_part.done", &id, whole));
        events.push(self.done(item));
        events
    }

    fn called(&mut self, item: &Value) -> Vec<Value> {
        let id = item["id"].as_str().expect("ours").to_owned();
        let mut begun = item.clone();
        (begun["arguments"], begun["status"]) = (json!(""), json!("in_progress"));
        let arguments = &item["arguments"];
        let whole = json!({"arguments": arguments, "name": item["name"]});
        vec![
            self.added(begun),
            self.of_item(
                "response.function_call_arguments.delta",
                &id,
                json!({"delta": arguments}),
            ),
            self.of_item("response.function_call_arguments.done", &id, whole),
            self.done(item),
        ]
    }
}

/// An object with the fields of another behind its own.
fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut object, more) {
        fields.extend(more);
    }
    object
}
