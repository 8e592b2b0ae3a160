//! Grammars over real vocabularies: masks, walks, refusals, budgets.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{GrammarCompiler, Guidance, Guide, Thinking};
use vllm_batch_api::request::{RequestError, StructuredOutputs};
use vllm_batch_text::Tokenizer;

pub(super) struct Model {
    tokenizer: Arc<Tokenizer>,
    compiler: GrammarCompiler,
    eos: u32,
}

impl Model {
    fn of(folder: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata").join(folder);
        let tokenizer = Arc::new(Tokenizer::from_dir(&path).expect("a tokenizer"));
        let eos = tokenizer.eos_token_id().expect("it has one");
        let compiler = GrammarCompiler::new(Arc::clone(&tokenizer), vec![eos]);
        Self { tokenizer, compiler, eos }
    }

    pub(super) fn demo() -> Self {
        Self::of("demo")
    }

    pub(super) fn guide(&self, outputs: Value) -> Result<Guide, RequestError> {
        let outputs = StructuredOutputs::from_json(&outputs).expect("a constraint");
        let grammar = Some(self.compiler.compile(&outputs.into())?);
        Ok(Guide::new(&Guidance { grammar, ..Guidance::default() }, &[5]))
    }

    pub(super) fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_inside(text).expect("it can be encoded")
    }

    /// Random tokens that may come, up to the end.
    fn walk(&self, guide: &mut Guide, random: &mut Random, max_tokens: usize) -> Walk {
        let mut token_ids = Vec::new();
        for _ in 0..max_tokens {
            guide.fill();
            if let Some(error) = guide.error_after(usize::MAX) {
                return Walk::Error(error.message.clone());
            }
            let allowed = allowed(guide);
            let token_id = allowed[random.below(allowed.len())];
            guide.accept(token_id);
            if token_id == self.eos {
                assert!(guide.is_complete());
                return Walk::Done(self.tokenizer.decode(&token_ids, false).expect("text"));
            }
            token_ids.push(token_id);
        }
        Walk::Cut
    }
}

#[derive(Debug, PartialEq)]
enum Walk {
    Done(String),
    Cut,
    Error(String),
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }
}

fn allowed(guide: &Guide) -> Vec<u32> {
    let words = guide.mask().expect("it is constrained").words;
    let bits = |(index, word): (usize, &u32)| {
        let word = *word;
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| (index * 32) as u32 + bit)
    };
    words.iter().enumerate().flat_map(bits).collect()
}

#[test]
fn whatever_is_sampled_matches_a_regular_expression() {
    let model = Model::demo();
    let mut done = 0;
    for regex in ["[0-9]{4}-[0-9]{2}", "(yes|no)[.!]?", "", "[a-zé]{1,5}( [a-z]{1,5}){0,2}"] {
        let whole = fancy_regex::Regex::new(&format!("^(?:{regex})$")).expect("it is valid");
        for seed in 0..40 {
            let mut guide = model.guide(json!({ "regex": regex })).expect("it compiles");
            if let Walk::Done(text) = model.walk(&mut guide, &mut Random(seed), 60) {
                assert!(whole.is_match(&text).expect("it is quick"), "{regex}: {text:?}");
                done += 1;
            }
        }
    }
    assert!(done > 140, "{done} of 160 came to an end");
}

#[test]
fn whatever_is_sampled_is_json_of_the_schema() {
    let model = Model::demo();
    let schema = json!({"type": "object", "additionalProperties": false,
        "required": ["name", "size"], "properties": {
            "name": {"type": "string", "maxLength": 5},
            "size": {"type": "integer", "minimum": 3, "maximum": 12},
            "kind": {"enum": ["a", "b"]}}});
    let mut done = 0;
    for seed in 0..60 {
        let mut guide = model.guide(json!({ "json": schema })).expect("it compiles");
        let Walk::Done(text) = model.walk(&mut guide, &mut Random(seed), 400) else { continue };
        done += 1;
        let value: Value = serde_json::from_str(&text).expect("it is JSON");
        assert!(value["name"].as_str().is_some_and(|name| name.chars().count() <= 5), "{text}");
        assert!(value["size"].as_i64().is_some_and(|size| (3..=12).contains(&size)), "{text}");
        assert!(value.get("kind").is_none_or(|kind| kind == "a" || kind == "b"), "{text}");
        assert!(value.as_object().is_some_and(|fields| fields.len() <= 3), "{text}");
    }
    assert!(done > 40, "{done} of 60 came to an end");
}

