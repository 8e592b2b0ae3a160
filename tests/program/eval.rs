//! `eval` as users meet it: verdicts in rows, measures, gates, reports.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::piped::{command, errors, fed};

pub const DEMO: &str = "testdata/demo";

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
pub struct Evals {
    pub folder: TempDir,
    pub input: String,
}

impl Evals {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), input: questions() }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn command(&self, out: &str, flags: &[&str]) -> Command {
        let out = self.path(out);
        let flags = [&["-qq", "-o", &out], flags].concat();
        let mut command = command("eval", DEMO, &flags);
        command.env_remove("GITHUB_ACTIONS").env_remove("GITHUB_STEP_SUMMARY");
        command
    }

    #[track_caller]
    pub fn run(&self, out: &str, flags: &[&str], exit: i32) -> Output {
        let output = fed(self.command(out, flags), &self.input);
        assert_eq!(output.status.code(), Some(exit), "{flags:?}: {}", errors(&output));
        output
    }

    /// Judges an output again, without a model.
    pub fn rescored(&self, old: &str, new: &str, flags: &[&str]) -> Output {
        let (old, new) = (self.path(old), self.path(new));
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-batch"));
        command.args(["eval", "-qq", "--rescore", &old, "-o", &new]).args(flags);
        command.env_remove("GITHUB_ACTIONS").env_remove("GITHUB_STEP_SUMMARY");
        command.output().unwrap()
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn rows(&self, name: &str) -> Vec<Value> {
        self.read(name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }
}

pub fn text(output: &Output) -> &str {
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
        let expected = row["expected"].to_string();
        let is_right = row["response"].as_str().unwrap().trim() == expected;
        assert_eq!(row["passed"], is_right, "{row}");
        assert_eq!(row["score"], f64::from(u8::from(is_right)), "{row}");
        assert_eq!((&row["scorer"], &row["input_score"]), (&json!("exact"), &json!(9)), "{row}");
    }
    assert_eq!(rows[12]["error"]["code"], "not_judged", "{}", rows[12]);
    let num_passed = rows.iter().filter(|row| row["passed"] == true).count();
    assert!((1..12).contains(&num_passed), "{num_passed} passed");
    let report = evals.json("r.json");
    let failed = 12 - num_passed;
    let counts =
        json!({"total": 13, "passed": num_passed, "failed": failed, "errors": 1, "cut": 0});
    assert_eq!(report["rows"], counts);
    let acc = &report["metrics"]["acc"];
    // The error row is a wrong one.
    assert_eq!(acc["value"], num_passed as f64 / 13.0);
    assert_eq!(acc["rows"], 13);
    let of_groups = ["small", "large"].map(|name| report["groups"][name]["rows"]["total"].clone());
    assert_eq!(of_groups, [json!(8), json!(5)]);
    assert_eq!(report["failures"].as_array().unwrap().len(), 13 - num_passed);
    assert!(report["origin"]["input_digest"].is_string(), "{report}");
    assert!(text(&output).contains("acc (exact)[small]"), "{}", text(&output));
    // A line for each measure, and no word that means two things.
    assert_eq!(text(&output).matches("acc (exact) ").count(), 1, "{}", text(&output));
    let said = format!("13 rows: {num_passed} passed, {failed} did not pass, 1 error rows");
    assert!(text(&output).starts_with(&said), "{}", text(&output));
    let md = evals.read("r.md");
    assert!(md.contains("| small | acc (exact) |"), "{md}");
    assert!(md.contains("Model: testdata/demo") && md.contains("temperature "), "{md}");
}

