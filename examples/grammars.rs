//! Which texts a constraint accepts, and what its masks cost: the grammars of structured output
//! without a model's weights. `scripts/structured-output` feeds it test suites.
//!
//!     cargo run --release --example grammars -- testdata/demo < cases.jsonl
//!
//! A line in: `{"id": .., "structured_outputs": {..}, "texts": [".."]}`. A line out: `error`, why
//! the constraint does not compile; or by text `accepted` and, if it is, the microseconds of its
//! masks.

use std::error::Error;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use vllm_batch::engine::api::request::StructuredOutputs;
use vllm_batch::engine::core::plan::structured_output::{
    Grammar, GrammarCompiler, Guidance, Guide,
};
use vllm_batch::engine::text::Tokenizer;

/// Every mask is timed so often, each time by a guide of its own; the least counts, since other
/// programs run beside this one.
const NUM_TIMINGS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("expected the folder of a tokenizer")?;
    let tokenizer = Arc::new(Tokenizer::from_dir(&PathBuf::from(folder))?);
    let eos_token_id = tokenizer.eos_token_id().ok_or("the tokenizer has no eos_token")?;
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer), vec![eos_token_id]);
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let start = Instant::now();
        let outputs = StructuredOutputs::from_json(&case["structured_outputs"]);
        let grammar = outputs
            .and_then(|outputs| compiler.compile(&outputs.into()).map_err(|error| error.message));
        let compile_us = start.elapsed().as_micros() as u64;
        let shown = match grammar {
            Err(message) => json!({"id": case["id"], "error": message, "compile_us": compile_us}),
            Ok(grammar) => {
                let texts = case["texts"].as_array().into_iter().flatten();
                let texts: Vec<Value> = texts
                    .map(|text| of_text(&tokenizer, &grammar, text.as_str().unwrap_or_default()))
                    .collect();
                json!({"id": case["id"], "compile_us": compile_us, "texts": texts})
            }
        };
        writeln!(out, "{shown}")?;
    }
    Ok(())
}

/// Whether the tokens of a text match, and what the masks before each of them and the end cost.
fn of_text(tokenizer: &Tokenizer, grammar: &Arc<Grammar>, text: &str) -> Value {
    let guidance = Guidance { grammar: Some(Arc::clone(grammar)), ..Guidance::default() };
    let token_ids = match tokenizer.encode_inside(text) {
        Ok(token_ids) => token_ids,
        Err(error) => return json!({ "error": error.to_string() }),
    };
    if !Guide::new(&guidance, &[]).matches(&token_ids) {
        return json!({ "accepted": false });
    }
    let mut least = vec![f64::INFINITY; token_ids.len() + 1];
    for _ in 0..NUM_TIMINGS {
        let mut guide = Guide::new(&guidance, &[]);
        for (index, least) in least.iter_mut().enumerate() {
            let start = Instant::now();
            guide.fill();
            *least = least.min(start.elapsed().as_nanos() as f64 / 1e3);
            if let Some(error) = guide.error_after(usize::MAX) {
                return json!({"accepted": true, "error": error.message});
            }
            token_ids.get(index).into_iter().for_each(|&token_id| guide.accept(token_id));
        }
    }
    json!({"accepted": true, "mask_us": least})
}
