//! Flags that were not typed: from the environment (`VLLM_BATCH_MAX_TOKENS`), and from `--config
//! FILE`. They become words of the command line before those that were typed, so that every value
//! is parsed by its flag. What was typed wins over the environment, and that over the file.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::config_file::{self, Value};
use super::tips;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::{CliError, sanitized};

/// What the names of our variables begin with.
const PREFIX: &str = "VLLM_BATCH_";

/// Flags whose values nobody is shown.
const SECRETS: &[&str] = &["api-key"];

/// What else has this beginning: where NVRTC is, and what the tests of this program read.
const NOT_FLAGS: [&str; 2] = ["nvrtc-dir", "test-"];

/// The flag of the file; it has no place in a file itself.
pub const CONFIG: &str = "config";

/// The variables of a process, as `std::env::vars_os` gives them.
pub type Variables = [(OsString, OsString)];

/// Where a flag is set.
#[derive(Clone, Debug)]
enum Source {
    Variable(String),
    File { name: String, line: u64 },
}

/// A flag that is set elsewhere than on the command line.
#[derive(Clone, Debug)]
struct Setting {
    /// Its words on a command line. None where it is turned off.
    words: Vec<OsString>,
    /// Long name of the flag.
    flag: String,
    source: Source,
}

/// The flags that are set elsewhere and count, and what is to be said of the others.
#[derive(Debug, Default)]
pub struct Settings {
    used: Vec<Setting>,
    notes: Vec<String>,
    /// The file that was read.
    file: Option<PathBuf>,
}

/// Where flags are set that nobody typed: a variable or a line of a file, by the flag's long name.
#[derive(Clone, Debug, Default)]
pub struct Origins(BTreeMap<String, String>);

impl Origins {
    /// Where the flag of a parameter is set, as people read it.
    pub fn of(&self, parameter: &str) -> Option<&str> {
        self.0.get(&parameter.replace('_', "-")).map(String::as_str)
    }
}

impl FromIterator<(String, String)> for Origins {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(origins: I) -> Self {
        Self(origins.into_iter().collect())
    }
}

