//! `Validator`: a compiled schema.

use std::sync::Arc;

use jsonschema::{Draft, PatternOptions};
use serde_json::Value;

use super::graph::{Graph, words};
use super::{limits, work};
use vllm_batch_base::deep_stack::DeepStack;

/// Bytes that one compiled pattern may take.
const MAX_PATTERN: usize = 1 << 20;

/// Verdict on a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As the schema says.
    Valid,
    /// Not so: what is wrong, and where.
    Invalid(String),
    /// The schema and the value take more steps than a validation may.
    TooMuch(String),
}

/// A compiled schema. Patterns are matched in linear time; `format` and `content...` are
/// annotations; references lead to no other document.
#[derive(Clone)]
pub struct Validator {
    compiled: Arc<Compiled>,
    stack: Arc<DeepStack>,
}

struct Compiled {
    graph: Graph,
    validator: jsonschema::Validator,
}

impl std::fmt::Debug for Validator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Validator")
    }
}

impl Validator {
    /// Compiles a schema, of the draft that its `$schema` names, else 2020-12.
    ///
    /// # Errors
    /// In words: it is no schema, is too large, has a reference that leads nowhere or a pattern
    /// that does not compile.
    pub fn new(schema: &Value, stack: &Arc<DeepStack>) -> Result<Self, String> {
        limits::check(schema)?;
        let schema = schema.clone();
        let compiled = stack.run(move || Compiled::new(schema));
        let compiled = compiled.unwrap_or_else(|| Err("the validator failed on it".to_owned()))?;
        Ok(Self { compiled: Arc::new(compiled), stack: Arc::clone(stack) })
    }

    /// Verdict on a value by the schema.
    pub fn judge(&self, value: Value) -> Verdict {
        let compiled = Arc::clone(&self.compiled);
        let verdict = self.stack.run(move || compiled.judge(&value));
        verdict.unwrap_or_else(|| Verdict::TooMuch("the validator failed on it".to_owned()))
    }
}

impl Compiled {
    fn new(mut schema: Value) -> Result<Self, String> {
        // Of a dialect that is not known the keywords are those of the newest draft.
        if Draft::default().detect(&schema) == Draft::Unknown {
            schema.as_object_mut().and_then(|keywords| keywords.remove("$schema"));
        }
        let draft = Draft::default().detect(&schema);
        let options = jsonschema::options()
            .with_draft(draft)
            .offline()
            .should_validate_formats(false)
            .without_content_media_type_support("application/json")
            .without_content_encoding_support("base64")
            .with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN));
        let graph = Graph::new(&schema, draft)?;
        let validator = options.build(&schema).map_err(|error| {
            let path = error.instance_path().to_string();
            let place = if path.is_empty() { String::new() } else { format!(" at {path}") };
            words(format!("{}{place}", error.masked_with("the value")))
        })?;
        Ok(Self { graph, validator })
    }

    fn judge(&self, value: &Value) -> Verdict {
        if let Err(what) = work::check(&self.graph, value) {
            return Verdict::TooMuch(what);
        }
        if self.validator.is_valid(value) {
            return Verdict::Valid;
        }
        let error = self.validator.validate(value).err();
        Verdict::Invalid(error.map_or_else(String::new, |error| {
            let path = error.instance_path().to_string();
            let place = if path.is_empty() { String::new() } else { format!(" at {path}") };
            words(format!("{}{place}", error.masked_with("the value")))
        }))
    }
}
