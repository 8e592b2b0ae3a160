//! Rows and what they are worth.

use serde_json::{Value, json};

use super::settings::{Normalize, PassIf, Scorer, Settings, pattern};
use super::{FIELDS, Judge};
use crate::input::fields::{JsonFields, Passthrough};

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
    let (f1, rouge, bleu) = (Scorer::F1, Scorer::RougeL, Scorer::Bleu);
    for scorer in [f1, Scorer::Levenshtein, Scorer::Anls, rouge, bleu, Scorer::Chrf] {
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
    let squad = judge(&[Scorer::Exact], |s| s.normalize = Some(Normalize::Squad));
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
        "scores": {"contains": 0.75, "shown": 0.0}, "reason": "contains failed"});
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

#[test]
fn assertions_hold_as_in_promptfoo() {
    // Of promptfoo 0.123.1: what its handlers say of these.
    let holds = |item: &Value, response: &str| {
        verdict(&judge(&[], |_| ()), &json!({"assert": [item], "response": response}))
    };
    let cases = [
        (json!({"type": "contains-any", "value": "hello, bye"}), "hello", true),
        (json!({"type": "contains-all", "value": "hello, bye"}), "hello", false),
        (json!({"type": "icontains-any", "value": "\"a, b\", C"}), "a b c", true),
        (json!({"type": "icontains-any", "value": "\"a, b\""}), "a b", false),
        (json!({"type": "not-contains-any", "value": "x, y"}), "abc", true),
        (json!({"type": "not-contains-all", "value": ["a", "z"]}), "abc", true),
        (json!({"type": "contains-all", "value": []}), "abc", true),
        (json!({"type": "contains-any", "value": []}), "abc", false),
        (json!({"type": "contains", "value": 5}), "it is 5", true),
        (json!({"type": "equals", "value": 5.0}), "5", true),
        (json!({"type": "equals", "value": "a"}), " a\n", false),
        (json!({"type": "not-equals", "value": {"a": 1}}), "no json", true),
        (json!({"type": "equals", "value": [1, {"b": 2}]}), "[1.0,{\"b\":2}]", true),
        (json!({"type": "equals", "value": "{\"a\": 1}"}), "{\"a\":1}", false),
        (json!({"type": "not-starts-with", "value": "Yes"}), "yes", true),
        (json!({"type": "ends-with", "value": "end."}), "the end.", true),
        (json!({"type": "not-regex", "value": "^\\d+$"}), "12a", true),
        (json!({"type": "contains-json"}), "[1, 2]", false),
        (json!({"type": "contains-json", "value": {"required": ["b"]}}), "{} {\"b\":1}", true),
        (json!({"type": "not-contains-json", "value": {"required": ["b"]}}), "{\"b\":1}", false),
        (json!({"type": "is-json", "value": "{\"required\": [\"a\"]}"}), "{\"b\":1}", false),
        (json!({"type": "not-is-json"}), "{", true),
        (json!({"type": "word-count", "value": 3}), " one two  three\n", true),
        (json!({"type": "word-count", "value": {"min": 2}}), "one", false),
        (json!({"type": "not-word-count", "value": {"min": 2, "max": 4}}), "a b c", false),
        (json!({"type": "levenshtein", "value": "kitten"}), "sitting", true),
        (json!({"type": "not-levenshtein", "value": "kitten", "threshold": 2}), "sitting", true),
        (json!({"type": "rouge-n", "value": "The cat sat."}), "the cat sat.", true),
        (json!({"type": "bleu", "value": "the cat sat on the mat"}), "the cat sat on a mat", true),
        (json!({"type": "gleu", "value": ["the cat sat", "x"]}), "The cat sat.", true),
        (json!({"type": "contains", "value": "zzz", "weight": 0}), "abc", true),
        (
            json!({"type": "assert-set", "threshold": 0.5, "assert": [
                {"type": "contains", "value": "a"}, {"type": "contains", "value": "z"}]}),
            "abc",
            true,
        ),
        (
            json!({"type": "assert-set", "assert": [
                {"type": "contains", "value": "a"}, {"type": "contains", "value": "z"}]}),
            "abc",
            false,
        ),
    ];
    for (item, response, expected) in cases {
        let got = holds(&item, response);
        let passed = match item["weight"] == 0 {
            true => got["passed"] == true,
            false => got["passed"] == expected,
        };
        assert!(passed, "{item} {response}: {got}");
    }
    let inverse = holds(&json!({"type": "not-bleu", "value": "one two"}), "three four");
    assert!(inverse["score"].as_f64().unwrap() > 0.99, "{inverse}");
}