impl Settings {
    /// Looks for the flags of `command` that were not typed.
    ///
    /// `program`: the whole flag table, to know what belongs to another command.
    ///
    /// # Errors
    /// The file cannot be read, or something in it or in a variable is no flag or no value of it.
    pub fn find(
        program: &Command,
        command: &Command,
        typed: &ArgMatches,
        variables: &Variables,
    ) -> Result<Self, CliError> {
        let mut settings = Self::default();
        let is_typed = |arg: &&Arg| {
            typed.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        let mut taken: Vec<&Arg> = command.get_arguments().filter(is_typed).collect();
        let file = typed.get_one::<PathBuf>(CONFIG).cloned();
        let file = file.or_else(|| config_variable(variables).map(PathBuf::from));
        let from_variables = settings.variables(program, command, variables)?;
        let from_file = match &file {
            Some(path) => from_file(program, command, path)?,
            None => Vec::new(),
        };
        // From what wins to what loses; words are in the other order.
        for level in [from_variables, from_file] {
            let beaten = |arg: &Arg| taken.iter().any(|other| excludes(command, arg, other));
            let level: Vec<_> = level.into_iter().filter(|(arg, _)| !beaten(arg)).collect();
            taken.extend(level.iter().map(|(arg, _)| *arg));
            settings.used.splice(0..0, level.into_iter().map(|(_, setting)| setting));
        }
        settings.file = file;
        Ok(settings)
    }

    /// The file of flags, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The words to put before what was typed.
    pub fn words(&self) -> impl Iterator<Item = &OsString> {
        self.used.iter().flat_map(|setting| &setting.words)
    }

    /// Where each flag is set.
    pub fn origins(&self) -> Origins {
        self.used.iter().map(|s| (s.flag.clone(), s.source.shown())).collect()
    }

    /// Where the flags among `flags` are set, for an error about them.
    pub fn places(&self, flags: &[String]) -> Vec<String> {
        let is_named = |flag: &str| {
            let long = format!("--{flag}");
            flags.iter().any(|text| text.split_whitespace().next() == Some(long.as_str()))
        };
        let named = self.used.iter().filter(|setting| is_named(&setting.flag));
        named.map(|s| format!("--{} is set by {}", s.flag, s.source.shown())).collect()
    }

    /// Says which flags are set elsewhere (`-v`), and which variables are no flags.
    pub fn tell(&self, console: &Console) {
        for note in &self.notes {
            console.note(note);
        }
        for Setting { words, flag, source } in &self.used {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            let shown = match words.is_empty() {
                true => format!("--{flag} off"),
                false if SECRETS.contains(&flag.as_str()) => format!("--{flag}=..."),
                false => words.join(" "),
            };
            console.detail(&sanitized(&format!("{shown} from {}", source.shown())));
        }
    }

    fn variables<'a>(
        &mut self,
        program: &Command,
        command: &'a Command,
        variables: &Variables,
    ) -> Result<Vec<(&'a Arg, Setting)>, CliError> {
        let mut found = Vec::new();
        for (name, key, value) in ours(variables) {
            let Some(arg) = flag(command, &key) else {
                let is_anothers = || program.get_subcommands().any(|c| flag(c, &key).is_some());
                let is_known = NOT_FLAGS.iter().any(|name| key.starts_with(name));
                if key != CONFIG && !is_known && !is_anothers() {
                    let near = nearest_flag(command, &key);
                    let near = near.map(|flag| format!("; {} is", variable_of(&flag)));
                    let near = near.unwrap_or_default();
                    self.notes.push(sanitized(&format!(
                        "{name} is not the variable of a flag, and is ignored{near}"
                    )));
                }
                continue;
            };
            let source = Source::Variable(name);
            let words = match switch_of(arg, value) {
                Ok(value) => words(command, arg, value),
                Err(reason) => Err(reason),
            };
            found.push((arg, setting(command, arg, words, source)?));
        }
        Ok(found)
    }
}

/// Our variables that have a value: name, name of the flag, value; by name.
fn ours(variables: &Variables) -> Vec<(String, String, &OsStr)> {
    let mut found: Vec<_> = variables
        .iter()
        .filter_map(|(name, value)| {
            let name = name.to_str()?;
            let key = name.strip_prefix(PREFIX)?.to_lowercase().replace('_', "-");
            Some((name.to_owned(), key, value.as_os_str())).filter(|_| !value.is_empty())
        })
        .collect();
    found.sort();
    found
}

fn config_variable(variables: &Variables) -> Option<OsString> {
    let found = ours(variables).into_iter().find(|(_, key, _)| key == CONFIG);
    found.map(|(_, _, value)| value.to_owned())
}

fn variable_of(flag: &str) -> String {
    format!("{PREFIX}{}", flag.to_uppercase().replace('-', "_"))
}

/// The value of a variable as the flag takes it: text, or a word for on and off.
fn switch_of(arg: &Arg, value: &OsStr) -> Result<Typed, String> {
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return Ok(Typed::Values(match arg.get_long() {
            Some("lora-modules") => modules_of(value),
            _ => vec![value.to_owned()],
        }));
    }
    match value.to_string_lossy().to_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(Typed::Switch(true)),
        "0" | "false" | "no" | "off" => Ok(Typed::Switch(false)),
        other => Err(format!("expected true or false, got {other}")),
    }
}

/// The modules that a variable names, between blanks or commas. A value that is no list of
/// `NAME=DIR` throughout is one module: vLLM's object, or a folder whose name has a blank.
fn modules_of(value: &OsStr) -> Vec<OsString> {
    let whole = || vec![value.to_owned()];
    let Some(text) = value.to_str() else { return whole() };
    let is_separator = |c: char| c.is_whitespace() || c == ',';
    let modules: Vec<&str> = text.split(is_separator).filter(|part| !part.is_empty()).collect();
    match !text.trim_start().starts_with('{') && modules.iter().all(|part| part.contains('=')) {
        true => modules.into_iter().map(OsString::from).collect(),
        false => whole(),
    }
}

