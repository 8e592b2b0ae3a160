//! `eval`: what a verdict rests on, and how reports say it: data sets, baselines, gates, judges.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::eval::{DEMO, Evals, text};
use crate::piped::{command, errors, fed};

#[test]
fn a_baseline_of_another_scorer_is_refused_and_rows_alone_are_told_of() {
    let evals = Evals::new();
    evals.run("then.jsonl", &[], 3);
    let then = evals.path("then.jsonl");
    let cases: [(&[&str], &str); 3] = [
        (&["--scorer", "f1"], "its rows are judged by `exact`, and those of this output by `f1`"),
        (&["--normalize", "lower"], "--normalize none, and this run has `lower`"),
        (&["--scorer", "exact", "--extract", "."], "--baseline: "),
    ];
    for (flags, expected) in cases {
        let flags = [&["--baseline", &then, "--max-regression", "1%"], flags].concat();
        let output = evals.run("other.jsonl", &flags, 2);
        assert!(errors(&output).contains(expected), "{}", errors(&output));
        assert!(!Path::new(&evals.path("other.jsonl")).exists(), "it is refused before the run");
    }
    // The side file may be gone: each row names its scorer.
    fs::copy(&then, evals.path("bare.jsonl")).unwrap();
    let bare = evals.path("bare.jsonl");
    let flags = ["--scorer", "f1", "--baseline", &bare];
    let output = evals.run("other.jsonl", &flags, 2);
    assert!(errors(&output).contains("judged by `exact`"), "{}", errors(&output));
    let few: String =
        evals.read("then.jsonl").lines().take(3).map(|row| format!("{row}\n")).collect();
    fs::write(&bare, few).unwrap();
    let out = evals.path("out.jsonl");
    let command = command("eval", DEMO, &["-o", &out, "--baseline", &bare]);
    let output = fed(command, &evals.input);
    let told = "10 rows of this output and 0 of the baseline have no partner";
    assert!(errors(&output).contains(told), "{}", errors(&output));
    assert!(errors(&output).contains("13 rows: 12 answered, 1 error rows"), "{}", errors(&output));
}

#[test]
fn gates_that_cannot_hold_are_refused_before_the_first_row() {
    let evals = Evals::new();
    let input = evals.path("in.jsonl");
    fs::write(&input, &evals.input).unwrap();
    let cases = [
        ("acc=80", "`acc` is between 0 and 1, and the gate says 80", "write acc=0.8, or acc=80%"),
        (
            "accuracy=0.8",
            "there is no measure `accuracy`; there are acc, majority, exact",
            "--scorer",
        ),
        ("f1=0.8", "there is no measure `f1`", "--scorer"),
    ];
    for (gate, expected, help) in cases {
        let output = evals.run("out.jsonl", &["-i", &input, "--fail-under", gate], 2);
        let errors = errors(&output);
        assert!(errors.contains(expected) && errors.contains(help), "{errors}");
        assert!(!Path::new(&evals.path("out.jsonl")).exists(), "{gate}");
    }
    let row =
        json!({"prompt": "1+1=", "assert": [{"type": "contains", "value": "2", "metric": "two"}]});
    fs::write(&input, format!("{row}\n")).unwrap();
    evals.run("out.jsonl", &["-i", &input, "--fail-under", "two=0"], 0);
}

#[test]
fn a_score_beside_right_and_wrong_leaves_the_counts() {
    let evals = Evals::new();
    let report = evals.path("r.json");
    evals.run("out.jsonl", &["--scorer", "contains,f1", "--report", &report], 3);
    let report = evals.json("r.json");
    let [passed, failed] = ["passed", "failed"].map(|name| report["rows"][name].as_u64().unwrap());
    assert_eq!(passed + failed, 12, "{report}");
    assert_eq!(report["metrics"]["acc"]["value"], passed as f64 / 13.0, "{report}");
    let output = evals.run("f1.jsonl", &["--scorer", "f1"], 3);
    let said = "13 rows: 0 passed, 0 did not pass, 12 with a score alone, 1 error rows";
    assert!(text(&output).starts_with(said), "{}", text(&output));
}

