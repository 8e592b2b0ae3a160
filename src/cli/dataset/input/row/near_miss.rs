//! Fields that are almost named like a parameter: a slip that would otherwise pass in silence.

use std::collections::HashMap;

use super::remarks::Remark;
use super::unsupported;
use crate::input::fields::JsonFields;
use crate::input::overrides;

/// Shorter names are near to too many others: of these only the way of writing may differ.
const MIN_LENGTH: usize = 8;

/// Nothing shorter is near to anything.
const MIN_LENGTH_OF_ANY: usize = 4;

/// Letters that the way of writing may add or take away.
const MAX_DIFFERENCE: usize = 3;

/// Nothing longer is near to a parameter.
const MAX_LENGTH: usize = 32;

/// Names that are remembered at a time: rows of one input have few, and a hostile one may not fill
/// memory.
const MAX_REMEMBERED: usize = 1024;

/// From this length on, two letters may be wrong.
const MIN_LENGTH_OF_TWO: usize = 11;

/// Names of parameters in other programs, in rows that are no batch requests.
const SYNONYMS: &[(&str, &str)] = &[
    ("max_new_tokens", "max_tokens"),
    ("max_output_tokens", "max_tokens"),
    ("num_beams", "beam_width"),
    ("num_return_sequences", "n"),
    ("stop_sequences", "stop"),
    ("stop_strings", "stop"),
    ("top_logprobs", "logprobs"),
];

/// Fields of requests that are near to a parameter and have a meaning of their own.
const OWN_MEANING: &[&str] = &["max_output_tokens", "stop_sequences", "top_logprobs"];

/// Parameters of chats, beside those of sampling.
const OF_CHATS: &[&str] = &[
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "include_reasoning",
    "parallel_tool_calls",
    "reasoning_effort",
];

/// Finds near misses. The same few names stand in every row, so what each is near to is remembered.
#[derive(Debug, Default)]
pub(super) struct NearMisses {
    known: HashMap<String, Option<&'static str>>,
}

impl NearMisses {
    /// The fields of a row, or of a request's body, that are no parameter but almost named like
    /// one.
    pub(super) fn find(&mut self, fields: &JsonFields, is_request: bool) -> Vec<Remark> {
        let mut found = Vec::new();
        for field in fields.iter() {
            if let Some(meant) = self.meant(&field.name, is_request) {
                found.push(Remark::NearMiss { name: field.name.to_string(), meant });
            }
        }
        found
    }

    fn meant(&mut self, name: &str, is_request: bool) -> Option<&'static str> {
        if is_request {
            return if OWN_MEANING.contains(&name) { None } else { self.nearest(name) };
        }
        let synonym = SYNONYMS.iter().find(|(known, _)| *known == name);
        synonym.map(|(_, meant)| *meant).or_else(|| self.nearest(name))
    }

    fn nearest(&mut self, name: &str) -> Option<&'static str> {
        if !(MIN_LENGTH_OF_ANY..=MAX_LENGTH).contains(&name.len()) {
            return None;
        }
        if let Some(nearest) = self.known.get(name) {
            return *nearest;
        }
        let nearest = nearest(name);
        if self.known.len() == MAX_REMEMBERED {
            self.known.clear();
        }
        self.known.insert(name.to_owned(), nearest);
        nearest
    }
}

/// Every parameter.
fn parameters() -> impl Iterator<Item = &'static str> {
    overrides::parameter_names().chain(OF_CHATS.iter().copied())
}

/// The parameter that a name is almost, but not quite.
fn nearest(name: &str) -> Option<&'static str> {
    if parameters().any(|parameter| parameter == name) || unsupported::is_known(name) {
        return None;
    }
    let plain = plain(name);
    parameters().find(|parameter| {
        if name.len().abs_diff(parameter.len()) > MAX_DIFFERENCE {
            return false;
        }
        let plain_parameter = self::plain(parameter);
        if plain == plain_parameter {
            return true;
        }
        let most = match parameter.len() {
            0..MIN_LENGTH => return false,
            MIN_LENGTH..MIN_LENGTH_OF_TWO => 1,
            _ => 2,
        };
        name.len().abs_diff(parameter.len()) <= most
            && strsim::osa_distance(name, parameter) <= most
    })
}

/// A name without capitals and what separates words.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(|c| !matches!(c, '_' | '-' | ' ' | '.'));
    letters.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(name: &str) -> Option<&'static str> {
        let fields = JsonFields::from_pairs(&[("prompt", "\"p\""), (name, "1")]);
        let mut found = NearMisses::default().find(&fields, false);
        assert!(found.len() < 2, "{found:?}");
        found.pop().map(|remark| match remark {
            Remark::NearMiss { meant, .. } => meant,
            other => panic!("{other:?}"),
        })
    }

    fn near_miss(name: &str, meant: &'static str) -> Remark {
        Remark::NearMiss { name: name.to_owned(), meant }
    }

    #[test]
    fn slips_are_recognised() {
        for (name, parameter) in [
            ("temprature", "temperature"),
            ("Temperature", "temperature"),
            ("tempertaure", "temperature"),
            ("max_token", "max_tokens"),
            ("maxTokens", "max_tokens"),
            ("top-p", "top_p"),
            ("topK", "top_k"),
            ("repitition_penality", "repetition_penalty"),
            ("chat_template_kwarg", "chat_template_kwargs"),
            ("max_new_tokens", "max_tokens"),
        ] {
            assert_eq!(meant(name), Some(parameter), "{name}");
        }
    }

    #[test]
    fn fields_of_users_are_not() {
        for name in [
            "temperature",
            "max_tokens",
            "id",
            "answer",
            "top_n",
            "steps",
            "seeds",
            "N",
            "score",
            "tokens",
            "num_tokens",
            "n_tokens",
            "template",
            "label",
            "stops",
            "prompt_id",
            "guided_json",
            "metadata",
            "temp",
            "model",
            "messages",
            "text",
            "max_length",
        ] {
            assert_eq!(meant(name), None, "{name}");
        }
    }

    #[test]
    fn requests_have_names_of_their_own() {
        let fields = JsonFields::from_pairs(&[("top_logprobs", "5"), ("max_tokns", "5")]);
        let mut names = NearMisses::default();
        assert_eq!(names.find(&fields, true), [near_miss("max_tokns", "max_tokens")]);
        let of_row = [near_miss("top_logprobs", "logprobs"), near_miss("max_tokns", "max_tokens")];
        assert_eq!(names.find(&fields, false), of_row, "in rows they have another meaning");
    }

    #[test]
    fn what_is_remembered_is_what_was_found_and_has_an_end() {
        let mut names = NearMisses::default();
        let slip = JsonFields::from_pairs(&[("temprature", "1"), ("category", "1")]);
        for _ in 0..2 {
            assert_eq!(names.find(&slip, false), [near_miss("temprature", "temperature")]);
        }
        assert_eq!(names.known.len(), 2);
        for number in 0..2 * MAX_REMEMBERED {
            let name = format!("field{number}");
            assert!(names.find(&JsonFields::from_pairs(&[(&name, "1")]), false).is_empty());
            assert!(names.known.len() <= MAX_REMEMBERED);
        }
        assert_eq!(names.find(&slip, false), [near_miss("temprature", "temperature")]);
    }

    #[test]
    fn no_parameter_is_too_long_to_be_near() {
        assert!(parameters().all(|name| name.len() + MAX_DIFFERENCE <= MAX_LENGTH));
    }
}
