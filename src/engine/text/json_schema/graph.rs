//! `Graph`: which schemas lie in which, with references resolved as the validator resolves them.

use std::collections::HashMap;

use jsonschema::{Draft, Registry, Uri, uri};
use referencing::Resolver;
use serde_json::{Map, Value};

use super::work::Node;

/// Steps that a schema may take for one value, before any value within it.
const MAX_STEPS_HERE: f64 = 1e6;

/// Most states of a pattern, as they are counted here: nested counts multiply.
const MAX_STATES: f64 = 1e7;

/// Where the documents of JSON Schema itself are based.
const SPECIFICATIONS: &str = "https://json-schema.org/";

/// The schemas of a document that the root leads to. The first is the root.
#[derive(Debug)]
pub(super) struct Graph {
    pub nodes: Vec<Node>,
}

struct Builder<'r> {
    nodes: Vec<Node>,
    known: HashMap<*const Value, usize>,
    /// Schemas whose keywords are not looked at yet, with their places.
    pending: Vec<(usize, &'r Value, Resolver<'r>, Draft)>,
    /// Number of dynamic anchors of each name; of the old kind, without one.
    dynamic: HashMap<String, usize>,
}

impl Graph {
    /// # Errors
    /// In words: a reference leads nowhere or to another document, or a schema applies to one value
    /// without end.
    pub(super) fn new(root: &Value, draft: Draft) -> Result<Self, String> {
        let resource = draft.create_resource_ref(root);
        let base = resource.id().unwrap_or("json-schema:///").trim_end_matches('#').to_owned();
        let registry = Registry::new().draft(draft).add(&base, resource).map_err(words)?;
        let registry = registry.prepare().map_err(words)?;
        let base: Uri<String> = uri::from_str(&base).map_err(words)?;
        let resolver = registry.resolver(base);
        let mut dynamic = HashMap::new();
        count_anchors(root, &mut dynamic);
        let (nodes, known, pending) = Default::default();
        let mut builder = Builder { nodes, known, pending, dynamic };
        builder.node(root, &resolver, draft);
        while let Some((at, schema, resolver, draft)) = builder.pending.pop() {
            if let Value::Object(keywords) = schema {
                let place = draft.create_resource_ref(schema);
                let resolver = resolver.in_subresource(place).map_err(words)?;
                let node = builder.node_of(keywords, &resolver, draft)?;
                builder.nodes[at] = node;
            }
        }
        let graph = Self { nodes: builder.nodes };
        let mut steps = vec![None; graph.nodes.len()];
        for at in 0..graph.nodes.len() {
            graph.count_here(at, &mut steps)?;
        }
        Ok(graph)
    }

    /// Number of schemas that are asked of one value with this one.
    fn count_here(&self, at: usize, steps: &mut [Option<f64>]) -> Result<f64, String> {
        if let Some(known) = steps[at] {
            return match known.is_nan() {
                true => Err("the schema refers to itself for the same value".to_owned()),
                false => Ok(known),
            };
        }
        steps[at] = Some(f64::NAN);
        let mut count = 1.0;
        for &next in &self.nodes[at].here {
            count += self.count_here(next, steps)?;
        }
        if count > MAX_STEPS_HERE {
            return Err(format!("the schema takes more than {MAX_STEPS_HERE} steps for one value"));
        }
        steps[at] = Some(count);
        Ok(count)
    }
}

impl<'r> Builder<'r> {
    fn node(&mut self, schema: &'r Value, resolver: &Resolver<'r>, draft: Draft) -> usize {
        let next = self.nodes.len();
        let at = *self.known.entry(schema).or_insert(next);
        if at == next {
            self.nodes.push(Node::default());
            self.pending.push((at, schema, resolver.clone(), draft.detect(schema)));
        }
        at
    }

