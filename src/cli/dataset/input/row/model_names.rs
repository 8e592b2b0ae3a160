//! Model or adapter that answers a row. A row says it by its field `lora`, a
//! request by its `model`, as in vLLM. A name that nobody has is never the model in silence.

use std::sync::Arc;

use super::shape::kind_name;
use crate::input::fields::JsonFields;
use crate::input::row_error::{RowError, code};
use vllm_batch_api::request::LoraId;

/// The field of a row that names an adapter.
const LORA: &str = "lora";

/// The field of a request that names who answers.
const MODEL: &str = "model";

/// Letters of a name that a message quotes.
const MAX_QUOTED: usize = 200;

/// Names that a help lists.
const MAX_LISTED: usize = 8;

/// Names of the model and its adapters in rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelNames {
    base: Vec<String>,
    loras: Vec<Arc<str>>,
    merged: Option<String>,
}

impl ModelNames {
    /// A model of these names, with adapters of those, by their `LoraId`.
    pub fn new(base: Vec<String>, loras: impl IntoIterator<Item = String>) -> Self {
        Self { base, loras: loras.into_iter().map(Arc::from).collect(), merged: None }
    }

    /// A model that an adapter has become a part of: no row is computed without it.
    pub fn merged(name: String) -> Self {
        Self { merged: Some(name), ..Self::default() }
    }

    /// The name of an adapter.
    ///
    /// # Panics
    /// It is none of this model's.
    pub(super) fn name_of(&self, lora: LoraId) -> Arc<str> {
        Arc::clone(&self.loras[lora.0 as usize])
    }

    /// Whether rows may name an adapter.
    pub(super) fn has_adapters(&self) -> bool {
        !self.loras.is_empty()
    }

    /// The adapter that a row's field `lora` names.
    pub(super) fn of_row(
        &self,
        fields: &JsonFields,
        line: u64,
    ) -> Result<Option<LoraId>, RowError> {
        self.named(LORA, fields, line)
    }

    /// The adapter that a request's `model` names. Where there are no adapters it is not looked at:
    /// files for other servers name those servers' models.
    pub(super) fn of_request(
        &self,
        body: &JsonFields,
        line: u64,
    ) -> Result<Option<LoraId>, RowError> {
        if body.get(LORA).is_some_and(|json| !matches!(json, "null" | "\"\"")) {
            let message = "lora: not supported: a request names its adapter in `model`";
            let error = RowError::new(code::UNSUPPORTED_FIELD, line, message).of_param(LORA);
            return Err(error.with_help("leave the field out"));
        }
        match self.loras.is_empty() && self.merged.is_none() {
            true => Ok(None),
            false => self.named(MODEL, body, line),
        }
    }

    fn named(
        &self,
        field: &'static str,
        fields: &JsonFields,
        line: u64,
    ) -> Result<Option<LoraId>, RowError> {
        let json = match fields.get(field) {
            None | Some("null") => return Ok(None),
            Some(json) => json,
        };
        let name: String = serde_json::from_str(json).map_err(|_| {
            let message = format!("{field}: expected a name, found {}", kind_name(json));
            RowError::new(code::INVALID_PARAMETER, line, message).of_param(field)
        })?;
        match self.find(&name) {
            Some(lora) => Ok(lora),
            None => {
                let mut quoted: String = name.chars().take(MAX_QUOTED).collect();
                if quoted.len() < name.len() {
                    quoted.push_str("...");
                }
                // In vLLM's words.
                let message = format!("The model `{quoted}` does not exist.");
                let error = RowError::new(code::MODEL_NOT_FOUND, line, message).of_param(field);
                Err(error.with_help(self.help()))
            }
        }
    }

    /// Owner of a name: an adapter, or the model itself. `None`: unknown.
    fn find(&self, name: &str) -> Option<Option<LoraId>> {
        if name.is_empty() || self.merged.as_deref() == Some(name) {
            return Some(None);
        }
        let lora = self.loras.iter().position(|lora| **lora == *name);
        let of_base = || self.base.iter().any(|base| base == name).then_some(None);
        lora.map(|index| Some(LoraId(index as u32))).or_else(of_base)
    }

