//! Which modules a format quantizes, and which it leaves as they are: by their names.

use fancy_regex::{Regex, escape};

use crate::patterns;

/// A linear layer of a model.
#[derive(Clone, Copy, Debug)]
pub struct Module<'a> {
    /// As transformers calls it, and as the weight files do.
    pub names: [&'a str; 2],
    /// Where in the model it is.
    pub place: Place,
}

/// Where in a model a linear layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a decoder layer.
    Layer,
    /// What chooses experts there.
    Router,
    /// The output layer.
    Head,
    /// Between the embedding and the layers, or the layers and the output layer.
    Elsewhere,
    /// In a vision tower, or between it and the decoder.
    Tower,
}

/// A rule of a config: which names it is about.
#[derive(Clone, Debug)]
pub(super) enum Rule {
    /// This name.
    Name(String),
    /// All with this in them.
    Part(String),
    /// All that end like this.
    Ending(String),
    /// All that match.
    Pattern(Box<Regex>),
}

impl Rule {
    /// Python's `re.match`: a pattern that names match from their start on.
    ///
    /// # Errors
    /// It is no pattern.
    pub(super) fn pattern(text: &str) -> Result<Self, String> {
        Self::compiled(&format!("^(?:{text})"), text)
    }

    /// `*` for anything and `?` for a character.
    ///
    /// # Errors
    /// It is too long.
    pub(super) fn wildcard(text: &str) -> Result<Self, String> {
        let pattern = escape(text).replace(r"\*", ".*").replace(r"\?", ".");
        Self::compiled(&format!("^(?:{pattern})$"), text)
    }

    /// transformers' `should_convert_module`: a module and all in it as a pattern, or an ending.
    ///
    /// # Errors
    /// It is no pattern.
    pub(super) fn of_transformers(text: &str) -> Result<[Self; 2], String> {
        let pattern = Self::compiled(&format!(r"^(?:{text})(?:(?<=\.)|(?=\.|$))"), text)?;
        Ok([pattern, Self::Ending(text.to_owned())])
    }

    fn compiled(pattern: &str, text: &str) -> Result<Self, String> {
        Ok(Self::Pattern(Box::new(patterns::compiled(pattern, text)?)))
    }

    /// Whether it is about one of the module's names.
    ///
    /// # Errors
    /// A pattern takes too long.
    pub(super) fn is_about(&self, module: &Module<'_>) -> Result<bool, String> {
        for name in module.names {
            let is_it = match self {
                Rule::Name(rule) => rule == name,
                Rule::Part(part) => name.contains(part.as_str()),
                Rule::Ending(ending) => name.ends_with(ending.as_str()),
                Rule::Pattern(regex) => patterns::is_match(regex, name)?,
            };
            if is_it {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether one of several rules is.
    ///
    /// # Errors
    /// As `is_about`.
    pub(super) fn any_is_about(rules: &[Self], module: &Module<'_>) -> Result<bool, String> {
        for rule in rules {
            if rule.is_about(module)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_about(rule: &Rule, name: &str) -> bool {
        let module = Module { names: ["other", name], place: Place::Layer };
        rule.is_about(&module).unwrap()
    }

    #[test]
    fn each_kind_of_rule_is_about_its_names() {
        let q_proj = "model.layers.1.self_attn.q_proj";
        let pattern = Rule::pattern(r".*\.1\..*q_proj").unwrap();
        assert!(is_about(&pattern, q_proj) && !is_about(&pattern, "model.layers.2.q_proj"));
        // `re.match` begins at the start and may end before the end.
        assert!(!is_about(&Rule::pattern("layers").unwrap(), q_proj));
        assert!(is_about(&Rule::pattern("model").unwrap(), q_proj));
        let wildcard = Rule::wildcard("model.layers.1*").unwrap();
        assert!(is_about(&wildcard, q_proj) && is_about(&wildcard, "model.layers.10.mlp"));
        assert!(!is_about(&Rule::wildcard("model.layers.1").unwrap(), q_proj));
        let [pattern, ending] = Rule::of_transformers("model.layers.1").unwrap();
        assert!(is_about(&pattern, q_proj) && !is_about(&pattern, "model.layers.10.mlp"));
        assert!(!is_about(&ending, q_proj) && is_about(&ending, "a.model.layers.1"));
        assert!(is_about(&Rule::Part("attn.q".to_owned()), q_proj));
        assert!(!is_about(&Rule::Name("q_proj".to_owned()), q_proj));
        assert!(Rule::pattern("(").unwrap_err().contains("`(` is no pattern"));
    }

    #[test]
    fn a_pattern_without_an_end_is_refused() {
        let rule = Rule::pattern(r"(a*)(a*)(a*)\1\2bc").unwrap();
        let name = format!("{}cb", "a".repeat(200));
        let module = Module { names: [&name, &name], place: Place::Layer };
        assert!(rule.is_about(&module).is_err());
        assert!(Rule::pattern(r"(?:a{500}){500}").is_err());
        assert!(Rule::pattern(r".*\.\d+\.\w+_proj$").is_ok());
    }
}
