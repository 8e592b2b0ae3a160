//! The scorers beside those of other tools: `testdata/generate_eval_vectors.py` says which.

use std::sync::Arc;

use serde_json::Value;

use super::asserts;
use super::criterion::Test;
use super::scorers::errors::{Errors, Unit};
use super::scorers::perplexity::Loglikelihood;
use super::scorers::words::{Patterns, rouge};
use super::scorers::{choice, letter, vqa};
use super::scoring::Text;
use super::settings::Normalize;
use super::work::Work;

fn vectors(name: &str) -> Vec<Value> {
    let text = include_str!("../../../../testdata/eval_vectors.json");
    let vectors: Value = serde_json::from_str(text).unwrap();
    vectors[name].as_array().unwrap().clone()
}

fn texts(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).unwrap()
}

fn score(test: &Test, text: &str, patterns: &Arc<Patterns>) -> f64 {
    let normalize = Normalize::None;
    test.score(Text { text, normalize, patterns, work: &Work::default() }).unwrap().score
}

#[test]
fn texts_score_as_by_sacrebleu_rouge_score_and_squad() {
    let patterns = Arc::<Patterns>::default();
    for vector in vectors("texts") {
        let (answer, expected) = (vector["answer"].as_str().unwrap(), texts(&vector["expected"]));
        let words = |make: &dyn Fn(&str) -> Vec<String>| {
            expected.iter().map(|text| make(text)).collect::<Vec<_>>()
        };
        let tests = [
            ("bleu", Test::Bleu(expected.clone())),
            ("chrf", Test::Chrf(expected.clone())),
            ("rouge-l", Test::RougeL(words(&rouge))),
            ("f1", Test::F1(words(&|text| patterns.squad(text)))),
        ];
        for (name, test) in tests {
            let got = score(&test, answer, &patterns);
            let wanted = vector[name].as_f64().unwrap();
            assert!((got - wanted).abs() < 1e-12, "{name} of {answer:?}: {got}, {wanted}");
        }
    }
}

#[test]
fn anls_is_that_of_docvqa() {
    let patterns = Arc::<Patterns>::default();
    for vector in vectors("anls") {
        let test = Test::Anls(texts(&vector["expected"]));
        let got = score(&test, vector["answer"].as_str().unwrap(), &patterns);
        assert!((got - vector["anls"].as_f64().unwrap()).abs() < 1e-15, "{got}: {vector}");
    }
}

#[test]
fn vqa_is_that_of_evalai() {
    let patterns = Arc::<Patterns>::default();
    for vector in vectors("vqa") {
        let people = texts(&vector["expected"]);
        let test = Test::Vqa(people.iter().map(|answer| vqa::normal(answer)).collect());
        let got = score(&test, vector["answer"].as_str().unwrap(), &patterns);
        assert!((got - vector["vqa"].as_f64().unwrap()).abs() < 1e-15, "{got}: {vector}");
    }
}

#[test]
fn letters_are_inspects() {
    for vector in vectors("letters") {
        let found = letter::given(vector["answer"].as_str().unwrap(), &Patterns::default());
        assert_eq!(found.map(String::from).as_deref(), vector["letter"].as_str(), "{vector}");
    }
}

#[test]
fn choices_are_lm_evals() {
    for vector in vectors("choices") {
        let logprobs: Vec<f64> = serde_json::from_value(vector["logprobs"].clone()).unwrap();
        let right = vector["expected"].as_u64().unwrap() as usize;
        let scored = choice::score(&texts(&vector["choices"]), &[right], &logprobs);
        let got: Vec<f64> = scored.parts.iter().map(|(_, value)| *value).collect();
        let wanted: Vec<f64> = serde_json::from_value(vector["acc"].clone()).unwrap();
        assert_eq!(got, wanted, "{vector}");
    }
}

#[test]
fn perplexities_are_lm_evals() {
    let text = include_str!("../../../../testdata/eval_vectors.json");
    let vectors: Value = serde_json::from_str(text).unwrap();
    let vector = &vectors["perplexity"];
    let mut all = Loglikelihood::default();
    for row in vector["rows"].as_array().unwrap() {
        all.add(&serde_json::from_value(row.clone()).unwrap());
    }
    for (name, value) in all.measures() {
        let wanted = vector[name].as_f64().unwrap();
        assert!((value / wanted - 1.0).abs() < 1e-14, "{name}: {value}, {wanted}");
    }
}

