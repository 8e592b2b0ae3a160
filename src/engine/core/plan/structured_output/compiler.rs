//! `GrammarCompiler`: constraints to grammars, once per text.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::relaxed::Relaxed;
use super::{ebnf, limits, structural_tag, vocabulary};
use vllm_batch_api::request::{Constraint, RequestError, StructuredOutputs};
use vllm_batch_base::deep_stack::DeepStack;
use vllm_batch_text::json_schema::Validator;
use vllm_batch_text::{TextError, Tokenizer};

/// Grammars that are kept for other rows.
const MAX_KEPT: usize = 256;

/// Earley items in one row of the parser. llguidance allows 2000, whose cost is quadratic: an
/// ambiguous grammar then takes a second for a token.
const MAX_ITEMS_IN_ROW: usize = 500;

/// What a grammar may cost. Counts, not times: a row's answer does not depend on the machine. Of
/// these, lexer fuel is spent or not by what a lexer knows already, so only the others decide.
fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: MAX_ITEMS_IN_ROW,
        step_lexer_fuel: 2_000_000,
        max_lexer_states: 50_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// A compiled constraint. Rows copy it, and never run it: what a shared lexer has learned would
/// change what another row may cost.
pub struct Grammar {
    pristine: Matcher,
    /// What the finished answer is asked, where the masks do not keep to all of the schema.
    pub(super) validator: Option<Validator>,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grammar")
    }
}

impl Grammar {
    /// A matcher of its own for one sequence.
    pub(super) fn matcher(&self) -> Matcher {
        self.pristine.deep_clone()
    }
}

type Compiled = Result<Arc<Grammar>, RequestError>;

/// Compiles constraints for one model. Shared between threads.
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    eos_token_ids: Vec<u32>,
    /// Made for the first row that has a constraint.
    factory: OnceLock<Result<Arc<ParserFactory>, RequestError>>,
    kept: Mutex<Kept>,
    /// Where grammars are compiled.
    compiling: DeepStack,
    /// Where finished answers are validated: no answer waits for a grammar.
    validating: Arc<DeepStack>,
}

/// Grammars by the JSON of their constraints; the oldest go first.
#[derive(Default)]
struct Kept {
    /// The constraint that was asked for last, which all rows of a run may share.
    last: Option<(Arc<StructuredOutputs>, Compiled)>,
    by_text: HashMap<String, Compiled>,
    order: VecDeque<String>,
}

impl Kept {
    fn keep(&mut self, outputs: &Arc<StructuredOutputs>, text: String, compiled: &Compiled) {
        self.last = Some((Arc::clone(outputs), compiled.clone()));
        if self.by_text.contains_key(&text) {
            return;
        }
        if self.order.len() == MAX_KEPT {
            let oldest = self.order.pop_front().expect("it is full");
            self.by_text.remove(&oldest);
        }
        self.by_text.insert(text.clone(), compiled.clone());
        self.order.push_back(text);
    }
}

impl GrammarCompiler {
    /// For a model's tokens, any of which `eos_token_ids` end an answer.
    pub fn new(tokenizer: Arc<Tokenizer>, eos_token_ids: Vec<u32>) -> Self {
        let (factory, kept, compiling, validating) = Default::default();
        Self { tokenizer, eos_token_ids, factory, kept, compiling, validating }
    }

    /// The grammar of a constraint.
    ///
    /// # Errors
    /// Code `structured_outputs`: it does not compile, with the place where that is known, or the
    /// tokenizer cannot be constrained.
    pub fn compile(&self, outputs: &Arc<StructuredOutputs>) -> Compiled {
        let lock = || self.kept.lock().expect("no thread panics while it holds the lock");
        if let Some((last, known)) = &lock().last
            && Arc::ptr_eq(last, outputs)
        {
            return known.clone();
        }
        let text = outputs.to_json().to_string();
        let known = lock().by_text.get(&text).cloned();
        let compiled = known.unwrap_or_else(|| self.compile_anew(outputs));
        lock().keep(outputs, text, &compiled);
        compiled
    }

    fn compile_anew(&self, outputs: &StructuredOutputs) -> Compiled {
        limits::check(outputs).map_err(refused)?;
        if outputs.strict
            && let Constraint::Json(schema) = &outputs.constraint
        {
            Relaxed::none(schema).map_err(refused)?;
        }
        let grammar = match &outputs.constraint {
            Constraint::Json(schema) if !outputs.strict => self.of_schema(outputs, schema)?,
            _ => {
                let grammar = self.grammar(outputs).map_err(refused)?;
                let compiled = self.matcher(grammar)?;
                let compiled = compiled.map_err(|error| match outputs.strict {
                    true if Relaxed::default().widen(&error) => refused(format!(
                        "{}; help: leave out `strict`, and finished answers are validated",
                        shown(&error)
                    )),
                    _ => refused(error),
                });
                Grammar { pristine: compiled?, validator: None }
            }
        };
        Ok(Arc::new(grammar))
    }