#[test]
fn data_sets_are_judged_as_they_are_published() {
    let gsm = json!({"question": "2+3=", "answer": "Two and three make <<2+3=5>>5.\n#### 5"});
    let evals = Evals { input: format!("{gsm}\n"), ..Evals::new() };
    evals.run("gsm.jsonl", &["--scorer", "number", "--temperature", "0"], 0);
    let flags = ["--expected-extract", "#### (.*)", "--temperature", "0"];
    evals.run("exact.jsonl", &flags, 0);
    for name in ["gsm.jsonl", "exact.jsonl"] {
        let row = &evals.rows(name)[0];
        let is_right = row["response"].as_str().unwrap().trim() == "5";
        assert_eq!(row["passed"], is_right, "{row}");
    }
    let arc = json!({"question": "2+2=", "choices": {"text": ["9", "4"], "label": ["A", "B"]},
        "answerKey": "B"});
    let hella = json!({"ctx": "2+2=", "endings": ["9", "4"], "label": "1"});
    for (row, flags) in [(arc, &[][..]), (hella, &["--prompt-column", "ctx"])] {
        let evals = Evals { input: format!("{row}\n"), ..Evals::new() };
        evals.run("out.jsonl", &[&["--scorer", "choice"], flags].concat(), 0);
        let row = &evals.rows("out.jsonl")[0];
        assert_eq!(row["passed"], row["extracted"] == "4", "{row}");
    }
}

#[test]
fn an_answer_that_takes_too_much_work_is_an_error_of_the_report() {
    let evals = Evals::new();
    let long = json!({"id": "long", "expected": "ba".repeat(250_000),
        "response": "ab".repeat(250_000), "finish_reason": "stop"});
    let short = json!({"id": "short", "expected": "a", "response": "a", "finish_reason": "length",
        "usage": {"prompt_tokens": 3, "completion_tokens": 2}});
    fs::write(evals.path("old.jsonl"), format!("{long}\n{short}\n")).unwrap();
    let report = evals.path("r.json");
    let flags = ["--scorer", "levenshtein", "--report", &report];
    let output = evals.rescored("old.jsonl", "new.jsonl", &flags);
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    let row = &evals.rows("new.jsonl")[0];
    let reason = row["reason"].as_str().unwrap();
    assert!(reason.starts_with("not_judged: levenshtein: "), "{reason}");
    let report = evals.json("r.json");
    assert_eq!((&report["rows"]["errors"], &report["rows"]["cut"]), (&json!(1), &json!(1)));
    assert_eq!(report["tokens"], json!({"prompt": 3, "completion": 2}));
    assert!(text(&output).contains("1 answers were cut by --max-tokens"), "{}", text(&output));
}