#[test]
fn an_assert_list_takes_patterns_that_no_backtracking_would_end() {
    let list = serde_json::json!([{"type": "regex", "value": "^(a+)+$"}]);
    let patterns = Arc::<Patterns>::default();
    let criteria = asserts::criteria(&list.to_string(), &patterns).unwrap();
    let hostile = "a".repeat(1 << 16) + "b";
    assert_eq!(score(&criteria[0].test, &hostile, &patterns), 0.0);
}

#[test]
fn assertions_score_as_promptfoos() {
    let text = include_str!("../../../../testdata/promptfoo_vectors.json");
    let vectors: Vec<Value> = serde_json::from_str(text).unwrap();
    let patterns = Arc::<Patterns>::default();
    for vector in vectors {
        let list = serde_json::json!([{"type": vector["type"], "value": vector["value"]}]);
        let criteria = asserts::criteria(&list.to_string(), &patterns).unwrap();
        let (normalize, work) = (Normalize::None, Work::default());
        let text = vector["answer"].as_str().unwrap();
        let text = Text { text, normalize, patterns: &patterns, work: &work };
        let scored = criteria[0].test.score(text).unwrap();
        let (got, wanted) = (criteria[0].counted(&scored), vector["score"].as_f64().unwrap());
        assert!((got - wanted).abs() < 1e-12, "{got}: {vector}");
        assert_eq!(criteria[0].passes(&scored), vector["pass"].as_bool(), "{vector}");
    }
}

#[test]
fn errors_of_transcripts_are_jiwers() {
    let text = include_str!("../../../../testdata/wer_vectors.json");
    let vectors: Value = serde_json::from_str(text).unwrap();
    let patterns = Arc::<Patterns>::default();
    let (normalize, work) = (Normalize::Strip, Work::default());
    let mut all = Errors::default();
    for pair in vectors["pairs"].as_array().unwrap() {
        let text = pair["answer"].as_str().unwrap();
        let expected = patterns.normalized(pair["expected"].as_str().unwrap(), normalize);
        for unit in [Unit::Word, Unit::Character] {
            let test = Test::Errors(unit, vec![expected.clone()]);
            let answer = Text { text, normalize, patterns: &patterns, work: &work };
            let scored = test.score(answer).unwrap();
            let found = scored.errors.unwrap();
            all.add(&found);
            let (errors, expected, wanted) = match unit {
                Unit::Word => (found.word_errors, found.num_words, &pair["words"]),
                Unit::Character => (found.char_errors, found.num_chars, &pair["chars"]),
            };
            assert_eq!(serde_json::json!({"errors": errors, "expected": expected}), *wanted);
            assert_eq!(scored.score, 1.0 - errors as f64 / expected as f64);
        }
    }
    for (name, value) in all.measures() {
        let wanted = vectors[name].as_f64().unwrap();
        assert!((value - wanted).abs() < 1e-15, "{name}: {value}, {wanted}");
    }
    assert_eq!(all.measures().count(), 2);
    for vector in vectors["basic"].as_array().unwrap() {
        let plain = patterns.normalized(vector["text"].as_str().unwrap(), Normalize::Basic);
        assert_eq!(Some(plain.as_str()), vector["plain"].as_str());
    }
}

#[test]
fn the_nearest_of_several_transcripts_counts() {
    let texts = ["", "a b c", "a x"].map(str::to_owned).to_vec();
    let patterns = Arc::<Patterns>::default();
    let scored = |text: &str, texts: &[String]| {
        let (normalize, work) = (Normalize::Strip, Work::default());
        let answer = Text { text, normalize, patterns: &patterns, work: &work };
        Test::Errors(Unit::Word, texts.to_vec()).score(answer).unwrap()
    };
    let near = scored("a b", &texts);
    assert_eq!((near.score, near.errors.unwrap().num_words), (1.0 - 1.0 / 3.0, 3));
    assert_eq!(near.parts, [("word_accuracy".to_owned(), near.score)]);
    assert_eq!(scored("", &texts).score, 1.0);
    let nothing = scored("a b", &texts[..1]);
    assert_eq!((nothing.score, nothing.errors.unwrap().word_errors), (-1.0, 2));
    assert_eq!(nothing.errors.unwrap().measures().next(), None, "no rate of nothing");
}