    fn help(&self) -> String {
        if let Some(merged) = &self.merged {
            return format!("name `{merged}`, which is a part of the weights, or nobody");
        }
        let quoted = |names: &mut dyn Iterator<Item = &str>| {
            let names: Vec<_> = names.take(MAX_LISTED).map(|name| format!("`{name}`")).collect();
            names.join(", ")
        };
        let more = if self.loras.len() > MAX_LISTED { ", ..." } else { "" };
        let loras = quoted(&mut self.loras.iter().map(|name| &**name)) + more;
        match (self.base.first(), self.loras.is_empty()) {
            (_, true) => "there are no adapters; --lora-modules NAME=DIR gives them".to_owned(),
            (None, false) => format!("the adapters are {loras}"),
            (Some(base), false) => format!("the adapters are {loras}; the model is `{base}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> ModelNames {
        let base = ["served", "./models/base", "base"].map(str::to_owned);
        ModelNames::new(base.to_vec(), ["a".to_owned(), "b".to_owned()])
    }

    fn fields(json: &str) -> JsonFields {
        JsonFields::parse(json.to_owned(), 1).map_err(|bad| bad.1).unwrap()
    }

    type Found = Result<Option<u32>, (&'static str, String)>;

    fn found(found: Result<Option<LoraId>, RowError>) -> Found {
        found.map(|lora| lora.map(|lora| lora.0)).map_err(|error| (error.code, error.message))
    }

    fn of_row(names: &ModelNames, value: &str) -> Found {
        found(names.of_row(&fields(&format!("{{\"lora\":{value}}}")), 1))
    }

    fn of_request(names: &ModelNames, body: &str) -> Found {
        found(names.of_request(&fields(body), 1))
    }

    fn unknown(name: &str) -> Found {
        Err(("model_not_found", format!("The model `{name}` does not exist.")))
    }

    #[test]
    fn a_name_is_an_adapters_or_the_models_or_nobodys() {
        let names = names();
        for (value, expected) in [
            ("\"a\"", Ok(Some(0))),
            ("\"b\"", Ok(Some(1))),
            ("\"\\u0062\"", Ok(Some(1))),
            ("\"served\"", Ok(None)),
            ("\"./models/base\"", Ok(None)),
            ("\"base\"", Ok(None)),
            ("\"\"", Ok(None)),
            ("null", Ok(None)),
            ("\"A\"", unknown("A")),
            ("\"a \"", unknown("a ")),
        ] {
            assert_eq!(of_row(&names, value), expected, "{value}");
            let body = format!("{{\"model\":{value}}}");
            assert_eq!(of_request(&names, &body), expected, "{value}");
        }
        assert_eq!(of_request(&names, "{}"), Ok(None));
        assert_eq!(found(names.of_row(&fields("{}"), 1)), Ok(None));
        let no_name = Err(("invalid_parameter", "lora: expected a name, found a number".into()));
        assert_eq!(of_row(&names, "1"), no_name);
        let long = of_row(&names, &format!("\"{}\"", "x".repeat(999))).unwrap_err().1;
        assert_eq!(long, format!("The model `{}...` does not exist.", "x".repeat(200)));
    }

    #[test]
    fn without_adapters_a_requests_model_is_not_looked_at_and_lora_is() {
        let none = ModelNames::new(vec!["served".to_owned()], []);
        assert_eq!(of_request(&none, "{\"model\":\"gpt-4o\"}"), Ok(None));
        assert_eq!(of_row(&none, "\"served\""), Ok(None));
        assert_eq!(of_row(&none, "\"a\""), unknown("a"));
    }

    #[test]
    fn a_request_has_no_field_lora() {
        for names in [names(), ModelNames::default()] {
            let error = of_request(&names, "{\"lora\":\"a\"}").unwrap_err();
            assert_eq!(error.0, "unsupported_field");
            assert_eq!(of_request(&names, "{\"lora\":null}"), Ok(None));
        }
    }

    #[test]
    fn nobody_is_answered_without_an_adapter_that_is_merged() {
        let merged = ModelNames::merged("a".to_owned());
        assert_eq!(of_request(&merged, "{\"model\":\"a\"}"), Ok(None));
        assert_eq!(of_request(&merged, "{}"), Ok(None));
        assert_eq!(of_row(&merged, "\"a\""), Ok(None));
        assert_eq!(of_request(&merged, "{\"model\":\"served\"}"), unknown("served"));
    }

    #[test]
    fn a_help_lists_who_there_is() {
        let help = |names: &ModelNames| {
            names.of_row(&fields("{\"lora\":\"x\"}"), 1).unwrap_err().help.expect("a help")
        };
        assert_eq!(help(&names()), "the adapters are `a`, `b`; the model is `served`");
        let many = ModelNames::new(Vec::new(), (0..9).map(|index| index.to_string()));
        let listed = "the adapters are `0`, `1`, `2`, `3`, `4`, `5`, `6`, `7`, ...";
        assert_eq!(help(&many), listed);
        let none = "there are no adapters; --lora-modules NAME=DIR gives them";
        assert_eq!(help(&ModelNames::default()), none);
        let merged = "name `a`, which is a part of the weights, or nobody";
        assert_eq!(help(&ModelNames::merged("a".to_owned())), merged);
    }
}
