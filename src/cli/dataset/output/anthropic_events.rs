//! `MessageEvents`: a message of Anthropic's in pieces, while it is made. Joined they are the whole
//! message: its blocks one after the other, each begun, added to and ended.

use serde_json::{Value, json};

use super::anthropic::{Block, stopped_by};
use super::growing::{Growing, New};
use super::openai_chunks::Streamed;
use super::{JsonFormat, RowWriter, Tokens};
use vllm_batch_api::request::{CompletionDelta, RequestOutput};

/// Events of a message that goes on. Each has its name as `type`.
#[derive(Debug)]
pub struct MessageEvents {
    streamed: Streamed,
    growing: Growing,
    /// Blocks that have begun.
    num_blocks: usize,
}

impl MessageEvents {
    /// Nothing is out.
    pub fn new(streamed: Streamed) -> Self {
        Self { streamed, growing: Growing::default(), num_blocks: 0 }
    }

    /// What comes before the first token.
    pub fn begin(&self, format: &JsonFormat) -> Vec<Value> {
        let model = self.streamed.line.lora.as_deref().unwrap_or(&format.facts.model);
        vec![json!({"type": "message_start", "message": {
            "id": self.streamed.line.digest.id("msg_"),
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": model,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": {"input_tokens": self.streamed.num_prompt_tokens, "output_tokens": 0},
        }})]
    }

    /// What is new.
    pub fn take_in(&mut self, deltas: &[CompletionDelta], format: &JsonFormat) -> Vec<Value> {
        let mut events = Vec::new();
        for delta in deltas {
            let begins = self.growing.content.is_empty();
            let form = self.streamed.form.as_ref();
            let New { reasoning, content } =
                self.growing.take_in(&delta.text, form, &format.parser);
            if content.is_empty() {
                continue;
            }
            if begins {
                events.extend(reasoning.iter().flat_map(|thinking| self.thought(thinking)));
                events.push(self.begun(json!({"type": "text", "text": ""})));
            }
            events.push(self.added(json!({"type": "text_delta", "text": content})));
        }
        events
    }

    /// What is left of a message that is whole, and why it has ended.
    pub fn finish(
        &mut self,
        output: &RequestOutput,
        format: &JsonFormat,
        tokens: &Tokens<'_>,
    ) -> Vec<Value> {
        let options = format.options(tokens);
        let form = self.streamed.form.clone();
        let row = RowWriter { out: &mut Vec::new(), options: &options, form: form.as_ref() };
        let first = output.outputs.first();
        let blocks = first.map_or_else(Vec::new, |completion| row.blocks(completion));
        let mut events = Vec::new();
        for block in &blocks {
            events.extend(self.left_of(block));
        }
        let has_calls = blocks.iter().any(|block| matches!(block, Block::ToolUse(..)));
        let (stop_reason, stop_sequence) = stopped_by(first, has_calls);
        events.push(json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
            "usage": {"output_tokens": output.num_output_tokens()},
        }));
        events.push(json!({"type": "message_stop"}));
        events
    }

    /// What of a block is not out.
    fn left_of(&mut self, block: &Block<'_>) -> Vec<Value> {
        match block {
            Block::Thinking(_) if !self.growing.reasoning.is_empty() => Vec::new(),
            Block::Thinking(thinking) => self.thought(thinking),
            Block::Text(text) => {
                let mut events = Vec::new();
                if self.growing.content.is_empty() {
                    events.push(self.begun(json!({"type": "text", "text": ""})));
                }
                let left = self.growing.left_of_content(Some(text));
                if !left.is_empty() {
                    events.push(self.added(json!({"type": "text_delta", "text": left})));
                }
                events.push(self.ended());
                events
            }
            Block::ToolUse(number, name, input) => {
                let id = self.streamed.line.digest.call(0, *number).id("toolu_");
                let call = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                let input = json!({"type": "input_json_delta", "partial_json": input.get()});
                vec![self.begun(call), self.added(input), self.ended()]
            }
        }
    }

    fn thought(&mut self, thinking: &str) -> Vec<Value> {
        let block = json!({"type": "thinking", "thinking": "", "signature": ""});
        let thinking = json!({"type": "thinking_delta", "thinking": thinking});
        vec![self.begun(block), self.added(thinking), self.ended()]
    }

    fn begun(&mut self, block: Value) -> Value {
        let index = self.num_blocks;
        self.num_blocks += 1;
        json!({"type": "content_block_start", "index": index, "content_block": block})
    }

    fn added(&self, delta: Value) -> Value {
        json!({"type": "content_block_delta", "index": self.num_blocks - 1, "delta": delta})
    }

    fn ended(&self) -> Value {
        json!({"type": "content_block_stop", "index": self.num_blocks - 1})
    }
}