/// A value of a variable or of a file.
enum Typed {
    Values(Vec<OsString>),
    Switch(bool),
}

impl From<Value> for Typed {
    fn from(value: Value) -> Self {
        match value {
            Value::One(text) => Typed::Values(vec![text.into()]),
            Value::Many(texts) => Typed::Values(texts.into_iter().map(OsString::from).collect()),
            Value::Switch(on) => Typed::Switch(on),
        }
    }
}

fn from_file<'a>(
    program: &Command,
    command: &'a Command,
    path: &Path,
) -> Result<Vec<(&'a Arg, Setting)>, CliError> {
    let name = path.display().to_string();
    let mut found = Vec::new();
    for entry in config_file::read(path)? {
        let refused = |message: String| config_file::at(&name, entry.line, &message);
        let with_flags = program.get_subcommands().filter(|c| flag(c, "verbose").is_some());
        let commands: Vec<_> = with_flags.collect();
        let Some(table) = commands.iter().find(|c| c.get_name() == entry.table) else {
            let names: Vec<_> = commands.iter().map(|command| command.get_name()).collect();
            let error = refused(format!("there is no command `{}`", entry.table));
            return Err(error.help(format!("the tables are {}", names.join(", "))));
        };
        let key = entry.key.replace('_', "-");
        if flag(table, &key).is_none() {
            let error = refused(format!("[{}] has no key `{}`", entry.table, entry.key));
            let near = || nearest_flag(table, &key).map(|near| format!("did you mean `{near}`?"));
            let tip = tips::of_flag(&key).map(str::to_owned).or_else(near);
            let all = || format!("keys are the flags of `{} --help -v`", entry.table);
            return Err(error.help(tip.unwrap_or_else(all)));
        }
        // `plan` takes the flags of the run that it is about.
        let is_own = table.get_name() == command.get_name();
        let is_of_run = table.get_name() == "run" && command.get_name() == "plan";
        if !is_own && !is_of_run {
            continue;
        }
        let arg = flag(command, &key).expect("`plan` has all flags of `run`");
        let words = words(command, arg, entry.value.into());
        let source = Source::File { name: name.clone(), line: entry.line };
        found.push((is_own, arg, setting(command, arg, words, source)?));
    }
    let own: Vec<&Arg> =
        found.iter().filter(|(is_own, ..)| *is_own).map(|(_, arg, _)| *arg).collect();
    let counts =
        |is_own: bool, arg: &Arg| is_own || !own.iter().any(|other| excludes(command, arg, other));
    let found = found.into_iter().filter(|(is_own, arg, _)| counts(*is_own, arg));
    Ok(found.map(|(_, arg, setting)| (arg, setting)).collect())
}

/// The flag of this name that can be set elsewhere than on the command line.
fn flag<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| {
        let sets = matches!(
            arg.get_action(),
            ArgAction::Set | ArgAction::Append | ArgAction::SetTrue | ArgAction::Count
        );
        let aliases = arg.get_all_aliases().unwrap_or_default();
        // Names of variables have no dots.
        let is_named = |long: &str| long == name || long.replace('.', "-") == name;
        let is_it = arg.get_long().is_some_and(is_named) || aliases.contains(&name);
        sets && arg.get_id() != CONFIG && is_it
    })
}

fn nearest_flag(command: &Command, name: &str) -> Option<String> {
    let flags = command.get_arguments().filter_map(|arg| arg.get_long());
    let flags = flags.filter(|name| flag(command, name).is_some());
    tips::nearest(name, flags).map(str::to_owned)
}