#[test]
fn reports_have_questions_old_answers_and_gates() {
    let evals = Evals::new();
    evals.run("then.jsonl", &[], 3);
    let wrong = evals.read("then.jsonl").replace("\"response\":\"", "\"response\":\"x");
    fs::write(evals.path("changed.jsonl"), wrong).unwrap();
    let (then, xml, html) =
        (evals.path("then.jsonl"), evals.path("r.junit.xml"), evals.path("r.html"));
    let md = evals.path("r.md");
    let reports = ["--report", &xml, "--report", &html, "--report", &md];
    let gates = ["--fail-under", "acc=50%", "--fail-over", "acc=1", "--baseline", &then];
    let output = evals.rescored("changed.jsonl", "now.jsonl", &[&reports[..], &gates].concat());
    assert_eq!(output.status.code(), Some(100), "{}", errors(&output));
    let xml = evals.read("r.junit.xml");
    assert!(xml.contains("tests=\"15\""), "{xml}");
    assert!(xml.contains("<testcase classname=\"gates\" name=\"acc &lt;= 1\"/>"), "{xml}");
    assert!(
        xml.contains("name=\"acc &gt;= 0.5\"><failure message=\"acc &gt;= 0.5: it is 0\""),
        "{xml}"
    );
    let html = evals.read("r.html");
    let (_, data) = html.split_once("id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    let old = evals.rows("then.jsonl");
    let worse = data["rows"].as_array().unwrap().iter().find(|row| row["flip"] == -1).unwrap();
    let place = old.iter().position(|row| row["id"] == worse["id"]).unwrap();
    assert_eq!(worse["question"], old[place]["prompt"], "{worse}");
    assert_eq!(worse["then"], old[place]["response"], "{worse}");
    assert!(evals.read("r.md").contains("| row | question | expected | then | now |"));
}

#[test]
fn a_judge_that_never_answers_is_ended_in_time_and_with_the_run() {
    let evals = Evals::new();
    let script = evals.path("judge.sh");
    let pid = evals.path("pid");
    fs::write(&script, format!("echo $$ > {pid}.new; mv {pid}.new {pid}; yes >&2 & sleep 1000"))
        .unwrap();
    let program = format!("sh {script}");
    let flags = ["--scorer", "command", "--scorer-command", &program];
    let output = evals.run("out.jsonl", &[&flags[..], &["--scorer-timeout", "1"]].concat(), 5);
    assert!(errors(&output).contains("gave no verdict within 1 seconds"), "a time limit");
    assert!(output.stderr.len() < 3 << 20, "{} bytes of complaints", output.stderr.len());
    fs::remove_file(&pid).unwrap();
    let mut command = evals.command("killed.jsonl", &flags);
    command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut run = command.spawn().unwrap();
    std::io::Write::write_all(&mut run.stdin.take().unwrap(), evals.input.as_bytes()).unwrap();
    let wait_for = |what: &str, is_it: &dyn Fn() -> bool| {
        for _ in 0..600 {
            if is_it() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("{what}");
    };
    wait_for("the judge begins", &|| Path::new(&pid).exists());
    let judge = fs::read_to_string(&pid).unwrap();
    let is_gone = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", judge.trim()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    assert!(!is_gone());
    run.kill().unwrap();
    run.wait().unwrap();
    wait_for("the judge ends with its run", &is_gone);
}

#[test]
fn labels_of_measures_follow_from_the_scorers() {
    let evals = Evals::new();
    // Right and wrong alone; in part right; no answer at all.
    let answers = [["a b", "x"], ["a c", "a b"], ["a b", "a b"]];
    let rows = |answers: &[&str; 2]| -> String {
        let row = |answer: &&str| {
            let mut row = json!({"prompt": "p", "expected": "a b", "group": "g"});
            row["response"] = json!(answer);
            row["finish_reason"] = json!("stop");
            row["usage"] = json!({"prompt_tokens": 1, "completion_tokens": 1});
            format!("{row}\n")
        };
        answers.iter().map(row).collect()
    };
    let labels = |answers: &[&str; 2], flags: &[&str]| -> Vec<String> {
        fs::write(evals.path("old.jsonl"), rows(answers)).unwrap();
        let (md, json) = (evals.path("r.md"), evals.path("r.json"));
        let reports = ["--report", &md, "--report", &json, "--overwrite"];
        let output = evals.rescored("old.jsonl", "new.jsonl", &[&reports[..], flags].concat());
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        let lines = text(&output).lines().filter_map(|line| line.strip_prefix("  "));
        let labels = lines.map(|line| line.split("  ").next().unwrap());
        let labels: Vec<String> =
            labels.filter(|name| !name.ends_with(']')).map(str::to_owned).collect();
        for label in &labels {
            let cell = label.replace('_', "&#95;").replace('@', "&#64;");
            assert!(evals.read("r.md").contains(&format!("|  | {cell} |")), "{label}");
        }
        let of = evals.json("r.json")["acc_of"].take();
        assert_eq!(
            labels.contains(&format!("acc ({})", of.as_str().unwrap_or("none"))),
            of.is_string()
        );
        labels
    };
    let cases: [(&[&str], &[&str]); 7] = [
        (&[], &["acc (exact)"]),
        (&["--scorer", "contains"], &["acc (contains)"]),
        (&["--scorer", "exact,f1"], &["acc", "exact", "f1", "score"]),
        (&["--scorer", "exact,contains"], &["acc", "contains", "exact", "score"]),
        (&["--scorer", "f1"], &["f1"]),
        (&["--scorer", "f1", "--pass-if", "1"], &["acc", "f1"]),
        (&["--scorer", "exact", "--pass-if", "1"], &["acc", "exact"]),
    ];
    for (flags, expected) in cases {
        for answers in &answers {
            assert_eq!(labels(answers, flags), expected, "{answers:?}");
        }
    }
}
