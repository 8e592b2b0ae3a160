//! Weights that are not numbers: the rows that they reach are error rows, and no other row notices.

use serde_json::{Value, json};

use super::{Folder, prompt};

/// A tensor of the model: its file, and where its bytes are in it.
fn find(folder: &Folder, tensor: &str) -> (String, std::ops::Range<usize>) {
    let index = folder.json("model.safetensors.index.json");
    let file = index["weight_map"][tensor].as_str().expect(tensor).to_owned();
    let bytes = folder.read(&file);
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let at = |side: usize| header[tensor]["data_offsets"][side].as_u64().unwrap() as usize;
    (file, 8 + len + at(0)..8 + len + at(1))
}

/// Overwrites all values of a tensor from `first` on, at most `count`.
fn poison(folder: &Folder, tensor: &str, value: f32, first: usize, count: usize) {
    let (file, range) = find(folder, tensor);
    let mut bytes = folder.read(&file);
    let values = bytes[range].chunks_exact_mut(4).skip(first).take(count);
    values.for_each(|bytes| bytes.copy_from_slice(&value.to_le_bytes()));
    folder.write(&file, bytes);
}

/// A model that has no number for what follows a token.
pub(crate) fn poisoned_after(token_id: usize) -> Folder {
    let folder = Folder::new();
    poison(&folder, KINDS[0], f32::NAN, token_id * 48, 48);
    folder
}

const KINDS: [&str; 12] = [
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.1.self_attn.k_proj.weight",
    "model.layers.1.self_attn.v_proj.weight",
    "model.layers.2.self_attn.o_proj.weight",
    "model.layers.0.post_attention_layernorm.weight",
    "model.layers.0.mlp.gate_proj.weight",
    "model.layers.1.mlp.up_proj.weight",
    "model.layers.2.mlp.down_proj.weight",
    "model.norm.weight",
    "lm_head.weight",
];

#[test]
fn every_kind_of_tensor_makes_error_rows_and_never_text() {
    let rows = [prompt("hello"), prompt("The quick brown fox"), prompt("a")];
    for (index, tensor) in KINDS.into_iter().enumerate() {
        let value = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][index % 3];
        let folder = Folder::new();
        poison(&folder, tensor, value, 0, usize::MAX);
        let run = folder.run(&rows, &[]);
        run.assert_error_rows(&format!("{value} in {tensor}"), "non_finite_logits");
        assert_eq!(run.rows.len(), rows.len());
    }
}

#[test]
fn poisoned_rows_are_found_however_they_are_sampled() {
    let folder = Folder::new();
    poison(&folder, "lm_head.weight", f32::NAN, 0, 48);
    let mut rows = vec![prompt("a"); 5];
    rows[1]["temperature"] = json!(1.0);
    rows[2]["temperature"] = json!(0.7);
    rows[2]["top_p"] = json!(0.5);
    rows[3]["temperature"] = json!(1.0);
    rows[3]["top_k"] = json!(3);
    rows[4]["logprobs"] = json!(2);
    folder.run(&rows, &[]).assert_error_rows("one logit", "non_finite_logits");
}

#[test]
fn a_poisoned_embedding_costs_the_rows_that_use_it() {
    let clean = Folder::new();
    // By ids, so that it is known who uses which: id 300 is in the third row only.
    let ids = |ids: &[u32]| json!({"prompt_token_ids": ids});
    let rows: Vec<Value> = [
        &[1, 17, 40][..],
        &[1, 33],
        &[1, 300, 17],
        &[1, 17, 40, 41, 42, 43],
        &[1, 55, 56],
        &[1, 17],
    ]
    .map(ids)
    .to_vec();
    let expected = clean.run(&rows, &[]);
    assert_eq!(expected.code, Some(0), "{}", expected.stderr);
    for value in [f32::NAN, f32::INFINITY] {
        let folder = Folder::new();
        poison(&folder, KINDS[0], value, 300 * 48, 48);
        let run = folder.run(&rows, &[]);
        assert_eq!(run.code, Some(3), "{}", run.stderr);
        assert_eq!(run.codes(), ["", "", "non_finite_logits", "", "", ""]);
        let (lines, clean): (Vec<_>, Vec<_>) =
            (run.stdout.lines().collect(), expected.stdout.lines().collect());
        for index in [0, 1, 3, 4, 5] {
            assert_eq!(lines[index], clean[index], "row {index}");
        }
    }
}
