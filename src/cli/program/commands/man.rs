//! The manual page, in roff, from the flag table that parsing uses: one page for all commands.

use std::io::{self, Write};

use clap::{Arg, ArgAction, Command};

use crate::args;

/// Writes the page to standard output.
///
/// # Errors
/// Standard output cannot be written.
pub fn man() -> io::Result<()> {
    io::stdout().write_all(page().as_bytes())
}

fn page() -> String {
    let mut program = args::command(true);
    program.build();
    let (name, version) = (program.get_name().to_owned(), env!("CARGO_PKG_VERSION"));
    let mut page = Page::default();
    // An apostrophe at the start of a line, and typographic ones in examples, are troff's habits.
    page.control(".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '");
    page.control(&format!(".TH {} 1 \"\" \"{name} {version}\"", escaped(&name)));
    page.section("NAME");
    page.text(&format!("{name} - {}", about(&program)));
    page.section("SYNOPSIS");
    page.control(&format!("\\fB{}\\fR \\fICOMMAND\\fR ...", escaped(&name)));
    page.section("COMMANDS");
    for command in commands(&program) {
        page.control(&format!(".TP\n\\fB{}\\fR", escaped(command.get_name())));
        page.text(&about(command));
    }
    page.section("EXAMPLES");
    page.extra(&program);
    for command in commands(&program) {
        page.section(&format!("{name} {}", command.get_name()));
        page.command(command);
    }
    for (title, entries) in LAST_SECTIONS {
        page.section(title);
        for (name, text) in entries.iter() {
            page.control(&format!(".TP\n\\fB{}\\fR", escaped(name)));
            page.control(&escaped(text));
        }
    }
    page.section("SEE ALSO");
    page.text("docs/CLI.md of the sources; docs/OUTPUT.md has the fields and error codes of rows");
    page.0
}

/// What is said of all commands at the end of the page, as man pages have it.
const LAST_SECTIONS: [(&str, &[(&str, &str)]); 3] = [
    (
        "EXIT STATUS",
        &[
            ("0", "Every row was answered; nothing differs; every gate holds."),
            ("1", "A bug in vllm-batch."),
            ("2", "Refused, and nothing written: a flag, the input, a model that is not found."),
            ("3", "Complete, with at least one error row."),
            ("4", "No rows in the input; `show`: no row to be shown."),
            ("5", "Stopped; the same command continues."),
            ("6", "Refused: the output or its journal belongs to another run."),
            ("7", "The model's files are incomplete, corrupt, unsafe or not supported."),
            ("100", "`diff`: answers differ; `eval`: a gate fails."),
            (
                "129, 130, 143",
                "SIGHUP, SIGINT, SIGTERM. Finished rows are kept; the same command continues.",
            ),
            ("141", "The reader of standard output went away."),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            ("VLLM_BATCH_...", "Flags: VLLM_BATCH_MAX_TOKENS is --max-tokens."),
            ("HF_HOME, HF_HUB_CACHE, XDG_CACHE_HOME", "Where the Hugging Face cache is."),
            ("HF_TOKEN, HF_TOKEN_PATH", "The token for the hub."),
            ("HF_ENDPOINT", "Another hub."),
            ("HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE", "Forbid requests to the hub."),
            ("CUDA_HOME, CUDA_PATH, LD_LIBRARY_PATH", "Where CUDA's libraries are."),
            ("SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX", "The number of --shard auto."),
            ("SOURCE_DATE_EPOCH", "The time of the run, in seconds since 1970."),
            ("NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, TERM", "Colours and the progress bar."),
        ],
    ),
    (
        "FILES",
        &[
            ("OUT.part", "The first rows of an unfinished run, in order."),
            (
                "OUT.journal",
                "Every finished row, until the output is complete; `show` prints them.",
            ),
            ("OUT.meta.json", "What made a complete output, and its checksum."),
            ("~/.cache/huggingface/hub", "Models and datasets that were downloaded."),
            ("~/.cache/vllm-batch", "Files of runs whose output is an object in a store."),
        ],
    ),
];

