//! Rows and what they are worth.

use serde_json::{Value, json};

use super::settings::{Normalize, PassIf, Scorer, Settings, pattern};
use super::{FIELDS, Judge};
use crate::cli::input::fields::{JsonFields, Passthrough};

fn judge(scorers: &[Scorer], change: impl FnOnce(&mut Settings)) -> Judge {
    let out_field = "response".to_owned();
    let mut settings = Settings { scorers: scorers.to_vec(), out_field, ..Settings::default() };
    change(&mut settings);
    Judge::new(settings)
}

/// The fields of the verdict over a row.
fn verdict(judge: &Judge, row: &Value) -> Value {
    let mut line = row.to_string().into_bytes();
    line.push(b'\n');
    judge.append(&mut line).unwrap();
    let text = String::from_utf8(line).unwrap();
    let judged: Value = serde_json::from_str(text.strip_suffix('\n').unwrap()).unwrap();
    let fields = judged.as_object().unwrap().iter().filter(|(name, _)| FIELDS.contains(&&***name));
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect())
}

fn row(expected: Value, response: &str) -> Value {
    json!({"id": 1, "expected": expected, "response": response, "finish_reason": "stop"})
}

#[test]
fn every_scorer_tells_right_from_wrong() {
    let cases = [
        (Scorer::Exact, json!("Paris"), " Paris\n", "paris"),
        (Scorer::Exact, json!(["a", "b"]), "b", "c"),
        (Scorer::Exact, json!(42), "42", "43"),
        (Scorer::Contains, json!("Paris"), "It is Paris.", "It is paris."),
        (Scorer::IContains, json!("PARIS"), "It is Paris.", "It is Rome."),
        (Scorer::StartsWith, json!("yes"), " yes, it is", "oh yes"),
        (Scorer::Regex, json!(r"^\s*\d{3}$"), " 123", "1234"),
        (Scorer::Number, json!("1,000"), "so 1000.0 in all.", "1000 or 2"),
        (Scorer::Number, json!(7), "7", ""),
        (Scorer::Letter, json!("b"), "ANSWER: B", "ANSWER: C"),
        (Scorer::Letter, json!(2), "C)", "B)"),
        (Scorer::Json, json!({"a": 1}), "```{\"a\": 1.0}```", "{\"a\": 2}"),
        (Scorer::Json, json!("[1]"), "[1]", "[1"),
        (Scorer::JsonSchema, json!({"type": "array"}), "so [1]", "{}"),
    ];
    for (scorer, expected, right, wrong) in cases {
        let judge = judge(&[scorer], |_| ());
        for (response, score) in [(right, 1.0), (wrong, 0.0)] {
            let verdict = verdict(&judge, &row(expected.clone(), response));
            let name = scorer.name();
            assert_eq!(verdict["score"], score, "{name} {response}: {verdict}");
            assert_eq!(verdict["passed"], score == 1.0, "{name} {response}: {verdict}");
            assert_eq!(verdict["scorer"], name);
        }
    }
}

#[test]
fn graded_scores_pass_by_the_limit_that_is_given() {
    let answer = row(json!("the cat sat down"), "a cat sat");
    for scorer in [Scorer::F1, Scorer::Levenshtein, Scorer::RougeL, Scorer::Bleu, Scorer::Chrf] {
        let got = verdict(&judge(&[scorer], |_| ()), &answer);
        let score = got["score"].as_f64().unwrap();
        assert!(score > 0.0 && score < 1.0, "{scorer:?}: {got}");
        assert_eq!(got["passed"], Value::Null, "{got}");
        let at = |limit: f64| judge(&[scorer], |s| s.pass_if = Some(PassIf::at_least(limit)));
        assert_eq!(verdict(&at(score), &answer)["passed"], true);
        assert_eq!(verdict(&at(score + 1e-9), &answer)["passed"], false);
    }
}

