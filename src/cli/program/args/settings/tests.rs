//! Which of several places of a flag counts, and what is said of wrong ones.

use super::super::{Command as Cmd, ParseError, Parsed, RunArgs, parse};
use super::*;
use vllm_batch_dataset::terminal::style::Style;

struct Place {
    folder: tempfile::TempDir,
    variables: Vec<(OsString, OsString)>,
}

impl Place {
    /// A folder with a file of settings, and variables.
    fn new(file: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("batch.toml"), file).unwrap();
        let variables = variables.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        Self { folder, variables }
    }

    fn parse(&self, line: &str) -> Result<Parsed, ParseError> {
        let mut argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        if let Some(place) = argv.iter().position(|word| word == "batch.toml") {
            argv[place] = self.folder.path().join("batch.toml").into();
        }
        parse(&argv, &self.variables)
    }

    fn run(&self, flags: &str) -> Box<RunArgs> {
        match self.parse(&format!("vllm-batch run {flags}")).unwrap().command {
            Cmd::Run(args) => Box::new(args.run),
            other => panic!("{other:?}"),
        }
    }

    fn error(&self, flags: &str) -> String {
        let text = match self.parse(&format!("vllm-batch run --model m {flags}")).unwrap_err() {
            ParseError::Usage(error) => error.to_string(),
            ParseError::Setting(error) => error.render(Style::plain()),
        };
        text.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

#[test]
fn typed_over_variables_over_the_file() {
    let file = "[run]\nmodel = \"m\"\ntop-p = 0.5\ntop_k = 3\nmax-tokens = 7\n\
                stop = [\"a\", \"b\"]\n\
                stop-token-ids = [1, 2]\nquiet = 1\nignore-eos = true\n";
    let place = Place::new(file, &[("VLLM_BATCH_TOP_K", "4"), ("VLLM_BATCH_MAX_TOKENS", "8")]);
    let args = place.run("--config batch.toml --max-tokens 9");
    assert_eq!(args.model.model, PathBuf::from("m"), "what must be given may be set");
    let sampling = &args.sampling;
    assert_eq!((sampling.top_p, sampling.top_k), (Some(0.5), Some(4)));
    assert_eq!((sampling.max_tokens, sampling.ignore_eos), (Some(9), true));
    assert_eq!(sampling.stop, ["a", "b"]);
    assert_eq!(sampling.stop_token_ids, Some(vec![1, 2]));
    assert_eq!(args.display.quiet, 1);
    let args = place.run("--config batch.toml --stop c -qq");
    assert_eq!((&args.sampling.stop[..], args.display.quiet), (&["c".to_owned()][..], 2));
}

#[test]
fn a_plan_takes_the_flags_of_the_run_and_its_own_over_them() {
    let file =
        "[plan]\nmax-tokens = 9\nno-chat = true\n[run]\nmax-tokens = 7\ntop-k = 3\nchat = true\n";
    let place = Place::new(file, &[]);
    let parsed = place.parse("vllm-batch plan --model m --config batch.toml").unwrap();
    let Cmd::Plan(args) = parsed.command else { panic!("it is a plan") };
    assert_eq!((args.run.sampling.max_tokens, args.run.sampling.top_k), (Some(9), Some(3)));
    assert!(args.run.input.no_chat && !args.run.input.chat);
    let run = place.run("--model m --config batch.toml");
    assert_eq!((run.sampling.max_tokens, run.input.chat), (Some(7), true));
}

#[test]
fn a_flag_that_is_off_is_its_opposite_if_there_is_one() {
    let file = "[run]\nenable-prefix-caching = false\nignore-eos = true\nretry-failed = true\n";
    let place = Place::new(file, &[("VLLM_BATCH_IGNORE_EOS", "0")]);
    let args = place.run("--model m --config batch.toml");
    assert_eq!(args.engine.cache.prefix_caching(), Some(false));
    assert!(!args.sampling.ignore_eos && args.output.retry_failed);
    let args = place.run("--model m --config batch.toml --enable-prefix-caching --overwrite");
    assert_eq!(args.engine.cache.prefix_caching(), Some(true));
    assert!(args.output.overwrite && !args.output.retry_failed, "what was typed excludes it");
}

#[test]
fn a_variable_names_the_file() {
    let mut place = Place::new("[run]\nseed = 5\n[bench]\nseed = 6\n", &[]);
    let path = place.folder.path().join("batch.toml").into();
    place.variables.push(("VLLM_BATCH_CONFIG".into(), path));
    assert_eq!(place.run("--model m").sampling.seed, Some(5));
    let parsed = place.parse("vllm-batch bench --model m").unwrap();
    match parsed.command {
        Cmd::Bench(args) => assert_eq!(args.workload.seed, Some(6)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(place.parse("vllm-batch man").unwrap().command, Cmd::Man));
}

#[test]
fn what_is_wrong_in_a_file_is_refused_at_its_line_in_the_flags_words() {
    for (file, wanted) in [
        (
            "[run]\ntemprature = 1\n",
            "batch.toml:2: [run] has no key `temprature`\nhelp: did you mean `temperature`?",
        ),
        ("[run]\nchat_templat = \"x\"\n", "help: did you mean `chat-template`?"),
        ("[run]\ntrust-remote-code = true\n", "\nhelp: no code of a model is ever run"),
        (
            "[bench]\nxyzzy = 1\n",
            "batch.toml:2: [bench] has no key `xyzzy`\nhelp: keys are the flags of `bench",
        ),
        (
            "[rum]\nseed = 1\n",
            "batch.toml:2: there is no command `rum`\nhelp: the tables are run, eval, embed, classify, \
             reward, score, rerank, serve, plan",
        ),
        ("[run]\nconfig = \"a\"\n", "has no key `config`"),
        ("[run]\nhelp = true\n", "has no key `help`"),
        (
            "[run]\n\ntemperature = 9\n",
            "batch.toml:3: invalid value '9' for '--temperature <T>': temperature must be",
        ),
        (
            "[run]\ntemperature = true\n",
            "batch.toml:2: --temperature: expected a value, found true",
        ),
        ("[run]\nseed = [1]\n", ""),
        ("[run]\nignore-eos = 1\n", "batch.toml:2: --ignore-eos: expected true or false"),
        ("[run]\nseed = [1, 2]\n", "batch.toml:2: --seed: expected one value, found a list"),
        ("[run]\ndtype = \"int4\"\n", "[possible values: auto, float32"),
        ("[run]\ntemplate = \"{{a}}\"\nprompt-column = \"b\"\n", "cannot be used with"),
        (
            "[run]\ntemplate = \"{{a}}\"\nprompt-column = \"b\"\n",
            "--template is set by batch.toml:2",
        ),
    ] {
        let place = Place::new(file, &[]);
        if wanted.is_empty() {
            assert_eq!(place.run("--model m --config batch.toml").sampling.seed, Some(1));
            continue;
        }
        let error = place.error("--config batch.toml");
        assert!(error.contains(wanted), "{file:?}: {error}");
    }
}

#[test]
fn a_variable_names_several_adapters() {
    for (value, expected) in [
        ("a=x", &[("a", "x")][..]),
        ("a=x b=org/y", &[("a", "x"), ("b", "org/y")]),
        ("a=x,b=y, c=z\n", &[("a", "x"), ("b", "y"), ("c", "z")]),
        ("a=./my folder", &[("a", "./my folder")]),
        (r#"{"name": "a", "path": "x=1, y=2"}"#, &[("a", "x=1, y=2")]),
    ] {
        let args = Place::new("", &[("VLLM_BATCH_LORA_MODULES", value)]).run("--model m");
        let modules = args.engine.lora.modules.lora_modules.iter();
        let found: Vec<_> = modules.map(|m| (m.name.as_str(), m.path.as_str())).collect();
        assert_eq!(found, expected, "{value}");
    }
}

#[test]
fn a_wrong_variable_is_refused_and_an_unknown_one_is_noted() {
    let error = Place::new("", &[("VLLM_BATCH_TOP_P", "0")]).error("");
    let wanted = "error[environment]: VLLM_BATCH_TOP_P: invalid value '0' for '--top-p <P>': top_p \
                  must be in (0, 1], got 0.\nhelp: unset the variable, or correct it";
    assert_eq!(error, wanted);
    let error = Place::new("", &[("VLLM_BATCH_CHAT", "maybe")]).error("");
    assert!(
        error.contains("VLLM_BATCH_CHAT: --chat: expected true or false, got maybe"),
        "{error}"
    );
    let names = ["MAX_TOKEN", "INPUT_LEN", "TOP_P", "XYZZY", "NVRTC_DIR", "TEST_SOAK"]
        .map(|n| format!("{PREFIX}{n}"));
    let mut variables: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "8")).collect();
    variables[2].1 = "";
    let parsed = Place::new("", &variables).parse("vllm-batch run --model m").unwrap();
    assert_eq!(
        parsed.settings.notes,
        [
            "VLLM_BATCH_MAX_TOKEN is not the variable of a flag, and is ignored; \
             VLLM_BATCH_MAX_TOKENS is",
            "VLLM_BATCH_XYZZY is not the variable of a flag, and is ignored",
        ],
        "another command's is none of our business, an empty one is not set, and some are no flags"
    );
}