/// Byte-level, byte-fallback and Unigram vocabularies, as transformers has them.
#[test]
fn tokens_of_every_kind_of_vocabulary_spell_what_is_asked() {
    let text = "Größe 10 \u{1F600} of\nit";
    for folder in ["gpt2", "llama", "qwen2", "gemma", "opt", "unigram_bytes", "mistral"] {
        let model = Model::of(&format!("tokenizers/{folder}"));
        let bytes = model.tokenizer.token_bytes().expect("bytes");
        let mut guide = model.guide(json!({ "choice": [text] })).expect("it compiles");
        let mut said = Vec::new();
        loop {
            guide.fill();
            let token_id = allowed(&guide)[0];
            if token_id == model.eos {
                break;
            }
            said.extend_from_slice(&bytes[token_id as usize]);
            guide.accept(token_id);
            assert!(said.len() <= text.len(), "{folder}");
        }
        assert_eq!(String::from_utf8_lossy(&said), text, "{folder}");
    }
}

/// Where nothing is forced, a token may come exactly if some whole text begins with it.
#[test]
fn a_mask_is_what_brute_force_finds() {
    let model = Model::demo();
    let mut guide = model.guide(json!({"regex": "[ab ]{0,3}"})).expect("it compiles");
    guide.fill();
    let bytes = model.tokenizer.token_bytes().expect("byte-level");
    let fits = |token: &Vec<u8>| {
        !token.is_empty() && token.len() <= 3 && token.iter().all(|byte| b"ab ".contains(byte))
    };
    let expected = (0..).zip(&bytes).filter(|(id, token)| fits(token) || *id == model.eos);
    assert_eq!(allowed(&guide), expected.map(|(id, _)| id).collect::<Vec<u32>>());
}

/// A greedy row looks at one token: what it learns is what the whole mask would say.
#[test]
fn a_mask_for_the_likeliest_token_agrees_with_the_whole_mask() {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["name", "at"],
        "properties": {"name": {"type": "string", "maxLength": 6}, "at": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["a b", "\"c", "größe"]}}}});
    let asked = [
        json!({ "json": schema }),
        json!({"regex": "([a-z]{1,4} ){2,5}"}),
        json!({"choice": ["yes", "yesterday", "no"]}),
        json!({"grammar": "start: \"(\" (\"x\" | start)* \")\" | /[0-9]+/"}),
    ];
    let mut random = Random(3);
    for folder in ["demo", "tokenizers/llama", "tokenizers/gemma", "tokenizers/unigram_bytes"] {
        let model = Model::of(folder);
        let num_tokens = model.tokenizer.vocab_size();
        for outputs in &asked {
            let mut whole = model.guide(outputs.clone()).expect("it compiles");
            let mut single = model.guide(outputs.clone()).expect("it compiles");
            for _ in 0..40 {
                whole.fill();
                let may_come = allowed(&whole);
                let mut looked_at = vec![model.eos];
                for _ in 0..8 {
                    looked_at.push(random.below(num_tokens) as u32);
                    looked_at.push(may_come[random.below(may_come.len())]);
                }
                for token_id in looked_at {
                    single.fill_for_likeliest(token_id);
                    let found = allowed(&single);
                    let is_agreed = match may_come.contains(&token_id) {
                        true => found == [token_id] || found == may_come,
                        false => found == may_come,
                    };
                    assert!(is_agreed, "{folder}, {outputs}: {token_id}");
                }
                let token_id = may_come[random.below(may_come.len())];
                if token_id == model.eos {
                    break;
                }
                whole.accept(token_id);
                single.accept(token_id);
            }
        }
    }
}