#[test]
fn assertions_that_would_mean_something_else_are_refused() {
    for (item, expected) in [
        (json!({"type": "contains", "value": ["a"]}), "`value` is neither a text with something"),
        (json!({"type": "contains", "value": ""}), "`value` is neither a text with something"),
        (json!({"type": "contains-any", "value": 5}), "`value` is neither a list nor a text"),
        (json!({"type": "contains-any", "value": "\"a"}), "a quoted field of `value` has no end"),
        (json!({"type": "equals", "value": "{{name}}"}), "templates in `value` are not supported"),
        (
            json!({"type": "is-json", "value": "file://a.json"}),
            "files in `value` are not supported",
        ),
        (
            json!({"type": "is-json", "value": "type: object"}),
            "`value` is no schema: a schema in YAML",
        ),
        (json!({"type": "starts-with", "value": 5}), "`value` is no text"),
        (
            json!({"type": "word-count", "value": {"least": 1}}),
            "`least` of `value` is not supported",
        ),
        (json!({"type": "is-refusal"}), "this type is not supported; there are equals, "),
        (json!({"type": "not-assert-set"}), "this type is not supported"),
        (json!({"type": "similar", "value": "a"}), "this type is not supported"),
        (json!({"type": "contains", "value": "a", "threshold": -1}), "threshold -1 is no number"),
    ] {
        let fields = JsonFields::parse(json!({"assert": [item]}).to_string(), 1).unwrap();
        let error = judge(&[], |_| ()).check(&Passthrough::Json(fields)).unwrap_err();
        let kind = item["type"].as_str().unwrap();
        assert!(error.starts_with(&format!("assert `{kind}`: {expected}")), "{error}");
    }
}

#[test]
fn rows_are_judged_as_data_sets_are_published() {
    let passes = |scorer: Scorer, mut row: Value, response: &str| {
        row["response"] = response.into();
        verdict(&judge(&[scorer], |_| ()), &row)["passed"].clone()
    };
    let arc = json!({"choices": {"text": ["cat", "dog"], "label": ["1", "2"]}, "answerKey": "2"});
    let cases = [
        (Scorer::Number, json!({"answer": "2+3 = <<2+3=5>>5.\n#### 5"}), "5", "2"),
        (Scorer::Number, json!({"solution": "so $\\boxed{\\frac12}$."}), "0.5", "12"),
        (Scorer::Letter, arc, "B", "A"),
        (Scorer::Letter, json!({"endings": ["a", "b", "c"], "label": "2"}), "C", "B"),
        (Scorer::Letter, json!({"choices": ["a", "b"], "answer": 1}), "B", "A"),
        (Scorer::Letter, json!({"option1": "x", "option2": "y", "answer": "1"}), "A", "B"),
        (Scorer::Letter, json!({"options": {"A": "a", "B": "b"}, "answer": "B"}), "B", "A"),
        (
            Scorer::Letter,
            json!({"mc1_targets": {"choices": ["a", "b"], "labels": [0, 1]}}),
            "B",
            "A",
        ),
        (Scorer::Exact, json!({"question": "is it", "answer": true}), "Yes", "No"),
        (Scorer::Exact, json!({"answers": {"text": ["a", "b"], "answer_start": [1, 2]}}), "b", "c"),
        (Scorer::Exact, json!({"answer": {"value": "X", "aliases": ["Y"]}}), "Y", "Z"),
        (Scorer::Contains, json!({"correct_answers": ["a b", "c"]}), "so c", "d"),
    ];
    for (scorer, row, right, wrong) in cases {
        assert_eq!(passes(scorer, row.clone(), right), true, "{row}");
        assert_eq!(passes(scorer, row.clone(), wrong), false, "{row}");
    }
    let extracting = judge(&[Scorer::Exact], |s| s.expected_extract = pattern(r"#### (.*)").ok());
    let answer = json!({"answer": "so\n#### 5", "response": "5"});
    assert_eq!(verdict(&extracting, &answer)["passed"], true);
    let fields = JsonFields::parse(json!({"answer": "5"}).to_string(), 1).unwrap();
    let error = extracting.check(&Passthrough::Json(fields)).unwrap_err();
    assert_eq!(error, "--expected-extract finds nothing in `5`");
}

