//! Schemas as people have them, and constraints that are made to harm: what is taken, validated or
//! refused.

use serde_json::{Value, json};

use super::tests::Model;

/// What no mask keeps to is looked at in the finished answer: texts that masks let through, each
/// valid or not as Python's jsonschema 4.26 says.
#[test]
fn what_masks_do_not_keep_to_is_validated_at_the_end() {
    let model = Model::demo();
    let cases = [
        (json!({"enum": [1, 2], "not": {"const": 2}}), "1", "2"),
        (json!({"oneOf": [{"minimum": 1}, {"maximum": 3}]}), "5", "2"),
        (json!({"type": "array", "uniqueItems": true}), "[1,2]", "[1,1.0]"),
        (json!({"type": "array", "contains": {"const": 1}, "maxContains": 1}), "[2,1]", "[1,1]"),
        (json!({"type": "object", "propertyNames": {"maxLength": 1}}), "{\"a\":1}", "{\"ab\":1}"),
        (json!({"type": "string", "pattern": "^(a($|/))*$"}), "\"a\"", "\"ab\""),
        (json!({"if": {"const": 1}, "else": {"type": "null"}}), "1", "2"),
        (json!({"type": "object", "dependentRequired": {"a": ["b"]}}), "{\"b\":1}", "{\"a\":1}"),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                "dependencies": {"a": ["b"], "c": {"maxProperties": 1}}}),
            "{\"c\":1}",
            "{\"c\":1,\"d\":1}",
        ),
        (
            json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 2}),
            "{\"a\":1,\"b\":1}",
            "{\"a\":1,\"b\":1,\"c\":1}",
        ),
        (
            json!({"type": "object", "patternProperties": {"^a": {"type": "integer"},
                "b$": {"minimum": 3}}}),
            "{\"ab\":3}",
            "{\"ab\":2}",
        ),
        (
            json!({"type": "object", "allOf": [{"properties": {"a": {}}}],
                "unevaluatedProperties": false}),
            "{\"a\":1}",
            "{\"b\":1}",
        ),
        (
            json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "maxProperties": 1,
                "properties": {"n": {"type": "object", "$ref": "#/$defs/n"}, "m": {}}}}}),
            "{\"n\":{}}",
            "{\"n\":{},\"m\":1}",
        ),
    ];
    for (schema, valid, wrong) in cases {
        let guide = model.guide(json!({ "json": schema })).expect("it compiles");
        for text in [valid, wrong] {
            assert!(guide.matches(&model.ids(text)), "{schema}: masks let {text} through");
        }
        assert_eq!(guide.mismatch(valid), None, "{schema}");
        let error = guide.mismatch(wrong).expect("it is no answer");
        assert_eq!(error.code, "schema_mismatch");
        assert!(error.message.ends_with(wrong), "{}", error.message);
        let strict = model.guide(json!({"json": schema, "strict": true}));
        assert_eq!(strict.expect_err("masks cannot").code, "structured_outputs", "{schema}");
    }
}