#[test]
fn settings_say_what_is_compared() {
    let extracting = judge(&[Scorer::Exact], |s| s.extract = pattern(r"#### (-?\d+)").ok());
    let right = verdict(&extracting, &row(json!("8"), "3 + 5\n#### 8 done"));
    assert_eq!(right, json!({"score": 1.0, "passed": true, "scorer": "exact", "extracted": "8"}));
    let none = verdict(&extracting, &row(json!(""), "8"));
    assert_eq!((&none["passed"], &none["extracted"]), (&json!(false), &Value::Null));
    let squad = judge(&[Scorer::Exact], |s| s.normalize = Normalize::Squad);
    assert_eq!(verdict(&squad, &row(json!("cat's"), "The Cats!"))["passed"], true);
    let named = judge(&[Scorer::Exact], |s| s.expected_column = Some("gold".to_owned()));
    let answer = json!({"gold": "x", "expected": "y", "response": "x"});
    assert_eq!(verdict(&named, &answer)["passed"], true);
    // The row's own field, and not the answer that took its name.
    let renamed = judge(&[Scorer::Exact], |s| s.out_field = "answer".to_owned());
    let answer = json!({"input_answer": "x", "answer": "y"});
    assert_eq!(verdict(&renamed, &answer)["passed"], false);
}

#[test]
fn several_scorers_show_each_score() {
    let both = judge(&[Scorer::Exact, Scorer::IContains], |_| ());
    let expected = json!({"score": 0.5, "passed": false, "scorer": "exact,icontains",
        "scores": {"exact": 0.0, "icontains": 1.0}, "reason": "exact failed"});
    assert_eq!(verdict(&both, &row(json!("5"), "it is 5")), expected);
}

#[test]
fn several_completions_are_a_mean_a_majority_and_their_shares() {
    let answer = json!({"expected": "8", "response": "7", "outputs": [
        {"text": "7"}, {"text": "so 8"}, {"text": "<t>9", "content": "8"}, {"text": "none"}]});
    let number = judge(&[Scorer::Number], |_| ());
    let sample = |passed: bool, extracted: Option<&str>| {
        let score = f64::from(u8::from(passed));
        json!({"score": score, "passed": passed, "extracted": extracted})
    };
    let expected = json!({"score": 0.5, "passed": true, "scorer": "number", "extracted": "8",
        "samples": [sample(false, Some("7")), sample(true, Some("8")), sample(true, Some("8")),
            sample(false, None)]});
    assert_eq!(verdict(&number, &answer), expected);
}

#[test]
fn the_likeliest_choice_and_the_likelihood_of_a_text() {
    let logprobs = [json!({"logprob": -4.0}), json!({"logprob": -6.0}), json!({"logprob": null})];
    let answer = json!({"choices": ["no", "a longer one", "x"], "answer": "B", "response": "",
        "choice_logprobs": logprobs});
    let expected = json!({"score": 0.0, "passed": false, "scorer": "choice", "extracted": "no",
        "scores": {"acc": 0.0, "acc_norm": 1.0, "acc_bytes": 1.0}});
    assert_eq!(verdict(&judge(&[Scorer::Choice], |_| ()), &answer), expected);
    let text = json!({"text": "abcd", "response": "", "loglikelihood":
        {"logprob": -2.0, "num_tokens": 3, "num_words": 1, "num_bytes": 4}});
    let got = verdict(&judge(&[Scorer::Perplexity], |_| ()), &text);
    assert_eq!(got["score"], -0.5 / std::f64::consts::LN_2);
    assert_eq!(got["passed"], Value::Null);
}