    /// Masks keep to the schema; if they cannot, to what is left of it, and the finished answer is
    /// validated.
    fn of_schema(
        &self,
        outputs: &StructuredOutputs,
        schema: &Value,
    ) -> Result<Grammar, RequestError> {
        let mut relaxed = Relaxed::before(schema);
        loop {
            let mut masked = schema_of(outputs, schema);
            relaxed.unwrap_or_default().apply(&mut masked);
            let error = match self.matcher(TopLevelGrammar::from_json_schema(masked))? {
                Ok(pristine) => {
                    let needs = relaxed.is_some();
                    let validator =
                        needs.then(|| Validator::new(schema, &self.validating)).transpose();
                    let validator = validator.map_err(refused)?;
                    return Ok(Grammar { pristine, validator });
                }
                Err(error) => error,
            };
            if !relaxed.get_or_insert_default().widen(&error) {
                return Err(refused(error));
            }
        }
    }

    /// A matcher with its first mask; the inner error is llguidance's.
    fn matcher(&self, grammar: TopLevelGrammar) -> Result<Result<Matcher, String>, RequestError> {
        let factory = self.factory.get_or_init(|| self.new_factory()).as_ref();
        let factory = Arc::clone(factory.map_err(RequestError::clone)?);
        let compiled = self.compiling.run(move || {
            let matcher = Matcher::new(factory.create_parser(grammar));
            if let Some(error) = matcher.get_error() {
                return Err(error);
            }
            // Some faults show with the first mask only; found here, they name the schema.
            let mut trial = matcher.deep_clone();
            trial.compute_mask_or_eos().map_err(|error| error.to_string())?;
            Ok(matcher)
        });
        Ok(compiled.unwrap_or_else(|| Err("the compiler failed on it".to_owned())))
    }

    fn new_factory(&self) -> Result<Arc<ParserFactory>, RequestError> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let environment = vocabulary::environment(tokenizer, &self.eos_token_ids);
        let environment = environment.map_err(|error: TextError| refused(error))?;
        let mut factory = ParserFactory::new_simple(&environment).map_err(refused)?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(Arc::new(factory))
    }

    /// What llguidance compiles.
    fn grammar(&self, outputs: &StructuredOutputs) -> Result<TopLevelGrammar, String> {
        Ok(match &outputs.constraint {
            Constraint::Json(schema) => {
                TopLevelGrammar::from_json_schema(schema_of(outputs, schema))
            }
            Constraint::JsonObject => {
                TopLevelGrammar::from_json_schema(schema_of(outputs, &json!({"type": "object"})))
            }
            Constraint::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Constraint::Choice(choices) => {
                let quoted: Vec<String> =
                    choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", quoted.join(" | ")))
            }
            Constraint::Grammar(text) if ebnf::is_ebnf(text) => {
                let lark = ebnf::to_lark(text)?;
                limits::check_grammar(&lark)?;
                TopLevelGrammar::from_lark(lark)
            }
            Constraint::Grammar(text) => TopLevelGrammar::from_lark(text.clone()),
            Constraint::StructuralTag(tag) => {
                let is_special = |text: &str| {
                    let id = self.tokenizer.added_token_id(text);
                    id.is_some_and(|id| self.tokenizer.is_special(id))
                };
                let schema = |schema: &Value| schema_of(outputs, schema);
                let lark = structural_tag::to_lark(tag, is_special, &schema)?;
                limits::check_grammar(&lark)?;
                TopLevelGrammar::from_lark(lark)
            }
        })
    }
}

/// The schema with our options in place of any that the user wrote.
fn schema_of(outputs: &StructuredOutputs, schema: &Value) -> Value {
    let mut schema = schema.clone();
    if outputs.disable_additional_properties {
        close_objects(&mut schema);
    }
    let options = match (&outputs.whitespace_pattern, outputs.disable_any_whitespace) {
        (_, true) => json!({ "whitespace_flexible": false }),
        (Some(pattern), false) => json!({ "whitespace_pattern": pattern }),
        (None, false) => json!({ "whitespace_pattern": r"[ \t\n\r]{0,16}" }),
    };
    schema["x-guidance"] = options;
    schema
}

/// Objects with `properties` that say nothing of other keys get none. Only schemas are looked into:
/// a property may be called `properties`, and a constant may have such a key.
fn close_objects(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    for (name, value) in fields.iter_mut() {
        match (name.as_str(), value) {
            ("const" | "enum" | "default" | "examples", _) => {}
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                Value::Object(schemas),
            ) => schemas.values_mut().for_each(close_objects),
            (_, Value::Array(schemas)) => schemas.iter_mut().for_each(close_objects),
            (_, value) => close_objects(value),
        }
    }
    let has = |name: &str| fields.contains_key(name);
    if has("properties") && !has("additionalProperties") && !has("patternProperties") {
        fields.insert("additionalProperties".to_owned(), false.into());
    }
}

/// An error of llguidance on one line, without the backtrace that it may have, and without options
/// that nobody can set.
pub(super) fn shown(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let text = text.split("<backtrace>").next().unwrap_or_default();
    let text = text.replace(" <non-verbose/>", "").replace(
        "are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
        "are supported only where the branches exclude each other; write anyOf",
    );
    let line: Vec<&str> = text.split_whitespace().collect();
    line.join(" ").chars().take(300).collect()
}

fn refused(what: impl std::fmt::Display) -> RequestError {
    RequestError::new("structured_outputs", format!("structured_outputs: {}", shown(&what)))
}