#[test]
fn gates_decide_how_it_ends_and_nothing_is_computed_twice() {
    let evals = Evals::new();
    let failing = evals.run("out.jsonl", &["--fail-under", "acc=0.99"], 100);
    assert!(text(&failing).contains("gate acc >= 0.99: "), "{}", text(&failing));
    let painted = evals.run("out.jsonl", &["--fail-under", "acc=0.99", "--color", "always"], 100);
    let red = "\x1b[1;31mgate acc >= 0.99: ";
    assert!(text(&painted).contains(red), "{:?}", text(&painted));
    assert!(!text(&failing).contains('\x1b'), "{:?}", text(&failing));
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
fn the_likeliest_choice_is_the_answer() {
    let row = |index: usize| {
        let choices = json!(["9", "a long choice of words", (index % 4 + 2).to_string()]);
        json!({"prompt": format!("{}+2=", index % 4), "choices": choices, "label": 2})
    };
    let input: String = (0..6).map(|index| format!("{}\n", row(index))).collect();
    let evals = Evals { input, ..Evals::new() };
    let report = evals.path("r.json");
    evals.run("out.jsonl", &["--scorer", "choice", "--report", &report], 0);
    let (mut right, mut right_by_chars) = (0, 0);
    for row in evals.rows("out.jsonl") {
        assert_eq!(row["usage"]["completion_tokens"], 0, "{row}");
        let best = |length: &dyn Fn(&str) -> usize| {
            let measure = |at: usize| {
                let logprob = row["choice_logprobs"][at]["logprob"].as_f64().unwrap();
                logprob / length(row["choices"][at].as_str().unwrap()) as f64
            };
            (0..3).max_by(|a, b| measure(*a).total_cmp(&measure(*b))).unwrap()
        };
        assert_eq!(row["extracted"], row["choices"][best(&|_| 1)], "{row}");
        assert_eq!(row["passed"], best(&|_| 1) == 2, "{row}");
        right += usize::from(best(&|_| 1) == 2);
        right_by_chars += usize::from(best(&|text| text.chars().count()) == 2);
    }
    let metrics = &evals.json("r.json")["metrics"];
    assert_eq!(metrics["acc"]["value"], right as f64 / 6.0, "{metrics}");
    assert_eq!(metrics["acc_norm"]["value"], right_by_chars as f64 / 6.0, "{metrics}");
    for flags in [
        &["--scorer", "choice,exact"][..],
        &["--scorer", "choice,perplexity"],
        &["--scorer", "exact", "--loglikelihood", "text"],
    ] {
        evals.run("other.jsonl", flags, 2);
    }
}

#[test]
fn perplexities_are_over_all_texts() {
    let input = "{\"text\":\"What is 2+3? 5\"}\n{\"text\":\"What is  1+1? 2\"}\n".to_owned();
    let evals = Evals { input, ..Evals::new() };
    let report = evals.path("r.json");
    let flags = ["--scorer", "perplexity", "--report", &report];
    evals.run("out.jsonl", &flags, 0);
    let sum = |name: &str| {
        let rows = evals.rows("out.jsonl");
        rows.iter().map(|row| row["loglikelihood"][name].as_f64().unwrap()).sum::<f64>()
    };
    let metrics = &evals.json("r.json")["metrics"];
    let wanted = (-sum("logprob") / sum("num_words")).exp();
    assert_eq!(metrics["word_perplexity"]["value"], wanted, "{metrics}");
    let (below, above) = ((wanted * 0.9).to_string(), (wanted * 1.1).to_string());
    for (limit, exit) in [(below, 100), (above, 0)] {
        let gate = format!("word_perplexity={limit}");
        evals.run("out.jsonl", &[&flags[..], &["--fail-over", &gate]].concat(), exit);
    }
}

#[test]
fn errors_of_transcripts_are_over_all_texts() {
    let row = |prompt: &str, expected: &str| {
        format!("{}\n", json!({"text": prompt, "expected": expected, "temperature": 0}))
    };
    let input = row("2+3=", "5.") + &row("1+1=", "two and more") + &row("1+2=", "");
    let evals = Evals { input, ..Evals::new() };
    let report = evals.path("r.json");
    let flags = ["--scorer", "wer,cer", "--normalize", "basic", "--report", &report];
    evals.run("out.jsonl", &flags, 0);
    let rows = evals.rows("out.jsonl");
    let sum = |name: &str| -> f64 {
        rows.iter().map(|row| row["errors"][name].as_f64().unwrap_or_default()).sum()
    };
    assert_eq!(
        (rows[0]["score"].as_f64(), sum("num_words"), sum("num_chars")),
        (Some(1.0), 4.0, 13.0)
    );
    let metrics = &evals.json("r.json")["metrics"];
    let wer = sum("word_errors") / 4.0;
    assert_eq!((&metrics["wer"]["value"], wer >= 0.5), (&json!(wer), true), "{metrics}");
    assert_eq!(metrics["cer"]["value"], sum("char_errors") / 13.0);
    assert!(metrics["word_accuracy"]["value"].is_number(), "{metrics}");
    for (limit, exit) in [(wer - 0.1, 100), (wer + 0.1, 0)] {
        let gate = format!("wer={limit}");
        evals.run("out.jsonl", &[&flags[..], &["--fail-over", &gate]].concat(), exit);
    }
    // A prompt is never what is expected.
    let column = [&flags[..4], &["--expected-column", "text"]].concat();
    let refused = evals.run("other.jsonl", &column, 2);
    assert!(errors(&refused).contains("the rows' prompt would be `text`"), "{}", errors(&refused));
    evals.run("other.jsonl", &[&column[..], &["--prompt-column", "expected"]].concat(), 3);
}

#[test]
fn a_program_judges_and_a_run_goes_on_where_it_failed() {
    let evals = Evals::new();
    let judge = |text: &str| {
        let path = evals.path("judge.py");
        fs::write(&path, text).unwrap();
        format!("python3 {path}")
    };
    let fair = "import json, sys\n\
        for line in sys.stdin:\n    asked = json.loads(line)\n    \
            right = asked['answer'] == str(asked['expected'])\n    \
            said = {'score': 0.5 + 0.5 * right, 'pass': right, 'reason': asked['row']['id']}\n    \
            print(json.dumps(said), flush=True)\n";
    let program = judge(fair);
    let flags = ["--scorer", "command", "--scorer-command", &program];
    // It may judge a row that expects nothing.
    evals.run("out.jsonl", &flags, 0);
    for row in evals.rows("out.jsonl") {
        let expected = row["expected"].to_string();
        let is_right = row["response"].as_str() == Some(&expected);
        assert_eq!(row["score"], if is_right { 1.0 } else { 0.5 }, "{row}");
        assert_eq!((&row["passed"], &row["reason"]), (&json!(is_right), &row["id"]), "{row}");
    }
    // It ends after some rows. Those are kept.
    let five = "for line in (sys.stdin.readline() for _ in range(5)):";
    judge(&fair.replace("for line in sys.stdin:", five));
    let output = evals.run("again.jsonl", &flags, 5);
    assert!(errors(&output).contains("ended before the last row"), "{}", errors(&output));
    judge(fair);
    evals.run("again.jsonl", &flags, 0);
    assert_eq!(evals.read("again.jsonl"), evals.read("out.jsonl"));
    evals.run("other.jsonl", &["--scorer", "command"], 2);
    evals.run("other.jsonl", &["--scorer-command", "true"], 2);
}

/// The same rows and the same report, whoever judged them: a run, or another one's rows again.
#[test]
fn rows_that_are_judged_again_are_those_of_a_run_with_that_judge() {
    let evals = Evals::new();
    let report = evals.path("r.json");
    evals.run("contains.jsonl", &["--scorer", "contains", "--report", &report], 3);
    let (rows, wanted) = (evals.read("contains.jsonl"), evals.read("r.json"));
    evals.run("exact.jsonl", &[], 3);
    // The row that cannot be judged is the last, of the first shard.
    let shards = [("0/2", 3), ("1/2", 0)].map(|(shard, exit)| {
        let out = format!("s{}.jsonl", &shard[..1]);
        evals.run(&out, &["--shard", shard], exit);
        evals.path(&out)
    });
    let merged = evals.path("merged.jsonl");
    let args = ["merge", "-q", "--verify", "-o", &merged, &shards[0], &shards[1]];
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch")).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert_eq!(evals.read("merged.jsonl"), evals.read("exact.jsonl"));
    let run = evals.path("run.jsonl");
    let plain = command("run", DEMO, &["-qq", "-o", &run]);
    let unasked: String = evals.input.lines().take(12).map(|row| format!("{row}\n")).collect();
    assert_eq!(fed(plain, &unasked).status.code(), Some(0));
    for (old, exit) in [("exact.jsonl", 3), ("merged.jsonl", 3), ("run.jsonl", 0)] {
        let new = format!("again-{old}");
        let output = evals.rescored(old, &new, &["--scorer", "contains", "--report", &report]);
        assert_eq!(output.status.code(), Some(exit), "{old}: {}", errors(&output));
        if exit == 3 {
            assert_eq!(evals.read(&new), rows, "{old}");
            assert_eq!(evals.read("r.json"), wanted, "{old}");
        } else {
            let judged: String = rows.lines().take(12).map(|row| format!("{row}\n")).collect();
            assert_eq!(evals.read(&new), judged);
        }
    }
    // It is complete; another judge's is another; a row that cannot be judged is refused.
    let code = |flags: &[&str]| {
        let output = evals.rescored("exact.jsonl", "again-exact.jsonl", flags);
        output.status.code()
    };
    assert_eq!(code(&["--scorer", "contains"]), Some(3));
    assert_eq!(code(&["--scorer", "icontains"]), Some(6));
    assert_eq!(code(&["--scorer", "icontains", "--overwrite"]), Some(3));
    assert_eq!(code(&["--expected-column", "gold", "--overwrite"]), Some(2));
    assert_eq!(code(&["--temperature", "1"]), Some(2), "there is no model to sample from");
}

#[test]
fn a_baseline_says_which_rows_flipped() {
    let evals = Evals::new();
    evals.run("then.jsonl", &[], 3);
    // The same rows in another order, two of them with another answer.
    let mut rows: Vec<String> = evals.read("then.jsonl").lines().map(str::to_owned).collect();
    let place = |passed: bool| {
        let is_it = |row: &String| row.contains(&format!("\"passed\":{passed}"));
        rows.iter().position(is_it).unwrap()
    };
    let (right, wrong) = (place(true), place(false));
    let ids = [right, wrong].map(|at| format!("q{at}"));
    let expected = |row: &str| serde_json::from_str::<Value>(row).unwrap()["expected"].to_string();
    let to = expected(&rows[wrong]);
    for (at, answer) in [(right, "nothing"), (wrong, to.as_str())] {
        let mut row: Value = serde_json::from_str(&rows[at]).unwrap();
        row["response"] = json!(answer);
        rows[at] = row.to_string();
    }
    rows.reverse();
    fs::write(evals.path("changed.jsonl"), rows.join("\n")).unwrap();
    let (then, report) = (evals.path("then.jsonl"), evals.path("r.json"));
    let flags = ["--baseline", &then, "--report", &report];
    let compared = |out: &str, most: &str| {
        let flags = [&flags[..], &["--max-regression", most]].concat();
        let output = evals.rescored("changed.jsonl", out, &flags);
        (output.status.code(), evals.json("r.json")["baseline"].clone())
    };
    let (code, baseline) = compared("now.jsonl", "0%");
    assert_eq!(code, Some(3), "as many are better as are worse");
    assert_eq!(baseline["rows"], 13, "{baseline}");
    assert_eq!((&baseline["newly_wrong"], &baseline["newly_right"]), (&json!(1), &json!(1)));
    assert_eq!(baseline["rows_newly_wrong"][0]["id"], ids[0], "{baseline}");
    assert_eq!(baseline["rows_newly_right"], json!([ids[1]]), "{baseline}");
    assert_eq!(baseline["mcnemar_p"], 1.0);
    // Without the one that became better: 1 of 13 is 7.7%.
    let better = rows.iter().position(|row| row.contains(&ids[1])).unwrap();
    let mut row: Value = serde_json::from_str(&rows[better]).unwrap();
    row["response"] = json!("x");
    rows[better] = row.to_string();
    fs::write(evals.path("changed.jsonl"), rows.join("\n")).unwrap();
    for (out, most, exit) in [("a.jsonl", "5%", 100), ("b.jsonl", "8%", 3)] {
        let (code, baseline) = compared(out, most);
        assert_eq!(code, Some(exit), "{baseline}");
        assert_eq!(baseline["difference"], -1.0 / 13.0, "{baseline}");
    }
}

#[test]
fn a_job_on_github_shows_rows_at_their_lines() {
    let evals = Evals::new();
    let input = evals.path("in.jsonl");
    fs::write(&input, format!("\n{}", evals.input)).unwrap();
    let summary = evals.path("summary.md");
    fs::write(&summary, "before\n").unwrap();
    let annotated = |flags: &[&str], exit: i32| {
        let mut command = evals.command("out.jsonl", &[&["-i", &input][..], flags].concat());
        command.env("GITHUB_ACTIONS", "true").env("GITHUB_STEP_SUMMARY", &summary);
        command.env("GITHUB_WORKSPACE", evals.folder.path());
        let output = fed(command, "");
        assert_eq!(output.status.code(), Some(exit), "{}", errors(&output));
        output
    };
    let output = annotated(&["--fail-under", "acc=1%"], 3);
    let rows = evals.rows("out.jsonl");
    let failed = rows.iter().position(|row| row["passed"] == false).unwrap();
    let shown: Vec<&str> = text(&output).lines().filter(|line| line.starts_with("::")).collect();
    // A blank line is first, and lines count from 1.
    let first = format!("::notice file=in.jsonl,line={},title=q{failed}::expected ", failed + 2);
    assert!(shown[0].starts_with(&first), "{shown:?}");
    assert!(shown.last().unwrap().contains("line=14,title=none::not_judged: "), "{shown:?}");
    let summary = evals.read("summary.md");
    assert!(summary.starts_with("before\n# Evaluation\n"), "{summary}");
    // A gate that fails is the only error.
    let output = annotated(&["--fail-under", "acc=99%"], 100);
    let red: Vec<&str> = text(&output).lines().filter(|line| line.starts_with("::err")).collect();
    assert_eq!(red.len(), 1, "{red:?}");
    assert!(red[0].starts_with("::error title=gate::acc >= 0.99: it is "), "{red:?}");
}

#[test]
fn every_row_is_a_test_case_and_data_of_the_page() {
    let evals = Evals::new();
    let (xml, html) = (evals.path("r.junit.xml"), evals.path("r.html"));
    evals.run("out.jsonl", &["--report", &xml, "--report", &html], 3);
    let rows = evals.rows("out.jsonl");
    let xml = evals.read("r.junit.xml");
    let count = |text: &str| xml.matches(text).count();
    let failed = rows.iter().filter(|row| row["passed"] == false).count();
    assert_eq!((count("<testcase "), count("<failure "), count("<error ")), (13, failed, 1));
    assert!(xml.contains(&format!("tests=\"13\" failures=\"{failed}\" errors=\"1\"")), "{xml}");
    assert!(xml.contains("<testcase classname=\"small\" name=\"q0\""), "{xml}");
    let html = evals.read("r.html");
    let (_, data) = html.split_once("id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(data["rows"].as_array().unwrap().len(), 13);
    assert_eq!(data["report"]["rows"]["total"], 13);
    assert_eq!(data["rows"][0]["answer"], rows[0]["response"]);
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
        ("out.jsonl", &["--report", &nowhere], "no such folder"),
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
