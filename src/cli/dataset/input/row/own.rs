//! Rows of datasets: what a row asks that is no batch request.

use super::asked::Asked;
use super::named::NamedRow;
use super::near_miss::NearMisses;
use super::prompt::{Built, PromptBuilder};
use super::shape::RowShape;
use super::unsupported::{self, Place};
use super::{Likelihoods, Task, tools};
use crate::input::overrides::Overrides;
use crate::input::row_error::RowError;

/// Fields that are a part of a chat, as its messages are.
const OF_PROMPTS: &[&str] = &["tools", "tool_choice", "functions", "function_call"];

/// Reads a row that is no batch request.
pub(super) fn read(
    builder: &PromptBuilder,
    task: Task,
    names: &mut NearMisses,
    (shape, named): (&RowShape, &NamedRow),
    line: u64,
) -> Result<Asked, RowError> {
    let own_params = builder.own_params();
    let is_data = |name: &str| own_params.is_data(name) && !OF_PROMPTS.contains(&name);
    let settings = named.fields.without(is_data);
    let built = builder.build(shape, named, &settings, line)?;
    let fields = &*settings;
    let lora = builder.names().of_row(fields, line)?;
    if task != Task::Complete {
        let overrides = match task {
            Task::Classify | Task::Reward => Overrides::collect_classes(fields),
            Task::Rerank => Overrides::collect_top_n(fields),
            // A row's own fields say nothing of vectors.
            Task::Complete | Task::Embed | Task::Score => Overrides::none(),
        };
        let asked = match built {
            Built::Chat(made) => Asked::of_chat(*made, overrides),
            Built::Plain(prompt) => Asked::new(prompt, overrides),
        };
        return Ok(Asked { lora, ..asked });
    }
    unsupported::check(fields, Place::Row, line)?;
    let mut overrides = Overrides::collect(fields);
    if fields.get("response_format").is_some_and(|json| !json.starts_with('{')) {
        // A field of the user's own.
        overrides = overrides.with("response_format", None);
    }
    let asked = match built {
        Built::Chat(made) => Asked::of_chat(*made, overrides),
        Built::Plain(prompt) => {
            tools::refuse_beside_text(fields, line)?;
            Asked::new(prompt, overrides)
        }
    };
    let near_misses = match own_params.are_all() {
        true => names.find(fields, false),
        // Whoever chose by name wrote the names.
        false => Vec::new(),
    };
    let asked = Asked { lora, ..asked }.with_remarks(near_misses);
    Ok(match builder.likelihoods() {
        Likelihoods::None => asked,
        likelihoods => {
            let prompt = likelihoods.ask(asked.prompt, &named.fields, line)?;
            // Nothing is said that could have parts.
            Asked { prompt, answer_form: None, ..asked }
        }
    })
}
