//! `eval` as users meet it: verdicts in rows, measures, gates, reports.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::piped::{command, errors, fed};

const DEMO: &str = "testdata/demo";

/// Greedy sums that the demo model knows, and what is wrong with the rest.
fn questions() -> String {
    let sum = |index: usize| {
        let group = if index < 8 { "small" } else { "large" };
        let (a, b) = (index % 5, index % 3);
        let expected = a + b + usize::from(index % 4 == 3);
        json!({"id": format!("q{index}"), "prompt": format!("{a}+{b}="), "group": group,
            "expected": expected, "score": 9, "temperature": 0})
    };
    let mut rows: Vec<Value> = (0..12).map(sum).collect();
    rows.push(json!({"id": "none", "prompt": "1+1=", "group": "large"}));
    rows.iter().map(|row| format!("{row}\n")).collect()
}

/// A folder with an input.
struct Evals {
    folder: TempDir,
    input: String,
}

impl Evals {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), input: questions() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn command(&self, out: &str, flags: &[&str]) -> Command {
        let out = self.path(out);
        let flags = [&["-qq", "-o", &out], flags].concat();
        command("eval", DEMO, &flags)
    }

    #[track_caller]
    fn run(&self, out: &str, flags: &[&str], exit: i32) -> Output {
        let output = fed(self.command(out, flags), &self.input);
        assert_eq!(output.status.code(), Some(exit), "{flags:?}: {}", errors(&output));
        output
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn rows(&self, name: &str) -> Vec<Value> {
        self.read(name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }
}

fn text(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn rows_get_verdicts_and_the_report_sums_them_up() {
    let evals = Evals::new();
    let (json, md) = (evals.path("r.json"), evals.path("r.md"));
    let output = evals.run("out.jsonl", &["--report", &json, "--report", &md], 3);
    let rows = evals.rows("out.jsonl");
    assert_eq!(rows.len(), 13);
    for row in &rows[..12] {
        let is_right = row["response"].as_str().unwrap().trim() == row["expected"].to_string();
        assert_eq!(row["passed"], is_right, "{row}");
        assert_eq!(row["score"], f64::from(u8::from(is_right)), "{row}");
        assert_eq!((&row["scorer"], &row["input_score"]), (&json!("exact"), &json!(9)), "{row}");
    }
    assert_eq!(rows[12]["error"]["code"], "not_judged", "{}", rows[12]);
    let num_passed = rows.iter().filter(|row| row["passed"] == true).count();
    assert!((1..12).contains(&num_passed), "{num_passed} passed");
    let report = evals.json("r.json");
    let counts = json!({"total": 13, "passed": num_passed, "failed": 12 - num_passed, "errors": 1});
    assert_eq!(report["rows"], counts);
    let acc = &report["metrics"]["acc"];
    // The error row is a wrong one.
    assert_eq!(acc["value"], num_passed as f64 / 13.0);
    assert_eq!(acc["rows"], 13);
    let of_groups = ["small", "large"].map(|name| report["groups"][name]["rows"]["total"].clone());
    assert_eq!(of_groups, [json!(8), json!(5)]);
    assert_eq!(report["failures"].as_array().unwrap().len(), 13 - num_passed);
    assert!(report["origin"]["input_digest"].is_string(), "{report}");
    assert!(text(&output).contains("acc[small]"), "{}", text(&output));
    assert!(evals.read("r.md").contains("| small | acc |"));
}

#[test]
fn gates_decide_how_it_ends_and_nothing_is_computed_twice() {
    let evals = Evals::new();
    let failing = evals.run("out.jsonl", &["--fail-under", "acc=0.99"], 100);
    assert!(text(&failing).contains("gate acc >= 0.99: "), "{}", text(&failing));
    let written = fs::metadata(evals.path("out.jsonl")).unwrap().modified().unwrap();
    let cases: [(&[&str], i32); 9] = [
        (&["--fail-under", "acc=10%"], 3),
        (&["--fail-under", "acc[small]=1%", "--fail-under", "acc[large]=1"], 100),
        (&["--fail-over", "acc=0.01"], 100),
        (&["--fail-over", "acc=1", "--fail-under", "exact=0"], 3),
        (&["--errors-are", "fail"], 100),
        (&["--errors-are", "skipped"], 3),
        (&["--fail-under", "f1=0.5"], 2),
        (&["--fail-under", "acc[huge]=0.5"], 2),
        (&["--fail-under", "acc"], 2),
    ];
    for (flags, exit) in cases {
        evals.run("out.jsonl", flags, exit);
    }
    assert_eq!(fs::metadata(evals.path("out.jsonl")).unwrap().modified().unwrap(), written);
    // Another judge is another run.
    evals.run("out.jsonl", &["--scorer", "contains"], 6);
}

#[test]
fn error_rows_that_are_left_out_are_in_no_measure() {
    let evals = Evals::new();
    let report = evals.path("r.json");
    evals.run("out.jsonl", &["--errors-are", "skipped", "--report", &report], 3);
    let report = evals.json("r.json");
    assert_eq!(report["metrics"]["acc"]["rows"], 12);
    assert_eq!(report["rows"]["errors"], 1);
}

#[test]
fn several_completions_have_pass_at_k() {
    let evals =
        Evals { input: questions().replace("\"temperature\":0", "\"n\":4"), ..Evals::new() };
    let report = evals.path("r.json");
    let flags = ["--temperature", "1.5", "--report", &report, "--scorer", "number"];
    evals.run("out.jsonl", &flags, 3);
    let rows = evals.rows("out.jsonl");
    let num_right = |row: &Value| {
        let samples = row["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 4);
        samples.iter().filter(|sample| sample["passed"] == true).count()
    };
    let right: Vec<usize> = rows[..12].iter().map(num_right).collect();
    let report = &evals.json("r.json")["metrics"];
    let mean = right.iter().sum::<usize>() as f64 / 4.0 / 13.0;
    assert!((report["acc"]["value"].as_f64().unwrap() - mean).abs() < 1e-12, "{report}");
    let any = right.iter().filter(|right| **right > 0).count() as f64 / 13.0;
    assert_eq!(report["pass@4"]["value"], any, "{report}");
    assert!(report["pass@2"].is_object() && report["majority"].is_object(), "{report}");
}

#[test]
fn a_killed_eval_continues_to_the_same_rows_and_report() {
    let evals = Evals::new();
    let report = evals.path("r.json");
    let flags = ["--report", &report];
    evals.run("whole.jsonl", &flags, 3);
    let whole = evals.read("r.json");
    // It stops at the row that cannot be judged, and the rows before it are kept.
    let stopped = ["--report", &report, "--max-errors", "0"];
    evals.run("out.jsonl", &stopped, 5);
    assert!(!Path::new(&evals.path("out.jsonl")).exists());
    let output = fed(
        {
            let out = evals.path("out.jsonl");
            command("eval", DEMO, &["-o", &out, "--report", &report])
        },
        &evals.input,
    );
    assert!(errors(&output).contains("Continuing a run with "), "{}", errors(&output));
    assert_eq!(evals.read("out.jsonl"), evals.read("whole.jsonl"));
    assert_eq!(evals.read("r.json"), whole);
}

#[test]
fn what_cannot_be_reported_is_refused_before_the_run() {
    let evals = Evals::new();
    let out = evals.path("out.jsonl");
    let nowhere = evals.path("none/r.json");
    let cases: [(&str, &[&str], &str); 8] = [
        ("out.csv", &[], "rows with verdicts are written as JSON lines"),
        ("out.parquet", &[], "rows with verdicts are written as JSON lines"),
        ("out.jsonl", &["--errors", "e.jsonl"], "--errors: the report is made of one file"),
        ("out.jsonl", &["--report", "r.pdf"], "its name ends with none of "),
        ("out.jsonl", &["--report", &nowhere], "there is no folder"),
        ("out.jsonl", &["--report", "r.md", "--report", "./r.md"], "--report"),
        ("out.json", &["--report", &evals.path("out.json")], "--out"),
        ("out.jsonl", &["--scorer", "exact,best"], "there is no scorer `best`"),
    ];
    for (out, flags, what) in cases {
        let output = evals.run(out, flags, 2);
        assert!(errors(&output).contains(what), "{flags:?}: {}", errors(&output));
    }
    let output = fed(command("eval", DEMO, &[]), &evals.input);
    assert!(errors(&output).contains("eval needs a file for its rows"), "{}", errors(&output));
    let lines = "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\
                 \"body\":{\"prompt\":\"1+1=\"}}\n";
    let output = fed(evals.command("lines.jsonl", &[]), lines);
    assert!(errors(&output).contains("lines of a batch API"), "{}", errors(&output));
    assert!(!Path::new(&out).exists());
}
