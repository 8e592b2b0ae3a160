//! From what was typed, the variables and `--config` to a command. Errors say where a wrong flag
//! comes from.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, FromArgMatches};

use super::{Cli, Command, FlagFiles, Settings, Variables, command, prompt, settings, tips};
use vllm_batch_dataset::terminal::error::CliError;

/// A command line, with what is set elsewhere.
#[derive(Debug)]
pub struct Parsed {
    /// What is to be done.
    pub command: Command,
    /// The flags that were not typed.
    pub settings: Settings,
    /// The files that flags name.
    pub files: FlagFiles,
}

/// Why there is nothing to be done.
#[derive(Debug)]
pub enum ParseError {
    /// Help, version or a usage error, to be printed by `clap::Error::print`.
    Usage(clap::Error),
    /// A flag that is set elsewhere is wrong.
    Setting(CliError),
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ParseError::Usage(error) => error.fmt(f),
            ParseError::Setting(error) => f.write_str(&error.message),
        }
    }
}

/// Parses a command line. `--help -v` is the long help, so it is looked for first: clap stops at
/// `--help`.
///
/// # Errors
/// Help, version, a usage error, or a wrong flag in a variable or in `--config`.
pub fn parse(argv: &[OsString], variables: &Variables) -> Result<Parsed, ParseError> {
    let program = prompt::beside_input(command(wants_long_help(argv)), argv);
    let short = |error| tips::with_short_usage(error, &program, command_of(argv));
    let explained =
        |error| ParseError::Usage(short(tips::explain(error, &program, command_of(argv))));
    // What was typed is looked at alone first: it may name the file, and lack what the file has.
    let typed = program.clone().mut_subcommands(settings::without_required);
    let typed = typed.try_get_matches_from(argv).map_err(|error| {
        // In the usage of the whole table what is required is shown as such.
        explained(program.clone().try_get_matches_from(argv).err().unwrap_or(error))
    })?;
    let settings = find_settings(&program, &typed, variables).map_err(ParseError::Setting)?;
    let (before, after) = argv.split_at(argv.len().min(2));
    let words = before.iter().chain(settings.words()).chain(after);
    let matches = program.clone().try_get_matches_from(words);
    let matches = matches.map_err(|error| ParseError::Usage(placed(short(error), &settings)))?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(ParseError::Usage)?;
    if let Some(sampling) = cli.command.sampling() {
        sampling.origins = settings.origins();
    }
    let files = match matches.subcommand() {
        Some((name, matches)) => {
            let command = program.find_subcommand(name).expect("it was parsed");
            FlagFiles::of(command, matches, settings.file())
        }
        None => FlagFiles::default(),
    };
    Ok(Parsed { command: cli.command, settings, files })
}

/// The command's name: the first word, since no flag can come before it.
fn command_of(argv: &[OsString]) -> Option<&str> {
    argv.get(1)?.to_str()
}

fn find_settings(
    program: &clap::Command,
    typed: &ArgMatches,
    variables: &Variables,
) -> Result<Settings, CliError> {
    let Some((name, typed)) = typed.subcommand() else { return Ok(Settings::default()) };
    let command = program.find_subcommand(name).expect("it was parsed");
    match command.get_arguments().any(|arg| arg.get_id() == settings::CONFIG) {
        true => Settings::find(program, command, typed, variables),
        false => Ok(Settings::default()),
    }
}

/// The same error with the places of flags that nobody typed.
fn placed(mut error: clap::Error, settings: &Settings) -> clap::Error {
    let mut flags = Vec::new();
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        match error.get(kind) {
            Some(ContextValue::String(flag)) => flags.push(flag.clone()),
            Some(ContextValue::Strings(several)) => flags.extend(several.iter().cloned()),
            _ => {}
        }
    }
    let places = settings.places(&flags);
    if !places.is_empty() {
        let places = places.into_iter().map(Into::into).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(places));
    }
    error
}