    fn node_of(
        &mut self,
        keywords: &'r Map<String, Value>,
        resolver: &Resolver<'r>,
        draft: Draft,
    ) -> Result<Node, String> {
        let mut node = Node::default();
        node.cost.fixed = 1.0 + keywords.len() as f64;
        for (name, argument) in keywords {
            let mut one = |schema: &'r Value| self.node(schema, resolver, draft);
            match (name.as_str(), argument) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to)) => {
                    let target = self.target(name, to, resolver)?;
                    node.here.push(target);
                }
                ("not" | "if" | "then" | "else", schema) => node.here.push(one(schema)),
                ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                    node.here.extend(schemas.iter().map(one));
                }
                ("dependentSchemas" | "dependencies", Value::Object(schemas)) => {
                    let is_schema = |schema: &&Value| !schema.is_array();
                    node.here.extend(schemas.values().filter(is_schema).map(one));
                }
                ("properties", Value::Object(schemas)) => {
                    node.named = schemas.iter().map(|(name, s)| (name.clone(), one(s))).collect();
                }
                ("patternProperties", Value::Object(schemas)) => {
                    node.fields.extend(schemas.values().map(one));
                    for pattern in schemas.keys() {
                        node.cost.per_key_byte += states(pattern)?;
                    }
                }
                ("additionalProperties", schema) => node.fields.push(one(schema)),
                ("unevaluatedProperties", schema) => {
                    node.fields.push(one(schema));
                    node.cost.looks_back = true;
                }
                ("propertyNames", schema) => node.names.push(one(schema)),
                ("prefixItems" | "items", Value::Array(schemas)) => {
                    node.places = schemas.iter().map(one).collect();
                }
                ("items" | "additionalItems" | "contains", schema) => node.items.push(one(schema)),
                ("unevaluatedItems", schema) => {
                    node.items.push(one(schema));
                    node.cost.looks_back = true;
                }
                ("enum" | "const" | "required" | "dependentRequired", values) => {
                    node.cost.fixed += values.to_string().len() as f64;
                }
                ("pattern", Value::String(pattern)) => node.cost.per_byte += states(pattern)?,
                _ => {}
            }
        }
        Ok(node)
    }

    /// Target of a reference. A dynamic one is followed only if one anchor has its name.
    fn target(
        &mut self,
        keyword: &str,
        to: &str,
        resolver: &Resolver<'r>,
    ) -> Result<usize, String> {
        // Within the documents of JSON Schema itself other anchors are in the scope already.
        let is_foreign = resolver.base_uri().as_str().starts_with(SPECIFICATIONS);
        let most = usize::from(!is_foreign);
        let name = to.rsplit_once('#').map_or("", |(_, name)| name);
        let is_dynamic = match keyword {
            "$dynamicRef" => self.dynamic.get(name).is_some_and(|num| *num > most),
            "$recursiveRef" => self.dynamic.get("").is_some_and(|num| *num > most),
            _ => false,
        };
        if is_dynamic {
            return Err(format!("`{keyword}` to {to} may lead to several places"));
        }
        let found = resolver.lookup(to);
        let found = found.map_err(|_| format!("`{keyword}` leads nowhere: {to}"))?;
        let (schema, resolver, draft) = found.into_inner();
        Ok(self.node(schema, &resolver, draft))
    }
}

fn count_anchors(value: &Value, anchors: &mut HashMap<String, usize>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| count_anchors(item, anchors)),
        Value::Object(fields) => {
            if let Some(name) = fields.get("$dynamicAnchor").and_then(Value::as_str) {
                *anchors.entry(name.to_owned()).or_default() += 1;
            }
            if fields.get("$recursiveAnchor") == Some(&Value::Bool(true)) {
                *anchors.entry(String::new()).or_default() += 1;
            }
            fields.values().for_each(|value| count_anchors(value, anchors));
        }
        _ => {}
    }
}

/// About how many states a pattern has: its characters, times what its counts repeat.
fn states(pattern: &str) -> Result<f64, String> {
    let mut states = 1.0 + pattern.len() as f64;
    for count in pattern.split('{').skip(1) {
        let inside = count.split('}').next().unwrap_or_default();
        let most = inside.split(',').filter_map(|number| number.trim().parse::<f64>().ok());
        states *= most.fold(1.0, f64::max);
    }
    match states <= MAX_STATES {
        true => Ok(states),
        false => {
            Err(format!("the counts of a pattern multiply to too many states: {pattern:.100}"))
        }
    }
}

/// An error of the crate on one line.
pub(super) fn words(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    let line: Vec<&str> = text.split_whitespace().collect();
    line.join(" ").chars().take(300).collect()
}