/// Words that say nothing of a value are no reason to refuse a schema.
#[test]
fn what_constrains_nothing_is_taken() {
    let model = Model::demo();
    let record = json!({"type": "object", "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "boolean"}, "maxProperties": 1});
    let schemas = [
        json!({"type": "string", "format": "path"}),
        json!({"type": "string", "format": "url", "x-order": 3, "deprecated": true}),
        json!({"type": "integer", "format": "int32", "$comment": "c", "markdownDescription": "d"}),
        json!({"type": "array", "uniqueItems": false, "minContains": 1}),
        json!({"type": "object", "dependentRequired": {}, "dependentSchemas": {}}),
        json!({"type": "string", "then": false, "contentMediaType": "text/html"}),
        record,
    ];
    for schema in schemas {
        let guide = model.guide(json!({ "json": schema })).expect("it compiles");
        let text = ["\"a\"", "5", "[1,1]", "{\"a\":true}"];
        let text = text.iter().find(|text| guide.matches(&model.ids(text))).expect("one fits");
        assert_eq!(guide.mismatch(text), None, "{schema}");
    }
}

/// A chain of names is compiled, up to a number of them; beyond it is an error.
#[test]
fn chains_of_names_do_not_overflow_the_stack() {
    let model = Model::demo();
    let rules = |num: usize, first: &str, rule: &dyn Fn(usize) -> String| {
        let lines: String = (0..num).map(|at| rule(at) + "\n").collect();
        let last = rule(num);
        let name = last.split(':').next().expect("it has a name");
        let define = if first.contains("::=") { "::=" } else { ":" };
        format!("{first}\n{lines}{name}{define} \"a\"\n")
    };
    let schemas = |num: usize, layer: &dyn Fn(Value) -> Value| {
        let layer =
            |at: usize| (format!("d{at}"), layer(json!({"$ref": format!("#/$defs/d{}", at + 1)})));
        let mut layers: serde_json::Map<String, Value> = (0..num).map(layer).collect();
        layers.insert(format!("d{num}"), json!({"type": "null"}));
        json!({"$ref": "#/$defs/d0", "$defs": layers})
    };
    let of = |num: usize| {
        let rule = |at: usize| format!("r{at}: r{}", at + 1);
        let deep = |at: usize| format!("r{at}: \"x\" (\"y\" | (\"z\" [r{}]))", at + 1);
        let terminal = |at: usize| format!("T{at}: \"x\"? T{}", at + 1);
        let ebnf = |at: usize| format!("r{at}::= r{} | \"b\" root", at + 1);
        let plain = |next: Value| next;
        let nested = |next: Value| json!({"type": "array", "items": {"anyOf": [next]}});
        let all = |next: Value| json!({"allOf": [next]});
        let inner = schemas(num, &all);
        vec![
            json!({"grammar": rules(num, "start: r0", &rule)}),
            json!({"grammar": rules(num, "start: r0", &deep)}),
            json!({"grammar": rules(num, "start: T0", &terminal)}),
            json!({"grammar": rules(num, "root ::= r0", &ebnf)}),
            json!({"grammar": format!("start: %lark {{\n{}}}", rules(num, "start: r0", &rule))}),
            json!({"grammar": format!("start: %json {inner}")}),
            json!({"json": schemas(num, &plain)}),
            json!({"json": schemas(num, &nested)}),
            json!({"json": schemas(num, &all)}),
            json!({"json": schemas(num, &all), "strict": true}),
            json!({"structural_tag": {"triggers": ["<"], "structures": [
                {"begin": "<", "schema": schemas(num, &plain), "end": ">"}]}}),
        ]
    };
    for outputs in of(1_000) {
        let guide = model.guide(outputs.clone());
        guide.unwrap_or_else(|error| panic!("{}: {:.300}", error.message, outputs.to_string()));
    }
    for outputs in of(20_000) {
        let error = model.guide(outputs.clone()).expect_err("it is too deep");
        assert_eq!(error.code, "structured_outputs");
        assert!(
            error.message.contains("16384") || error.message.contains("more than"),
            "{}",
            error.message
        );
    }
}

/// Lists that would take quadratic time are refused by their length, and shorter ones are taken.
#[test]
fn long_lists_are_bounded() {
    let model = Model::demo();
    let names = |num: usize| (0..num).map(|at| format!("c{at}")).collect::<Vec<String>>();
    let constants =
        |num| names(num).iter().map(|name| json!({"const": name})).collect::<Vec<Value>>();
    let fields = |num| names(num).into_iter().map(|name| (name, json!({}))).collect::<Value>();
    let quoted = |num: usize| {
        let quoted: Vec<String> = names(num).iter().map(|name| format!("\"{name}\"")).collect();
        quoted.join(" | ")
    };
    let of = |num: usize| {
        [
            json!({"choice": names(num)}),
            json!({"grammar": format!("start: {}", quoted(num))}),
            json!({"json": {"enum": names(num)}}),
            json!({"json": {"oneOf": constants(num)}}),
            json!({"json": {"type": "object", "properties": fields(num)}}),
        ]
    };
    for outputs in of(500) {
        model.guide(outputs).expect("it compiles");
    }
    for outputs in of(300_000) {
        assert_eq!(model.guide(outputs).expect_err("it is too long").code, "structured_outputs");
    }
    let patterns: Value =
        names(300).into_iter().map(|name| (format!("^{name}$"), json!({"type": "null"}))).collect();
    let schema = json!({"type": "object", "patternProperties": patterns});
    let guide = model.guide(json!({ "json": schema })).expect("patterns are validated at the end");
    assert!(guide.mismatch("{\"c7\":1}").is_some() && guide.mismatch("{\"c7\":null}").is_none());
    assert!(model.guide(json!({"json": schema, "strict": true})).is_err());
}
