//! Flags that only some rows use: refused where no row of an input can, said where it is not known.

use super::pooling::all_typed;
use crate::cli::args::RunArgs;
use crate::cli::input::files::Shape;
use crate::cli::input::row::Task;
use crate::cli::terminal::error::CliError;

/// Which rows use a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UsedBy {
    /// Chats of datasets and of batch requests.
    Chats,
    /// Chats of datasets.
    ChatsOfDatasets,
    /// Rows that become lines of a batch API, and rows that name who answers.
    NamesOfModel,
}

/// The flags of them that were typed.
#[derive(Clone, Debug, Default)]
pub struct ParticularFlags {
    typed: Vec<(&'static str, UsedBy)>,
    /// Flags of sampling, where nothing is sampled.
    idle: Vec<String>,
}

impl ParticularFlags {
    /// Those of a command line.
    pub fn new(args: &RunArgs) -> Self {
        let (input, output) = (&args.input, &args.output);
        let has_adapters = !args.engine.lora.modules.lora_modules.is_empty();
        let flags = [
            ("--system-prompt", UsedBy::Chats, input.system_prompt.is_some()),
            ("--chat-template-kwargs", UsedBy::Chats, input.chat_template_kwargs.is_some()),
            ("--chat-template", UsedBy::Chats, input.chat_template.is_some()),
            ("--allow-special", UsedBy::Chats, input.allow_special),
            ("--reasoning-parser", UsedBy::Chats, output.reasoning_parser.is_some()),
            ("--tool-call-parser", UsedBy::Chats, output.tool_call_parser.is_some()),
            (
                "--thinking-token-budget",
                UsedBy::Chats,
                args.sampling.thinking_token_budget.is_some(),
            ),
            ("--last-assistant", UsedBy::ChatsOfDatasets, input.last_assistant.is_some()),
            (
                "--served-model-name",
                UsedBy::NamesOfModel,
                output.served_model_name.is_some() && !has_adapters,
            ),
        ];
        let typed = flags.into_iter().filter(|(.., is_typed)| *is_typed);
        let typed = typed.map(|(flag, used_by, _)| (flag, used_by)).collect();
        // The seed is that of dummy weights, too.
        let is_idle = |name: &&String| !["seed", "generation_config"].contains(&name.as_str());
        let idle = match args.loglikelihood {
            None => Vec::new(),
            Some(_) => all_typed(&args.sampling).iter().filter(is_idle).cloned().collect(),
        };
        Self { typed, idle }
    }

    /// What is said of flags that rows of a shape may not use.
    ///
    /// # Errors
    /// No row of the input can use one.
    pub fn check(&self, shape: &Shape) -> Result<Vec<String>, CliError> {
        let mut notes = Vec::new();
        for &(flag, used_by) in &self.typed {
            let reads_template = flag == "--chat-template"
                && (shape.task.compares() || shape.task == Task::Classify);
            let idle = match used_by {
                UsedBy::Chats if shape.is_batch || shape.is_chat || reads_template => continue,
                UsedBy::ChatsOfDatasets if shape.is_chat && !shape.is_batch => continue,
                UsedBy::NamesOfModel if shape.has_batch_lines => continue,
                UsedBy::ChatsOfDatasets if shape.is_batch => {
                    return Err(refused(flag, "the rows are batch requests, which say it"));
                }
                UsedBy::NamesOfModel => "rows that are no batch requests do not show it",
                UsedBy::Chats | UsedBy::ChatsOfDatasets if shape.is_fixed => {
                    return Err(refused(flag, "the rows are text, and it is for chat")
                        .help("leave the flag out, or give --chat"));
                }
                UsedBy::Chats | UsedBy::ChatsOfDatasets => {
                    "rows of text do not use it; --chat sends them as chat"
                }
            };
            notes.push(format!("{flag}: {idle}"));
        }
        if !self.idle.is_empty() {
            let flags: Vec<_> =
                self.idle.iter().map(|name| format!("--{}", name.replace('_', "-"))).collect();
            let flags = flags.join(", ");
            notes.push(format!("{flags}: nothing is sampled with --loglikelihood"));
        }
        Ok(notes)
    }

    /// Refuses flags of chats, where all requests were looked at and none is chat.
    ///
    /// # Errors
    /// One was typed.
    pub fn refuse_of_chats(&self) -> Result<(), CliError> {
        match self.typed.iter().find(|(_, used_by)| *used_by == UsedBy::Chats) {
            None => Ok(()),
            Some((flag, _)) => Err(refused(flag, "no request is chat")),
        }
    }
}

fn refused(flag: &str, why: &str) -> CliError {
    CliError::refused("flag", format!("{flag}: {why}")).help("leave the flag out")
}
