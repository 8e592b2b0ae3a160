//! Chat templates against transformers: testdata/chat_templates/*.json hold templates, messages and
//! what `apply_chat_template` rendered (see testdata/generate_chat_templates.py).

use std::path::Path;

use serde_json::{Value, json};
use vllm_batch::engine::base::run_date::RunDate;
use vllm_batch::engine::text::{
    Chat, ChatEnding, ChatOptions, ChatTemplate, TextError, Tokenizer, TypedTokens,
    json_with_integers,
};

/// Renders a conversation whose last message goes on.
fn continued(
    template: &ChatTemplate,
    case: &Value,
    options: ChatOptions,
) -> Result<String, TextError> {
    let ChatOptions { tools, documents, kwargs, now, .. } = options;
    let (messages, ending) = (case["messages"].clone(), ChatEnding::OpenMessage);
    let chat = Chat { messages, ending, tools, documents, kwargs, num_media: 0 };
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/demo");
    chat.render(template, &Tokenizer::from_dir(&demo)?, now, TypedTokens::Text)
        .map(|chat| chat.text())
}

/// Renders one case; None if it is as expected, else what is wrong.
fn check(template: &ChatTemplate, case: &Value, now: RunDate) -> Option<String> {
    let options = ChatOptions {
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(false),
        tools: case.get("tools").filter(|tools| !tools.is_null()).cloned(),
        documents: case.get("documents").filter(|documents| !documents.is_null()).cloned(),
        kwargs: case.get("kwargs").and_then(Value::as_object).cloned().unwrap_or_default(),
        has_media: false,
        now,
    };
    let rendered = match case["continue_final_message"] == true {
        true => continued(template, case, options),
        false => template.render(&case["messages"], &options),
    };
    match (rendered, case["expected"].as_str()) {
        (Ok(text), Some(expected)) if text == expected => None,
        (Err(error), None) => {
            // What the template says to its user must reach them; jinja2's own words need not.
            let raised = case["error_by"] == "template";
            let text = case["error"].as_str().unwrap_or_default();
            (raised && !error.to_string().contains(text))
                .then(|| format!("error {:?}\nexpected error {text:?}", error.to_string()))
        }
        (rendered, expected) => {
            Some(format!("got      {rendered:?}\nexpected {:?}", expected.unwrap_or("an error")))
        }
    }
}