fn commands(program: &Command) -> impl Iterator<Item = &Command> {
    program.get_subcommands().filter(|command| command.get_name() != "help")
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

#[derive(Default)]
struct Page(String);

impl Page {
    /// A request of roff, or text that is escaped already.
    fn control(&mut self, line: &str) {
        self.0 += line;
        self.0.push('\n');
    }

    fn section(&mut self, title: &str) {
        self.control(&format!(".SH \"{}\"", escaped(title)));
    }

    /// Paragraphs, which are filled.
    fn text(&mut self, text: &str) {
        for (index, paragraph) in text.split("\n\n").enumerate() {
            if index > 0 {
                self.control(".IP");
            }
            self.control(&escaped(paragraph));
        }
    }

    /// The text after the flags, whose lines stay as they are.
    fn extra(&mut self, command: &Command) {
        let Some(text) = command.get_after_help() else { return };
        self.control(".PP\n.nf");
        self.control(&escaped(&text.to_string()));
        self.control(".fi");
    }

    fn command(&mut self, command: &Command) {
        self.text(&about(command));
        let usage = command.clone().render_usage().to_string();
        self.control(".PP\n.nf");
        self.control(&escaped(&usage));
        self.control(".fi");
        // Groups in the order of their first flag, as in the help.
        let mut groups: Vec<Option<&str>> = Vec::new();
        let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
        for arg in shown() {
            if !groups.contains(&arg.get_help_heading()) {
                groups.push(arg.get_help_heading());
            }
        }
        for group in groups {
            self.control(&format!(".SS \"{}\"", group.unwrap_or("Arguments and options")));
            shown().filter(|arg| arg.get_help_heading() == group).for_each(|arg| self.arg(arg));
        }
        self.extra(command);
    }

    fn arg(&mut self, arg: &Arg) {
        let bold = |text: String| format!("\\fB{}\\fR", escaped(&text));
        let short = arg.get_short().map(|short| bold(format!("-{short}")));
        let long = arg.get_long().map(|long| bold(format!("--{long}")));
        let mut head = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
        let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        if takes_value {
            let names = arg.get_value_names().unwrap_or_default().join(" ");
            let gap = if head.is_empty() { "" } else { " " };
            head += &format!("{gap}\\fI{}\\fR", escaped(&names));
        }
        self.control(".TP");
        self.control(&head);
        let help = arg.get_long_help().or(arg.get_help());
        self.text(&help.map(ToString::to_string).unwrap_or_default());
        let values = if takes_value { arg.get_possible_values() } else { Vec::new() };
        for value in values.iter().filter(|value| !value.is_hide_set()) {
            let help = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
            self.control(".br");
            self.control(&format!("\\fB{}\\fR{}", escaped(value.get_name()), escaped(&help)));
        }
    }
}

/// Text that roff shows as it is.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\*(Aq");
    let line = |line: &str| match line.starts_with('.') {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader sees of the page, but for its fonts.
    fn read() -> String {
        let page = page().replace("\\fB", "").replace("\\fI", "").replace("\\fR", "");
        page.replace("\\-", "-").replace("\\*(Aq", "'").replace("\\e", "\\")
    }

    #[test]
    fn every_flag_of_every_command_is_described() {
        let page = read();
        let mut program = args::command(true);
        program.build();
        for command in commands(&program) {
            let title = format!(".SH \"vllm-batch {}\"\n", command.get_name());
            let (_, section) = page.split_once(&title).expect(&title);
            let section = section.split("\n.SH ").next().unwrap();
            let long_help = command.clone().render_long_help().to_string();
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{title}{arg}");
                let first = help.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
                assert!(section.contains(&first), "{title}{arg}: {first}");
                let long = arg.get_long().map(|long| format!("--{long}"));
                let long = long.unwrap_or_else(|| arg.get_value_names().unwrap()[0].to_string());
                let entry = section.split(".TP\n").find(|entry| {
                    let head = entry.lines().next().unwrap_or_default();
                    head.split([' ', ',']).any(|word| word == long)
                });
                assert!(entry.is_some_and(|entry| entry.lines().count() > 1), "{title}{long}");
                assert!(long_help.contains(&long), "{title}{long}");
            }
        }
    }

    #[test]
    fn examples_and_exit_codes_keep_their_lines_and_no_other_page_is_named() {
        let page = read();
        let exit_codes = "\nExit codes:\n  0 every row answered         3 at least one error row";
        assert_eq!(page.matches(exit_codes).count(), 2, "of the program and of `run`");
        let filled = |text: &str| {
            let before = page.split(text).next().unwrap();
            before.matches("\n.fi").count() == before.matches("\n.nf").count()
        };
        assert!(!filled(exit_codes), "roff fills no lines between .nf and .fi");
        assert!(!page.contains("(1)"), "there is one page");
    }

    #[test]
    fn the_sections_that_readers_look_for_are_there_in_their_order() {
        let page = read();
        let titles =
            ["NAME", "SYNOPSIS", "COMMANDS", "EXAMPLES", "EXIT STATUS", "ENVIRONMENT", "FILES"];
        let places: Vec<_> = titles
            .into_iter()
            .chain(["SEE ALSO"])
            .map(|title| page.find(&format!(".SH \"{title}\"\n")).expect(title))
            .collect();
        assert!(places.is_sorted(), "{places:?}");
        let (_, exits) = page.split_once("EXIT STATUS").unwrap();
        for code in ["0", "1", "2", "3", "4", "5", "6", "7", "100", "129, 130, 143", "141"] {
            assert!(exits.contains(&format!("\n.TP\n{code}\n")), "{code}");
        }
    }

    #[test]
    fn nothing_in_a_text_is_a_request() {
        assert_eq!(escaped("a\n.b -c\n'd' \\n"), "a\n\\&.b \\-c\n\\*(Aqd\\*(Aq \\en");
    }
}
