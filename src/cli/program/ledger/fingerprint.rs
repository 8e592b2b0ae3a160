//! `Fingerprint`: everything that the bytes of a row depend on besides the row. A run continues
//! another only if theirs are equal.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plain_values;

/// The fields that say which model answers and how it computes, without the run's parameters.
const SYSTEM: [&str; 11] = [
    "version",
    "model",
    "config",
    MMPROJ,
    "hf_overrides",
    "checkpoint_format",
    "tokenizer",
    "quantization",
    "kv_cache_dtype",
    "dtype",
    "kernel_set",
];

/// The adapters that rows may name. A run without any has no such field.
pub const LORA_MODULES: &str = "lora_modules";

/// The file that makes a GGUF model see. A run without one has no such field.
pub const MMPROJ: &str = "mmproj";

/// Whether rows without text are asked. Such a row fails, or it is answered: others are the same.
pub const ALLOW_EMPTY_PROMPTS: &str = "allow_empty_prompts";

/// Fields of some runs alone: others have none of it.
const IN_SOME_RUNS: [&str; 2] = [LORA_MODULES, MMPROJ];

/// Named values, equal if and only if the same row gives the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// blake3 over the fields, as 64 hexadecimal digits.
    pub id: String,
    /// What is compared, by name.
    pub fields: BTreeMap<String, String>,
}

impl Fingerprint {
    /// A fingerprint of fields.
    pub fn new(fields: BTreeMap<String, String>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for (name, value) in &fields {
            for text in [name, value] {
                hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
            }
        }
        Self { id: hasher.finalize().to_hex().to_string(), fields }
    }

    /// What is different in the fields that both have, and whether one of them alone has adapters
    /// or a projector; one line each.
    pub fn differences(&self, now: &Fingerprint) -> Vec<String> {
        let differs = |(name, then): (&String, &String)| {
            let text = now.fields.get(name)?;
            let [then_value, value] = [then, text].map(|text| plain_values::value(name, text));
            // As texts: the order of names counts.
            let [then_json, json] = [&then_value, &value].map(serde_json::Value::to_string);
            let is_other = then != text && then_json != json;
            is_other.then(|| format!("{name}: {} then, {} now", shown(&then_value), shown(&value)))
        };
        let of_some = |run: &Fingerprint, name: &str| match run.fields.get(name) {
            None => "none".to_owned(),
            Some(value) => value.clone(),
        };
        let of_some = IN_SOME_RUNS.iter().filter_map(|name| {
            let (then, others) = (of_some(self, name), of_some(now, name));
            (then != others).then(|| format!("{name}: {then} then, {others} now"))
        });
        let is_other = |(name, _): &(&String, &String)| !IN_SOME_RUNS.contains(&name.as_str());
        self.fields.iter().filter(is_other).filter_map(differs).chain(of_some).collect()
    }

    /// The same of rows with an answer, where those that failed are asked again: what is asked now
    /// beside them is no difference.
    pub fn differences_of_answers(&self, now: &Fingerprint) -> Vec<String> {
        let mut now = now.clone();
        if let Some(value) = self.fields.get(ALLOW_EMPTY_PROMPTS)
            && value == "false"
        {
            now.fields.insert(ALLOW_EMPTY_PROMPTS.to_owned(), value.clone());
        }
        self.differences(&now)
    }

    /// OpenAI's `system_fingerprint`: equal for runs of one model on one kind of machine, whatever
    /// was sampled and when.
    pub fn system(&self) -> String {
        let is_system = |(name, _): &(&String, &String)| SYSTEM.contains(&name.as_str());
        let fields = self.fields.iter().filter(is_system);
        let system = Self::new(fields.map(|(k, v)| (k.clone(), v.clone())).collect());
        format!("fp_{}", &system.id[..16])
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(fields: &[(&str, &str)]) -> Fingerprint {
        Fingerprint::new(fields.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect())
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let then = fingerprint(&[("dtype", "float32"), ("kernel_set", "a")]);
        let now = fingerprint(&[("dtype", "bfloat16"), ("kernel_set", "a")]);
        assert_eq!(then.differences(&now), ["dtype: float32 then, bfloat16 now"]);
        assert_ne!(then.id, now.id);
        // Before the engine is loaded nobody knows the kernels.
        let files = fingerprint(&[("dtype", "float32")]);
        assert!(then.differences(&files).is_empty());
    }

    #[test]
    fn a_run_without_adapters_is_another_than_one_with_them() {
        let without = fingerprint(&[("dtype", "float32")]);
        let with = |adapters: &str| fingerprint(&[("dtype", "float32"), (LORA_MODULES, adapters)]);
        assert_eq!(without.differences(&with("a")), ["lora_modules: none then, a now"]);
        assert_eq!(with("a").differences(&without), ["lora_modules: a then, none now"]);
        assert_eq!(with("a").differences(&with("b")), ["lora_modules: a then, b now"]);
        assert!(with("a").differences(&with("a")).is_empty());
    }

    #[test]
    fn the_system_is_the_model_and_its_kernels() {
        let run = |dtype: &str, temperature: &str, date: &str| {
            let fields = [("dtype", dtype), ("temperature", temperature), ("date", date)];
            fingerprint(&fields).system()
        };
        assert_eq!(run("float32", "0", "1"), run("float32", "1", "2"));
        assert_ne!(run("float32", "0", "1"), run("bfloat16", "0", "1"));
        assert_eq!(run("float32", "0", "1").len(), "fp_".len() + 16);
    }

    #[test]
    fn answers_stay_where_more_rows_are_asked() {
        let run = |value: &str| fingerprint(&[(ALLOW_EMPTY_PROMPTS, value), ("dtype", "a")]);
        assert!(run("false").differences_of_answers(&run("true")).is_empty());
        assert_eq!(run("true").differences_of_answers(&run("false")).len(), 1);
        let other = fingerprint(&[(ALLOW_EMPTY_PROMPTS, "true"), ("dtype", "b")]);
        assert_eq!(run("false").differences_of_answers(&other), ["dtype: a then, b now"]);
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        assert_ne!(fingerprint(&[("a", "bc")]).id, fingerprint(&[("ab", "c")]).id);
    }
}