#[test]
fn assert_lists_are_promptfoos() {
    let items = |assert: Value, response: &str| {
        let answer = json!({"assert": assert, "response": response});
        verdict(&judge(&[], |_| ()), &answer)
    };
    let passed = [
        (json!({"type": "equals", "value": "a b"}), "a b", true),
        (json!({"type": "equals", "value": {"a": 1}}), "{\"a\":1}", true),
        (json!({"type": "contains-all", "value": ["a", "b"]}), "b a", true),
        (json!({"type": "contains-any", "value": ["a", "z"]}), "b", false),
        (json!({"type": "not-icontains", "value": "SORRY"}), "I am sorry", false),
        (json!({"type": "not-contains", "value": "x"}), "abc", true),
        (json!({"type": "starts-with", "value": "Yes"}), "Yes!", true),
        (json!({"type": "regex", "value": "^a+$"}), "aaa", true),
        (json!({"type": "is-json"}), "so {\"a\":1}", false),
        (json!({"type": "contains-json"}), "so {\"a\":1}", true),
        (json!({"type": "is-json", "value": {"required": ["a"]}}), "{\"a\":1}", true),
        (json!({"type": "contains-json", "value": {"required": ["b"]}}), "so {\"a\":1}", false),
        (json!({"type": "levenshtein", "value": "kitten", "threshold": 3}), "sitting", true),
        (json!({"type": "levenshtein", "value": "kitten", "threshold": 2}), "sitting", false),
        (json!({"type": "rouge-n", "value": "a b c d"}), "a b c", true),
        (json!({"type": "bleu", "value": "one two three four", "threshold": 0.9}), "one", false),
    ];
    for (item, response, expected) in passed {
        let got = items(json!([item]), response);
        assert_eq!(got["passed"], expected, "{item} {response}: {got}");
    }
    let weighed = json!([
        {"type": "contains", "value": "a", "weight": 3},
        {"type": "contains", "value": "b"},
        {"type": "contains", "value": "c", "weight": 0, "metric": "shown"},
    ]);
    let expected = json!({"score": 0.75, "passed": false, "scorer": "contains,shown",
        "scores": {"contains": 0.5, "shown": 0.0}, "reason": "contains failed"});
    assert_eq!(items(weighed, "a"), expected);
}

#[test]
fn a_row_that_cannot_be_judged_says_what_it_lacks() {
    let cases = [
        (Scorer::Exact, json!({"id": 1}), "the row has no `expected` (nor `answer`, "),
        (Scorer::Exact, json!({"expected": []}), "the row expects one of an empty list"),
        (Scorer::Number, json!({"label": "x"}), "`x` is no number"),
        (Scorer::Regex, json!({"ideal": "("}), "`(` is no regular expression: unclosed"),
        (Scorer::Choice, json!({"expected": 1}), "the row has no `choices`"),
        (Scorer::Choice, json!({"choices": "a"}), "`choices` is no list of texts"),
        (Scorer::Choice, json!({"choices": ["a", "b"], "expected": 2}), "2 is none of the choices"),
        (Scorer::Letter, json!({"expected": "Z"}), "\"Z\" is none of the choices"),
    ];
    for (scorer, row, expected) in cases {
        let fields = JsonFields::parse(row.to_string(), 1).unwrap();
        let error = judge(&[scorer], |_| ()).check(&Passthrough::Json(fields)).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    for (item, expected) in [
        (json!({"type": "llm-rubric", "value": "x"}), "assert `llm-rubric`: this type is not"),
        (json!({"type": "contains"}), "assert `contains`: there is no `value`"),
        (json!({"type": "equals", "value": 1, "transform": "x"}), "assert: `transform` is not"),
        (
            json!({"type": "is-json", "value": {"$ref": "#a"}}),
            "assert `is-json`: `$ref` leads nowhere: #a",
        ),
        (json!(5), "`assert` is no list of objects"),
    ] {
        let fields = JsonFields::parse(json!({"assert": [item]}).to_string(), 1).unwrap();
        let error = judge(&[], |_| ()).check(&Passthrough::Json(fields)).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    let cells = Passthrough::Cells {
        names: ["choices", "label"].map(str::to_owned).as_slice().into(),
        cells: vec!["[\"a\",\"b\"]".to_owned(), "b".to_owned()],
    };
    assert_eq!(judge(&[Scorer::Choice], |_| ()).check(&cells), Ok(()));
}

#[test]
fn an_error_row_gets_no_verdict() {
    let error = json!({"expected": "a", "response": null, "finish_reason": "error",
        "error": {"code": "context_length", "message": "too long"}});
    assert_eq!(verdict(&judge(&[], |_| ()), &error), json!({}));
}