fn wants_long_help(argv: &[OsString]) -> bool {
    let flags = argv.iter().take_while(|arg| *arg != "--");
    // Flags without values may share a dash: -hv.
    let is_short = |arg: &str| {
        let flags = arg.strip_prefix('-').filter(|flags| flags.contains('v'));
        flags.is_some_and(|flags| flags.chars().all(|flag| "hqv".contains(flag)))
    };
    flags.into_iter().any(|arg| arg == "--verbose" || arg.to_str().is_some_and(is_short))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::RunArgs;

    fn parse_run(line: &str) -> Result<Box<RunArgs>, clap::Error> {
        let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match parse(&argv, &[]) {
            Ok(Parsed { command: Command::Run(args), .. }) => Ok(Box::new(args.run)),
            Err(ParseError::Usage(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_stops_and_short_flags() {
        let args = parse_run(
            "vllm-batch run --model m -i a.jsonl -o b.jsonl --max-model-len 8k --stop END \
             --stop ## --stop-token-ids 1,2 --kv-cache-memory-bytes 1.5GiB -qq --logprobs -1 \
             --presence-penalty -0.5",
        )
        .unwrap();
        assert_eq!(args.model.max_model_len, Some(8000));
        assert_eq!(args.sampling.stop, ["END", "##"]);
        assert_eq!(args.sampling.stop_token_ids, Some(vec![1, 2]));
        assert_eq!(args.engine.cache.kv_cache_memory_bytes, Some(3 << 29));
        assert_eq!(args.sampling.presence_penalty, Some(-0.5));
        assert_eq!(args.sampling.logprobs, Some(-1));
        assert_eq!(args.display.quiet, 2);
        assert_eq!(args.sampling.temperature, None, "not typed stays unknown");
    }

    #[test]
    fn a_flag_and_its_opposite_override_each_other() {
        let last = |line: &str| parse_run(line).unwrap().engine.cache.prefix_caching();
        assert_eq!(last("vllm-batch run --model m"), None);
        assert_eq!(last("vllm-batch run --model m --no-enable-prefix-caching"), Some(false));
        assert_eq!(
            last("vllm-batch run --model m --no-enable-prefix-caching --enable-prefix-caching"),
            Some(true)
        );
    }

    #[test]
    fn out_of_range_values_are_refused_in_vllms_words() {
        for (flag, text) in [
            ("--temperature 3", "temperature must be in [0, 2]"),
            ("--top-p 0", "top_p must be in (0, 1]"),
            ("--min-p 1.5", "min_p must be in [0, 1]"),
            ("--repetition-penalty 0", "repetition_penalty must be greater than zero"),
            ("--prompt-logprobs 0 --prompt-logprobs-last 0", "must be at least 1"),
            ("--n 0", "must be at least 1"),
            ("--gpu-memory-utilization 1.5", "must be in (0, 1]"),
        ] {
            let error = parse_run(&format!("vllm-batch run --model m {flag}")).unwrap_err();
            assert!(error.to_string().contains(text), "{flag}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn short_help_teaches_and_long_help_is_complete() {
        let help = |line: &str| parse_run(line).unwrap_err().to_string();
        let short = help("vllm-batch run --help");
        let long = help("vllm-batch run --help -v");
        for wanted in ["--model", "--temperature", "Exit codes:", "Examples:", "Sampling:"] {
            assert!(short.contains(wanted), "{wanted}");
        }
        assert!(!short.contains("--logit-bias") && long.contains("--logit-bias"));
        for same in ["run -v --help", "run -hv", "run -vh", "run -hqv", "run --verbose -h"] {
            assert_eq!(help(&format!("vllm-batch {same}")), long, "{same}");
        }
        assert!(short.lines().count() < 100, "{} lines", short.lines().count());
        for arg in command(true).find_subcommand("run").unwrap().get_arguments() {
            let flag = format!("--{}", arg.get_long().unwrap());
            assert!(long.contains(&flag), "{flag} is not in the long help");
        }
    }
}