/// Who asks for forced tokens before a mask changes neither it nor what is counted, up to where a
/// row meets its limits.
#[test]
fn what_is_forced_is_what_masks_say_and_costs_no_more() {
    let keys = ["the first of the names", "a_number_of_things", "größe"];
    let properties: Vec<(String, Value)> = keys
        .iter()
        .map(|key| (key.to_string(), json!({"type": "string", "maxLength": 4})))
        .collect();
    let schema = json!({"type": "object", "additionalProperties": false, "required": keys,
        "properties": Value::Object(properties.into_iter().collect())});
    let asked = [
        json!({"json": schema, "disable_any_whitespace": true}),
        json!({"regex": "(alpha beta|alpha gamma){2,5}"}),
        json!({"choice": ["yesterday evening", "yesterday morning", "no"]}),
        json!({"grammar": "start: \"(\" (\"x\" | start)* \")\" | /[0-9]+/"}),
        json!({"grammar": "%llguidance {\"no_forcing\": true}\nstart: \"one and two\" /[a-c]/"}),
        json!({"grammar": "start: s\ns: s s | \"a\" | \"\""}),
        json!({"regex": "(a{0,1000}){0,1000}"}),
    ];
    let (mut num_forced, mut num_errors) = (0, 0);
    for folder in ["demo", "tokenizers/llama"] {
        let model = Model::of(folder);
        let num_tokens = model.tokenizer.vocab_size();
        let cases = asked.iter().flat_map(|outputs| [(outputs, true), (outputs, false)]);
        for (outputs, is_greedy) in cases {
            let mut random = Random(5);
            let mut plain = model.guide(outputs.clone()).expect("it compiles");
            let mut asked = model.guide(outputs.clone()).expect("it compiles");
            let mut output_token_ids = Vec::new();
            for _ in 0..300 {
                let forced = asked.forced_after(&output_token_ids).to_vec();
                plain.catch_up(&output_token_ids);
                let likeliest = forced.first().copied();
                let likeliest = likeliest.unwrap_or(random.below(num_tokens) as u32);
                for guide in [&mut plain, &mut asked] {
                    match is_greedy {
                        true => guide.fill_for_likeliest(likeliest),
                        false => guide.fill(),
                    }
                }
                assert_eq!(format!("{plain:?}"), format!("{asked:?}"), "{folder}, {outputs}");
                if plain.error_after(usize::MAX).is_some() {
                    num_errors += 1;
                    break;
                }
                let may_come = allowed(&plain);
                if let Some(first) = forced.first() {
                    assert_eq!(may_come, [*first], "{folder}, {outputs}");
                    num_forced += 1;
                }
                // As long as it can be.
                let go_on: Vec<u32> = may_come.into_iter().filter(|id| *id != model.eos).collect();
                if go_on.is_empty() {
                    break;
                }
                output_token_ids.push(go_on[random.below(go_on.len())]);
            }
        }
    }
    assert!(num_forced > 100 && num_errors > 1, "{num_forced} forced, {num_errors} ended");
}