/// The flag that undoes another: `no-x` of `x`, and `x` of `no-x`.
fn opposite<'a>(command: &'a Command, arg: &Arg) -> Option<&'a Arg> {
    let long = arg.get_long()?;
    let name = long.strip_prefix("no-").map_or_else(|| format!("no-{long}"), str::to_owned);
    flag(command, &name)
}

/// Whether only one of two flags can count.
fn excludes(command: &Command, arg: &Arg, other: &Arg) -> bool {
    let conflicts = |a: &Arg, b: &Arg| {
        command.get_arg_conflicts_with(a).iter().any(|found| found.get_id() == b.get_id())
    };
    arg.get_id() == other.get_id()
        || opposite(command, arg).is_some_and(|found| found.get_id() == other.get_id())
        || conflicts(arg, other)
        || conflicts(other, arg)
}

/// What would be typed for a value.
fn words(command: &Command, arg: &Arg, value: Typed) -> Result<Vec<OsString>, String> {
    let long = |arg: &Arg| OsString::from(format!("--{}", arg.get_long().unwrap_or_default()));
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
    match value {
        Typed::Switch(true) if is_switch => Ok(vec![long(arg)]),
        Typed::Switch(false) if is_switch => {
            Ok(opposite(command, arg).map(long).into_iter().collect())
        }
        Typed::Values(_) if is_switch => Err("expected true or false".to_owned()),
        Typed::Values(values) if matches!(arg.get_action(), ArgAction::Count) => {
            let times = values.first().and_then(|text| text.to_str()?.parse::<u8>().ok());
            let times = times.filter(|_| values.len() == 1).ok_or("expected a number of times")?;
            Ok(vec![long(arg); usize::from(times)])
        }
        Typed::Values(values) => {
            if values.len() != 1 && !matches!(arg.get_action(), ArgAction::Append) {
                return Err("expected one value, found a list".to_owned());
            }
            let word = |value: OsString| {
                let mut word = long(arg);
                word.push("=");
                word.push(value);
                word
            };
            Ok(values.into_iter().map(word).collect())
        }
        Typed::Switch(on) => {
            let kind =
                if matches!(arg.get_action(), ArgAction::Count) { "number" } else { "value" };
            Err(format!("expected a {kind}, found {on}"))
        }
    }
}

/// A setting whose value the flag takes.
fn setting(
    command: &Command,
    arg: &Arg,
    words: Result<Vec<OsString>, String>,
    source: Source,
) -> Result<Setting, CliError> {
    let flag = arg.get_long().unwrap_or_default().to_owned();
    let checked = words.map_err(|reason| format!("--{flag}: {reason}")).and_then(|words| {
        let line = std::iter::once(OsStr::new("")).chain(words.iter().map(OsString::as_os_str));
        let parsed = without_required(command.clone()).try_get_matches_from(line);
        parsed.map_err(|error| first_paragraph(&error))?;
        Ok(words)
    });
    match checked {
        Ok(words) => Ok(Setting { words, flag, source }),
        Err(message) => Err(source.error(&message)),
    }
}

impl Source {
    fn shown(&self) -> String {
        match self {
            Source::Variable(name) => name.clone(),
            Source::File { name, line } => format!("{name}:{line}"),
        }
    }

    fn error(&self, message: &str) -> CliError {
        match self {
            Source::Variable(name) => {
                CliError::refused("environment", format!("{name}: {message}"))
                    .help("unset the variable, or correct it")
            }
            Source::File { name, line } => config_file::at(name, *line, message),
        }
    }
}

/// What is wrong, without usage and tips.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    paragraph.strip_prefix("error: ").unwrap_or(paragraph).to_owned()
}

/// The same command without anything that must be given.
pub fn without_required(command: Command) -> Command {
    let groups: Vec<_> = command.get_groups().map(|group| group.get_id().clone()).collect();
    let command = command.mut_args(|arg| arg.required(false));
    groups.into_iter().fold(command, |command, id| command.mut_group(id, |g| g.required(false)))
}

#[cfg(test)]
mod tests;