#[test]
fn templates_render_byte_for_byte_as_transformers() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/chat_templates");
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    assert!(files.len() >= 12, "only {} templates in {}", files.len(), dir.display());
    let (mut cases, mut wrong) = (0, Vec::new());
    for path in &files {
        let file: Value = serde_json::from_slice(&std::fs::read(path).expect("a readable file"))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = file["name"].as_str().unwrap_or("?");
        let now = file["now"].as_str().map(|now| RunDate::parse(now).expect("a date"));
        let token = |name: &str| file[name].as_str();
        let source = file["template"].as_str().expect("a template");
        let template = ChatTemplate::new(source, token("bos_token"), token("eos_token"));
        for (index, case) in file["cases"].as_array().into_iter().flatten().enumerate() {
            cases += 1;
            let fault = match &template {
                Ok(template) => check(template, case, now.unwrap_or_default()),
                Err(_) if case["expected"].is_null() => None,
                Err(error) => Some(format!("does not compile: {error}")),
            };
            if let Some(fault) = fault {
                wrong.push(format!("{name} case {index}\n{fault}\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cases} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// jinja2's filters, tests, operators and functions, and Python's methods and formats, one by one:
/// the text of jinja2, or an error row where it raises or where the feature is refused by name.
#[test]
fn expressions_render_as_in_jinja2() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/jinja_expressions.json");
    let text = std::fs::read_to_string(path).expect("a readable file");
    let file = json_with_integers(&text).expect("JSON");
    let now = RunDate::parse(file["now"].as_str().expect("a date")).expect("a date");
    let kwargs = file["variables"].as_object().cloned().expect("variables");
    let options = ChatOptions { now, kwargs, ..ChatOptions::default() };
    let render = |source: &str| {
        ChatTemplate::new(source, Some("<s>"), Some("</s>"))?.render(&file["messages"], &options)
    };
    let (mut cases, mut wrong) = (0, Vec::new());
    for case in file["cases"]
        .as_object()
        .expect("groups")
        .values()
        .flat_map(|group| group.as_array().expect("a list of cases"))
    {
        cases += 1;
        let (source, expected) = (case[0].as_str().expect("a template"), case[1].as_str());
        match (render(source), expected) {
            (Ok(text), Some(expected)) if text == expected => {}
            (Err(_), None) => {}
            (rendered, expected) => wrong.push(format!(
                "{source}\n got      {rendered:?}\n expected {expected:?} {}",
                case[2].as_str().unwrap_or_default()
            )),
        }
    }
    for case in file["refused"].as_array().expect("a list of cases") {
        let (source, feature) = (case[0].as_str().expect("a template"), case[1].as_str());
        let error = render(source).expect_err(source).to_string();
        assert!(error.contains(feature.expect("a name")), "{source}: {error}");
    }
    assert!(cases > 3000);
    assert!(wrong.is_empty(), "{} of {cases} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// What the cards of the models say that they read, in the templates of docs/templates.
#[test]
fn templates_of_rerankers_write_what_the_models_were_trained_with() {
    let rendered = |name: &str, messages: Value, kwargs: Value| {
        let path = format!("docs/templates/{name}.jinja");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let template = ChatTemplate::new(&std::fs::read_to_string(path).unwrap(), None, None);
        let kwargs = kwargs.as_object().cloned().unwrap_or_default();
        template.unwrap().render(&messages, &ChatOptions { kwargs, ..Default::default() }).unwrap()
    };
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let pair = || vec![turn("query", "Who?"), turn("document", "Me.")];
    let (plain, none) = (|name| rendered(name, pair().into(), Value::Null), Value::Null);
    let qwen3 = |instruction: &str| {
        format!(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the \
             Query and the Instruct provided. Note that the answer can only be \"yes\" or \
             \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n<Query>: Who?\n\
             <Document>: Me.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )
    };
    let usual = "Given a web search query, retrieve relevant passages that answer the query";
    assert_eq!(plain("qwen3_reranker"), qwen3(usual));
    let asked = json!({"instruction": "Find people"});
    assert_eq!(rendered("qwen3_reranker", pair().into(), asked.clone()), qwen3("Find people"));
    // A prompt of the model's files is a turn before the pair.
    let prompted: Value = [vec![turn("system", "Find cats")], pair()].concat().into();
    assert_eq!(rendered("qwen3_reranker", prompted, none), qwen3("Find cats"));
    let vl = |query: &str, instruction: &str| {
        format!(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the \
             Query and the Instruct provided. Note that the answer can only be \"yes\" or \
             \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}<Query>:{query}\n\
             <Document>:Me.<|im_end|>\n<|im_start|>assistant\n"
        )
    };
    let usual = "Given a search query, retrieve relevant candidates that answer the query.";
    assert_eq!(plain("qwen3_vl_reranker"), vl("Who?", usual));
    assert_eq!(
        rendered("qwen3_vl_reranker", pair().into(), asked.clone()),
        vl("Who?", "Find people")
    );
    assert_eq!(
        plain("bge_reranker_v2_gemma"),
        "A: Who?\nB: Me.\nGiven a query A and a passage B, determine whether the passage contains \
         an answer to the query by providing a prediction of either 'Yes' or 'No'."
    );
    let mxbai = |instruction: &str| {
        format!(
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful \
             assistant.<|im_end|>\n<|im_start|>user\n{instruction}query: Who?\ndocument: Me.\n\
             You are a search relevance expert who evaluates how well documents match search \
             queries. For each query-document pair, carefully analyze the semantic relationship \
             between them, then provide your binary relevance judgment (0 for not relevant, 1 for \
             relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n"
        )
    };
    assert_eq!(plain("mxbai_rerank_v2"), mxbai(""));
    let asked = rendered("mxbai_rerank_v2", pair().into(), asked);
    assert_eq!(asked, mxbai("instruction: Find people\n"));
}