#[test]
fn texts_match_or_do_not() {
    let model = Model::demo();
    let tag = json!({"triggers": ["<f="], "structures": [
        {"begin": "<f=add>", "schema": {"type": "object", "properties": {"a": {"type": "integer"}},
            "required": ["a"], "additionalProperties": false}, "end": "</f>"}]});
    let ebnf = "root ::= \"(\" [a-c]+ \")\" | \"<\" root \">\"";
    let cases = [
        (json!({"choice": ["one", "two \"x\""]}), vec!["one", "two \"x\""], vec!["on", "three"]),
        (json!({ "grammar": ebnf }), vec!["(abc)", "<<(a)>>"], vec!["()", "<(a)", "(d)"]),
        (json!({"grammar": "start: \"x\" y* \"z\"\ny: \"y\""}), vec!["xz", "xyyz"], vec!["x", "z"]),
        (json!({"json_object": true}), vec!["{}", "{\"a\": [1]}"], vec!["[]", "{", "1"]),
        (
            json!({ "structural_tag": tag }),
            vec!["plain", "hi <f=add>{\"a\": 1}</f> there"],
            vec!["<f=add>{\"b\": 1}</f>", "<f=sub>{}</f>"],
        ),
        (
            json!({"json": {"type": "array", "items": {"type": "boolean"}},
                "disable_any_whitespace": true}),
            vec!["[true,false]"],
            vec!["[true, false]"],
        ),
        (
            json!({"json": {"type": "object", "properties": {"a": {"type": "null"}}},
                "disable_additional_properties": true}),
            vec!["{}", "{\"a\":null}"],
            vec!["{\"b\":null}"],
        ),
        (
            json!({"json": {"properties": {"properties": {"const": {"properties": 1}}}},
                "disable_additional_properties": true}),
            vec!["{\"properties\":{\"properties\":1}}"],
            vec!["{\"b\":1}", "{\"properties\":{\"properties\":1,\"additionalProperties\":false}}"],
        ),
        (
            json!({ "structural_tag": tag, "disable_any_whitespace": true }),
            vec!["<f=add>{\"a\":1}</f>"],
            vec!["<f=add>{\"a\": 1}</f>"],
        ),
    ];
    for (outputs, right, wrong) in cases {
        let guide = model.guide(outputs.clone()).expect("it compiles");
        for text in right {
            assert!(guide.matches(&model.ids(text)), "{outputs}: {text}");
        }
        for text in wrong {
            assert!(!guide.matches(&model.ids(text)), "{outputs}: {text}");
        }
    }
}

/// Rows of one grammar copy it: what one has done changes no mask of another.
#[test]
fn masks_do_not_depend_on_the_rows_before() {
    let model = Model::demo();
    let outputs = json!({"regex": "(.*a.{3}){2}"});
    let masks = |seed: u64| {
        let mut guide = model.guide(outputs.clone()).expect("it compiles");
        let (mut random, mut masks) = (Random(seed), Vec::new());
        for _ in 0..20 {
            guide.fill();
            let allowed = allowed(&guide);
            guide.accept(allowed[random.below(allowed.len())]);
            masks.push(allowed);
        }
        masks
    };
    let first = masks(1);
    for seed in 2..8 {
        masks(seed);
    }
    assert_eq!(masks(1), first);
}

#[test]
fn what_does_not_compile_is_an_error_row_that_says_why() {
    let model = Model::demo();
    let cases = [
        (json!({"regex": "(a"}), "regex"),
        (json!({"regex": "(?=a)b"}), "look"),
        (json!({"json": {"not": {}}, "strict": true}), "not"),
        (json!({"json": {"not": {"pattern": "a(?=b)c"}}}), "pattern"),
        (json!({"json": {"not": {"$ref": "#"}}}), "refers to itself"),
        (json!({"json": {"$ref": "http://example.com/x"}}), "example.com"),
        (
            json!({"json": {"oneOf": [{"minimum": 1}, {"maximum": 3}]}, "strict": true}),
            "write anyOf",
        ),
        (json!({"json": {"$ref": "#"}}), ""),
        (json!({"json": {"type": "integer", "minimum": 3, "maximum": 1}}), ""),
        (json!({"grammar": "start: undefined_rule"}), "undefined_rule"),
        (json!({"grammar": "root ::= x"}), "line 1"),
        (json!({"structural_tag": {"format": {"type": "any_text"}}}), "any_text"),
    ];
    for (outputs, part) in cases {
        let error = model.guide(outputs.clone()).expect_err("it does not compile");
        assert_eq!(error.code, "structured_outputs");
        assert!(error.message.contains(part), "{outputs}: {}", error.message);
        assert!(error.message.len() < 600 && !error.message.contains("backtrace"));
    }
    let word_piece = json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1}}});
    let tokenizer = Tokenizer::from_bytes(word_piece.to_string().as_bytes(), None);
    let compiler = GrammarCompiler::new(Arc::new(tokenizer.expect("a tokenizer")), vec![0]);
    let outputs = StructuredOutputs::from_json(&json!({"regex": "a"})).expect("a constraint");
    let error = compiler.compile(&outputs.into()).expect_err("it is WordPiece");
    assert!(error.message.contains("WordPiece"), "{}", error.message);
}

