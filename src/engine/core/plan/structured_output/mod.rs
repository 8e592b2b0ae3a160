//! Structured output: answers that match a JSON schema, a regular expression, a list of choices or
//! a grammar. vLLM's names and semantics; llguidance says which tokens may come next.
//!
//! ```text
//! reading thread   StructuredOutputs --compile--> Grammar (pristine, shared by its rows)
//! step             Guide of a sequence: deep copy, mask -> logits -> token -> accepted
//! ```
//!
//! A schema that masks cannot keep to as a whole is relaxed for them (`relaxed`), and the finished
//! answer is validated against the schema itself (`engine/json_schema`).
//!
//! A mask is a function of the grammar's text, the tokens' bytes and the row's own tokens.

mod compiler;
mod ebnf;
mod guide;
mod limits;
mod relaxed;
#[cfg(test)]
mod schema_tests;
mod speech;
mod structural_tag;
#[cfg(test)]
mod tests;
mod thinking;
mod vocabulary;

pub use compiler::{Grammar, GrammarCompiler};
pub use guide::{Guidance, Guide, GuideTask};
pub use speech::{Prelude, Speech, SpeechTokens};
pub use thinking::Thinking;
