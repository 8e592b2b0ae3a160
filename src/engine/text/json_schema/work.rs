//! Number of steps of a validation, before it is run: each pair of a schema and a value is
//! counted once, and as often as the validator comes to it.

use std::collections::HashMap;

use serde_json::Value;

use super::graph::Graph;

/// Steps of one validation: about a second of a debug build.
const MAX_STEPS: f64 = 1.6e7;

/// Pairs of a schema and a value that are counted.
const MAX_PAIRS: usize = 1 << 20;

/// Levels that the validator recurses through.
const MAX_DEPTH: usize = 8_192;

/// States of a pattern that are one step for a character.
const STATES_PER_STEP: f64 = 64.0;

/// One schema: where it leads to, by places in the graph.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Schemas of the same value.
    pub here: Vec<usize>,
    /// Schemas of fields by name.
    pub named: HashMap<String, usize>,
    /// Schemas of possibly all fields.
    pub fields: Vec<usize>,
    /// Schemas of the names of fields.
    pub names: Vec<usize>,
    /// Schemas of items by place.
    pub places: Vec<usize>,
    /// Schemas of possibly all items.
    pub items: Vec<usize>,
    /// Cost of its own keywords.
    pub cost: Cost,
}

/// Steps of the keywords themselves.
#[derive(Debug, Default)]
pub(super) struct Cost {
    /// Whatever the value.
    pub fixed: f64,
    /// States of patterns, for each byte of a text.
    pub per_byte: f64,
    /// The same, for each byte of a field's name.
    pub per_key_byte: f64,
    /// `unevaluated...`: what others have looked at is looked at again.
    pub looks_back: bool,
}

/// Steps to validate, and steps to find out what was looked at.
#[derive(Clone, Copy)]
struct Steps {
    validate: f64,
    look_back: f64,
}

struct Meter<'a> {
    graph: &'a Graph,
    /// Known counts; `None`: it is being counted.
    known: HashMap<(usize, *const Value), Option<Steps>>,
    name: &'a Value,
}

/// Whether a value takes no more steps than a validation may.
///
/// # Errors
/// In words: it takes more.
pub(super) fn check(graph: &Graph, value: &Value) -> Result<(), String> {
    let name = Value::String(String::new());
    let mut meter = Meter { graph, known: HashMap::new(), name: &name };
    meter.count(0, value, 0).map(drop)
}

fn too_much() -> String {
    "the schema and the value take more steps than a validation may".to_owned()
}

impl Meter<'_> {
    fn count(&mut self, at: usize, value: &Value, depth: usize) -> Result<Steps, String> {
        let key = (at, std::ptr::from_ref(value));
        if let Some(known) = self.known.get(&key) {
            return known.ok_or_else(too_much);
        }
        if depth > MAX_DEPTH || self.known.len() >= MAX_PAIRS {
            return Err(too_much());
        }
        self.known.insert(key, None);
        let graph = self.graph;
        let node = &graph.nodes[at];
        let mut steps = Steps { validate: node.cost.fixed, look_back: 1.0 };
        for &next in &node.here {
            let more = self.count(next, value, depth + 1)?;
            steps.validate += more.validate;
            steps.look_back += more.validate + more.look_back;
        }
        let within = match value {
            Value::String(text) => text.len() as f64 * (1.0 + node.cost.per_byte / STATES_PER_STEP),
            Value::Array(items) => {
                let mut within = items.len() as f64;
                for (place, item) in items.iter().enumerate() {
                    for &next in node.places.get(place).into_iter().chain(&node.items) {
                        within += self.count(next, item, depth + 1)?.validate;
                    }
                }
                within
            }
            Value::Object(fields) => {
                let mut within = 0.0;
                for (name, value) in fields {
                    let bytes = name.len() as f64;
                    within += 1.0 + bytes * node.cost.per_key_byte / STATES_PER_STEP;
                    for &next in node.named.get(name).into_iter().chain(&node.fields) {
                        within += self.count(next, value, depth + 1)?.validate;
                    }
                    for &next in &node.names {
                        let of_names = self.count(next, self.name, depth + 1)?.validate;
                        let per_byte = graph.nodes[next].cost.per_byte / STATES_PER_STEP;
                        within += of_names + bytes * (1.0 + per_byte);
                    }
                }
                within
            }
            _ => 0.0,
        };
        steps.validate += within;
        steps.look_back += within;
        if node.cost.looks_back {
            steps.validate += steps.look_back;
        }
        if steps.validate + steps.look_back > MAX_STEPS {
            return Err(too_much());
        }
        self.known.insert(key, Some(steps));
        Ok(steps)
    }
}