/// Grammars that would take seconds for a token end their own row, by counts.
#[test]
fn hostile_grammars_end_within_their_budget() {
    let model = Model::demo();
    let cases = [
        json!({"grammar": "start: s\ns: s s | \"a\" | \"\""}),
        json!({"grammar": "start: s\ns: s s s | s s | \"a\" | \"b\" | \"\""}),
        json!({"regex": "(a{0,1000}){0,1000}"}),
        json!({"regex": "(.*a.{20}){10}"}),
    ];
    for outputs in cases {
        let ends: Vec<Walk> = (0..2)
            .map(|_| match model.guide(outputs.clone()) {
                Ok(mut guide) => model.walk(&mut guide, &mut Random(3), 60),
                Err(error) => Walk::Error(error.message),
            })
            .collect();
        assert_eq!(ends[0], ends[1], "{outputs}: the same every time");
    }
}

#[test]
fn the_lexers_work_is_limited_over_a_whole_row() {
    let model = Model::demo();
    let mut guide = model.guide(json!({"regex": "(a{0,1000}){0,1000}"})).expect("it compiles");
    for _ in 0..300 {
        guide.fill();
        if guide.error_after(usize::MAX).is_some() {
            break;
        }
        let token_id = allowed(&guide).into_iter().rfind(|&id| id != model.eos);
        guide.accept(token_id.expect("an a may come"));
    }
    let error = guide.error_after(usize::MAX).expect("it has a budget");
    assert!(error.message.contains("units of the lexer"), "{}", error.message);
}

#[test]
fn a_grammar_begins_after_the_thinking() {
    let model = Model::demo();
    let outputs = StructuredOutputs::from_json(&json!({"choice": ["yes"]})).expect("valid");
    let grammar = model.compiler.compile(&outputs.into()).expect("it compiles");
    let (start, end) = (model.ids("<think>"), model.ids("</think>"));
    let rules = Thinking { start, end: end.clone(), is_optional: false, budget: None };
    let thinking = Some(rules.clone());
    let guidance = Guidance { grammar: Some(grammar), thinking, speech: None };
    let mut guide = Guide::new(&guidance, &[5]);
    for token_id in model.ids("hmm, <think>let me see").into_iter().chain(end.clone()) {
        guide.fill();
        assert!(guide.mask().is_none() && !guide.is_complete());
        guide.accept(token_id);
    }
    for token_id in model.ids("yes") {
        guide.fill();
        assert_eq!(guide.mask().expect("it is constrained").only, Some(token_id));
        guide.accept(token_id);
    }
    assert!(guide.is_complete());
    // It may be left out: the first token is the start's, or the answer's.
    let rules = Thinking { is_optional: true, ..rules };
    let guidance = Guidance { thinking: Some(rules.clone()), ..guidance };
    let mut guide = Guide::new(&guidance, &[5]);
    guide.fill();
    let mut first = vec![rules.start[0], model.ids("yes")[0]];
    first.sort_unstable();
    assert_eq!(allowed(&guide), first);
    guide.accept(model.ids("yes")[0]);
    guide.fill();
    assert_eq!(guide.mask().expect("it is constrained").only, model.ids("yes").get(1).copied());
    let mut guide = Guide::new(&guidance, &[5]);
    for token_id in rules.start {
        guide.fill();
        guide.accept(token_id);
    }
    guide.fill();
    assert!(guide.mask().is_none(), "it thinks");
}