#[test]
fn numbers_beyond_64_bits_keep_their_digits() {
    let row = |expected: &str, response: &str| -> Value {
        let line = format!("{{\"expected\":{expected},\"response\":{}}}\n", json!(response));
        let mut line = line.into_bytes();
        judge(&[Scorer::Json], |_| ()).append(&mut line).unwrap();
        serde_json::from_slice(&line).unwrap()
    };
    let (one, other) =
        ("115792089237316195423570985008687907853", "115792089237316195423570985008687907854");
    for form in ["@", "{\"a\": @}", "[@]"] {
        let text = |number: &str| form.replace('@', number);
        assert_eq!(row(&text(one), &text(one))["passed"], true, "{form}");
        assert_eq!(row(&text(one), &text(other))["passed"], false, "{form}");
    }
    let exact = judge(&[Scorer::Exact], |_| ());
    let mut line = format!("{{\"expected\":{one},\"response\":\"{one}\"}}\n").into_bytes();
    exact.append(&mut line).unwrap();
    assert!(String::from_utf8(line).unwrap().contains("\"passed\":true"));
}

#[test]
fn an_answer_that_is_too_much_work_is_not_judged() {
    let long = "ab".repeat(250_000);
    for (scorer, expected) in [
        (Scorer::Levenshtein, json!("ba".repeat(250_000))),
        (Scorer::Anls, json!("ba".repeat(250_000))),
        (Scorer::Regex, json!("a{100000}")),
        (Scorer::Contains, json!(vec!["x"; 5000])),
        (Scorer::RougeL, json!(vec!["x"; 5000])),
        (Scorer::F1, json!(vec!["x"; 5000])),
        (Scorer::Bleu, json!(vec!["x"; 5000])),
        (Scorer::Chrf, json!(vec!["x"; 5000])),
    ] {
        let got = verdict(&judge(&[scorer], |_| ()), &row(expected, &long));
        let name = scorer.name();
        assert_eq!((&got["score"], &got["passed"]), (&Value::Null, &Value::Null), "{got}");
        let reason = got["reason"].as_str().unwrap();
        assert!(reason.starts_with(&format!("not_judged: {name}: ")), "{reason}");
    }
}

#[test]
fn a_value_that_is_too_much_work_for_its_schema_is_not_judged() {
    let schema = json!({"$defs": {"l": {"items": {"allOf": [{"$ref": "#/$defs/l"},
        {"$ref": "#/$defs/l"}]}}}, "$ref": "#/$defs/l"});
    let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let judge = judge(&[Scorer::JsonSchema], |_| ());
    assert_eq!(verdict(&judge, &row(schema.clone(), &nested(10)))["passed"], true);
    let got = verdict(&judge, &row(schema, &nested(60)));
    assert_eq!((&got["score"], &got["passed"]), (&Value::Null, &Value::Null), "{got}");
    let reason = got["reason"].as_str().unwrap();
    assert!(reason.starts_with("not_judged: json-schema: "), "{reason}");
}
