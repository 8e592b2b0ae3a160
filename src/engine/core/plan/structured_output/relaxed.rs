//! Schemas that the masks cannot keep to as a whole: what of them masks can keep to. The finished
//! answer is validated against the schema itself.

use serde_json::{Map, Value, json};

use vllm_batch_text::json_schema::limits;

/// Pairs of patterns that are compared: whether some text matches both.
const MAX_PATTERN_PAIRS: usize = 4_096;

/// Keywords that constrain and that no mask keeps to. What they forbid is found at the end.
const UNMASKED: [&str; 18] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "contentSchema",
    "$vocabulary",
];

/// Formats that masks keep to.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// What is left out of the schema that decides the masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Relaxed {
    /// Keywords without masks, formats that are not known; `oneOf` becomes `anyOf`.
    keywords: bool,
    /// What stands beside a `$ref`.
    beside_references: bool,
    /// References in an `allOf`.
    inherited: bool,
    /// `patternProperties`, and what is said of other fields with it.
    patterns: bool,
    /// `minProperties` and `maxProperties`.
    counts: bool,
    /// A `pattern` with anchors inside it.
    anchored: bool,
    /// Every `pattern`.
    pattern: bool,
    /// `minLength` and `maxLength` beside a `pattern` or `format`.
    lengths: bool,
}

impl Relaxed {
    /// What a schema needs before any attempt; None: nothing.
    pub(super) fn before(schema: &Value) -> Option<Self> {
        let many = limits::pattern_pairs(schema) > MAX_PATTERN_PAIRS;
        many.then(|| Self { patterns: true, ..Self::default() })
    }

    /// # Errors
    /// A schema that is not to be relaxed cannot be compiled in bounded time.
    pub(super) fn none(schema: &Value) -> Result<(), String> {
        match limits::pattern_pairs(schema) {
            0..=MAX_PATTERN_PAIRS => Ok(()),
            pairs => {
                Err(format!("{pairs} pairs of patternProperties, more than {MAX_PATTERN_PAIRS}"))
            }
        }
    }

    /// Leaves out what a message of llguidance names; false: it is left out already, or the message
    /// is of something else.
    pub(super) fn widen(&mut self, message: &str) -> bool {
        let has = |part: &str| message.contains(part);
        let part = if has("Unimplemented keys") || has("Unknown format") || has("oneOf constraints")
        {
            &mut self.keywords
        } else if has("circular references with sibling") {
            match self.beside_references {
                true => &mut self.inherited,
                false => &mut self.beside_references,
            }
        } else if has("patternProperty regexes") {
            &mut self.patterns
        } else if has("look-around") || has("lookarounds") || has("backreferences") {
            match (self.anchored, self.pattern) {
                (false, _) => &mut self.anchored,
                (true, false) => &mut self.pattern,
                (true, true) => &mut self.patterns,
            }
        } else if has("min/maxProperties only supported") {
            &mut self.counts
        } else if has("determine if regex is empty") {
            &mut self.lengths
        } else {
            return false;
        };
        !std::mem::replace(part, true)
    }

    /// The schema without what is left out.
    pub(super) fn apply(self, schema: &mut Value) {
        let Value::Object(keywords) = schema else { return };
        self.apply_here(keywords);
        for (name, value) in keywords.iter_mut() {
            match (name.as_str(), value) {
                ("const" | "enum" | "default" | "examples" | "required", _) => {}
                (
                    "properties" | "patternProperties" | "$defs" | "definitions",
                    Value::Object(schemas),
                ) => schemas.values_mut().for_each(|schema| self.apply(schema)),
                (_, Value::Array(schemas)) => {
                    schemas.iter_mut().for_each(|schema| self.apply(schema));
                }
                (_, value) => self.apply(value),
            }
        }
    }

    fn apply_here(self, keywords: &mut Map<String, Value>) {
        if self.keywords {
            keywords.retain(|name, value| match name.as_str() {
                "format" => value.as_str().is_some_and(|format| FORMATS.contains(&format)),
                name => !UNMASKED.contains(&name),
            });
            if let Some(branches) = keywords.shift_remove("oneOf") {
                let either = json!({ "anyOf": branches });
                match keywords.get_mut("allOf") {
                    Some(Value::Array(all)) => all.push(either),
                    _ => drop(keywords.insert("allOf".to_owned(), json!([either]))),
                }
            }
        }
        if self.beside_references && keywords.get("$ref").is_some_and(Value::is_string) {
            let stays = ["$ref", "$defs", "definitions", "$id", "id", "$schema", "x-guidance"];
            keywords.retain(|name, _| stays.contains(&name.as_str()));
        }
        if self.inherited
            && let Some(Value::Array(all)) = keywords.get_mut("allOf")
        {
            all.retain(|schema| schema.get("$ref").is_none());
            if all.is_empty() {
                keywords.shift_remove("allOf");
            }
        }
        if self.patterns && keywords.shift_remove("patternProperties").is_some() {
            keywords.shift_remove("additionalProperties");
        }
        if let Some(pattern) = keywords.get("pattern").and_then(Value::as_str) {
            let inside = pattern.trim_start_matches('^').trim_end_matches('$');
            let is_anchored = ["^", "$", "\\b", "\\B"].iter().any(|sign| inside.contains(sign));
            if self.pattern || (self.anchored && is_anchored) {
                keywords.shift_remove("pattern");
            }
        }
        if self.counts {
            keywords.shift_remove("minProperties");
            keywords.shift_remove("maxProperties");
        }
        if self.lengths && (keywords.contains_key("pattern") || keywords.contains_key("format")) {
            keywords.shift_remove("minLength");
            keywords.shift_remove("maxLength");
        }
    }
}
