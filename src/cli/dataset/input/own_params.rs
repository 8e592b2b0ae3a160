//! `OwnParams`: which fields of rows set parameters of their rows (`--row-params`), and which flags
//! they overrule.

use std::collections::BTreeSet;

use super::overrides::parameter_names;

/// Fields of rows that set something other than a sampling parameter.
const OTHERS: &[&str] = &[
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "include_reasoning",
    "lora",
    "parallel_tool_calls",
    "reasoning_effort",
    "top_n",
    "use_activation",
];

/// Parameters whose flag has another name.
const FLAGS: &[(&str, &str)] = &[
    ("max_completion_tokens", "max_tokens"),
    ("max_output_tokens", "max_tokens"),
    ("stop_sequences", "stop"),
    ("response_format", "structured_outputs"),
    ("use_beam_search", "beam_width"),
];

/// Fields of rows that set parameters. In batch requests all fields do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnParams {
    /// Chosen names; `None`: every field with the name of a parameter.
    chosen: Option<BTreeSet<String>>,
    /// Flags that were typed, by the names of their parameters.
    typed: Vec<String>,
}

impl OwnParams {
    /// `--row-params`: `all`, `none`, or names with commas between them.
    ///
    /// # Errors
    /// In words: a name is that of no parameter.
    pub fn parse(text: &str) -> Result<Self, String> {
        let chosen = match text.trim() {
            "all" => None,
            "none" => Some(BTreeSet::new()),
            names => Some(names.split(',').map(known).collect::<Result<_, _>>()?),
        };
        Ok(Self { chosen, typed: Vec::new() })
    }

    /// The same with the flags that were typed.
    pub fn with_typed(self, typed: Vec<String>) -> Self {
        Self { typed, ..self }
    }

    /// Whether every field counts.
    pub fn are_all(&self) -> bool {
        self.chosen.is_none()
    }

    /// Whether a field of this name is data, though a parameter has the name.
    pub fn is_data(&self, name: &str) -> bool {
        self.chosen.as_ref().is_some_and(|chosen| !chosen.contains(name))
    }

    /// The typed flag that a field of this name overrules.
    pub fn overruled(&self, name: &str) -> Option<String> {
        let flag = FLAGS.iter().find(|(known, _)| *known == name).map_or(name, |(_, flag)| flag);
        let is_typed = self.typed.iter().any(|typed| typed == flag);
        is_typed.then(|| format!("--{}", flag.replace('_', "-")))
    }

    /// The choice as the flag has it: rows depend on it.
    pub fn text(&self) -> String {
        match &self.chosen {
            None => "all".to_owned(),
            Some(chosen) if chosen.is_empty() => "none".to_owned(),
            Some(chosen) => chosen.iter().cloned().collect::<Vec<_>>().join(","),
        }
    }

    /// The note on fields that set parameters. `what` is what they are called.
    pub fn note(&self, what: &str, names: &[&str]) -> String {
        let flags: Vec<String> = names.iter().filter_map(|name| self.overruled(name)).collect();
        let over = match flags.is_empty() {
            true => String::new(),
            false => format!(", over {}", flags.join(", ")),
        };
        let (names, are_several) = (names.join(", "), names.len() > 1);
        let sets = match are_several {
            true => format!("{what}s {names} set parameters of their rows"),
            false => format!("{what} {names} sets a parameter of its row"),
        };
        format!("{sets}{over}; --row-params none makes them data")
    }
}

/// A name of a parameter.
fn known(name: &str) -> Result<String, String> {
    let name = name.trim();
    match is_parameter(name) {
        true => Ok(name.to_owned()),
        false => {
            let names: Vec<_> = parameter_names().chain(OTHERS.iter().copied()).collect();
            let names = names.join(", ");
            Err(format!("'{name}' is no parameter of rows: give all, none, or some of {names}"))
        }
    }
}

/// Whether a parameter of rows has the name.
pub fn is_parameter(name: &str) -> bool {
    parameter_names().any(|known| known == name) || OTHERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_flag_are_parameters() {
        let of = |text: &str| OwnParams::parse(text).unwrap();
        assert!(of("all").are_all() && !of("all").is_data("temperature"));
        assert!(of("none").is_data("temperature") && of("none").is_data("lora"));
        let some = of(" seed, stop ");
        assert!(some.is_data("temperature") && !some.is_data("stop"));
        assert_eq!(some.text(), "seed,stop");
        assert!(OwnParams::parse("temprature").unwrap_err().contains("'temprature' is no param"));
    }

    #[test]
    fn flags_that_are_overruled_are_named() {
        let typed = vec!["max_tokens".to_owned(), "top_p".to_owned()];
        let params = OwnParams::default().with_typed(typed);
        assert_eq!(
            params.note("column", &["max_completion_tokens", "stop"]),
            "columns max_completion_tokens, stop set parameters of their rows, over --max-tokens; \
             --row-params none makes them data"
        );
    }
}
