//! What batches answer is what `run` writes.

use serde_json::{Value, json};

use super::{DEMO, Home, has_ended, line, long_lines};

const ENCODER: &str = "testdata/golden_embeddings/bert";

fn request(id: &str, url: &str, body: Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": url, "body": body}).to_string() + "\n"
}

#[test]
fn files_of_results_are_those_of_run() {
    let home = Home::new(DEMO, &["--temperature", "0.9"]);
    let server = home.serve();
    let chats: String = (0..20)
        .map(|i| {
            // Readers that break lines at these have no others.
            let content = format!("What is {i} plus 5?\u{2028}\u{85}");
            let messages = json!([{"role": "user", "content": content}]);
            let mut body = json!({"messages": messages, "max_tokens": 12, "n": 1 + i % 3});
            if i == 4 {
                body["stop"] = json!(7);
            }
            request(&format!("\u{2029}{i}"), "/v1/chat/completions", body)
        })
        .collect();
    let responses: String = (0..5)
        .map(|i| {
            let body = json!({"input": format!("{i} and 1"), "max_output_tokens": 16});
            request(&format!("r{i}"), "/v1/responses", body)
        })
        .collect();
    let texts =
        format!("\u{feff}{}\r\n\n{}", line(0, 9), long_lines(20, 9).replace("row-0\"", "r\""));
    // They wait for each other, and each is answered.
    let asked = [
        ("/v1/chat/completions", &chats),
        ("/v1/responses", &responses),
        ("/v1/completions", &texts),
    ];
    let begun = asked.map(|(endpoint, lines)| (server.begin(endpoint, lines), lines));
    for (id, lines) in begun {
        let batch = server.ended_batch(&id);
        assert_eq!(batch["status"], "completed", "{batch}");
        let results = server.results(&batch);
        assert_eq!(results, home.run(lines), "{id}");
        let [output, errors] = &results;
        assert!(!output.contains(['\u{85}', '\u{2028}', '\u{2029}']));
        let [completed, failed] = [output, errors].map(|lines| lines.lines().count());
        let total = completed + failed;
        let counts = json!({"total": total, "completed": completed, "failed": failed});
        assert_eq!(batch["request_counts"], counts);
        assert_eq!(batch["usage"], usage_of(output), "{id}");
        assert_eq!(batch["error_file_id"].is_null(), errors.is_empty());
    }
}

/// The sum of what lines say.
fn usage_of(output: &str) -> Value {
    let mut sums = [0, 0];
    for line in output.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let usage = &line["response"]["body"]["usage"];
        let value = |names: [&str; 2]| names.iter().find_map(|name| usage[*name].as_u64()).unwrap();
        sums[0] += value(["prompt_tokens", "input_tokens"]);
        sums[1] += value(["completion_tokens", "output_tokens"]);
    }
    json!({
        "input_tokens": sums[0], "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": sums[1], "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sums[0] + sums[1],
    })
}

#[test]
fn vectors_are_batches_too() {
    let home = Home::new(ENCODER, &[]);
    let server = home.serve();
    let lines: String = (0..12)
        .map(|i| {
            let format = ["float", "base64"][i % 2];
            let body = json!({"input": [format!("text {i}"), "b"], "encoding_format": format});
            request(&format!("v{i}"), "/v1/embeddings", body)
        })
        .collect();
    let batch = server.ended_batch(&server.begin("/v1/embeddings", &lines));
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(server.results(&batch), home.run(&lines));
    assert_eq!(batch["model"], "bert");
    // What it is not for is refused when it is asked for.
    let input = server.upload(&lines);
    let asked =
        json!({"input_file_id": input, "endpoint": "/v1/completions", "completion_window": "24h"});
    let refused = server.post("/v1/batches", &asked);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("endpoint")));
    assert_eq!(server.get("/v1/messages/batches").status, 404);
}

#[test]
fn messages_are_batches_of_anthropics() {
    let home = Home::new(DEMO, &[]);
    let server = home.serve();
    let params = |i: usize| match i {
        2 => {
            json!({"max_tokens": 5, "temperature": "hot", "messages": [{"role": "user", "content": "a"}]})
        }
        i => json!({"model": "demo", "max_tokens": 8 + i, "temperature": 1.0,
                    "messages": [{"role": "user", "content": format!("What is {i} plus 5?")}]}),
    };
    let requests: Vec<_> =
        (0..8).map(|i| json!({"custom_id": format!("m{i}"), "params": params(i)})).collect();
    let path = "/v1/messages/batches";
    let pretty = serde_json::to_string_pretty(&json!({"requests": requests})).unwrap();
    let created = server.ask(&format!("POST {path}"), &[], &pretty).json();
    assert_eq!(created["processing_status"], "in_progress");
    assert_eq!(
        (&created["request_counts"]["processing"], &created["results_url"]),
        (&json!(8), &json!(null))
    );
    let at = format!("{path}/{}", created["id"].as_str().unwrap());
    let batch = loop {
        let batch = server.get(&at).json();
        if batch["processing_status"] == "ended" {
            break batch;
        }
        std::thread::yield_now();
    };
    let counts =
        json!({"processing": 0, "succeeded": 7, "errored": 1, "canceled": 0, "expired": 0});
    assert_eq!(batch["request_counts"], counts);
    assert!(batch["ended_at"].as_str().unwrap().ends_with('Z'));
    let results = server.get(batch["results_url"].as_str().unwrap());
    let lines: String = requests.iter().map(|request| request.to_string() + "\n").collect();
    let [output, errors] = home.run(&lines);
    assert_eq!(sorted(&results.body), sorted(&(output + &errors)));
    // It is no batch of OpenAI's, and is listed in pages.
    assert_eq!(server.get(&format!("/v1/batches/{}", &at[path.len() + 1..])).status, 404);
    assert!(!has_ended(&json!({"status": "validating"})));
    let page = server.get(&format!("{path}?limit=1")).json();
    assert_eq!((&page["first_id"], &page["has_more"]), (&batch["id"], &json!(false)));
    let refused = server.ask(&format!("POST {at}/cancel"), &[], "");
    assert_eq!((refused.status, &refused.json()["type"]), (409, &json!("error")));
    let deleted = server.ask(&format!("DELETE {at}"), &[], "").json();
    assert_eq!(deleted, json!({"id": batch["id"], "type": "message_batch_deleted"}));
    assert_eq!(server.get(&at).status, 404);
}

fn sorted(lines: &str) -> Vec<&str> {
    let mut lines: Vec<_> = lines.lines().collect();
    lines.sort_unstable();
    lines
}
