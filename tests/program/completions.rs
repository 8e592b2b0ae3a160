//! The completion script of bash, in a shell.

use std::process::Command;

fn completed(words: &[&str]) -> Vec<String> {
    let program = assert_cmd::cargo::cargo_bin!("vllm-batch");
    let script = Command::new(program).args(["completions", "bash"]).output().unwrap().stdout;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("script"), script).unwrap();
    let line = "source ./script; words=(\"$@\"); COMP_WORDS=(vllm-batch \"${words[@]}\"); \
                COMP_CWORD=${#words[@]}; function=$(complete -p vllm-batch); \
                function=${function#*-F }; function=${function%% *}; \
                \"$function\" vllm-batch \"${COMP_WORDS[COMP_CWORD]}\" \
                \"${COMP_WORDS[COMP_CWORD - 1]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.current_dir(folder.path()).args(["--norc", "-c", line, "bash"]).args(words);
    let output = bash.output().expect("bash is there");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    for (words, wanted) in [
        (&["ru"][..], "run"),
        (&["sho"], "show"),
        (&["run", "--struc"], "--structured-outputs.json"),
        (&["run", "-m", "x", "--max-tok"], "--max-tokens"),
        (&["show", "out.jsonl", "--fol"], "--follow"),
        (&["run", "--dtype", "bfl"], "bfloat16"),
        (&["run", "--reasoning-parser", "deepseek"], "deepseek_r1"),
        (&["run", "--tool-call-parser", "herm"], "hermes"),
        (&["eval", "--scorer", "icon"], "icontains"),
        (&["completions", "ba"], "bash"),
    ] {
        let found = completed(words);
        assert!(found.iter().any(|word| word == wanted), "{words:?}: {found:?}");
    }
}

#[test]
fn every_shell_knows_the_names_of_scorers_and_parsers() {
    let program = assert_cmd::cargo::cargo_bin!("vllm-batch");
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(program).args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        for name in ["rouge-l", "deepseek_r1", "hermes", "structured-outputs.json"] {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
    // What names are taken is said by the program, in its own words.
    let output = Command::new(program)
        .args(["run", "-m", "x", "--reasoning-parser", "unknown", "-i", "/dev/null"])
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("possible values"));
}
