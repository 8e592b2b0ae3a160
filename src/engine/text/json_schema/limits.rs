//! Limits of a schema: its size, and the depth of its references.

use std::collections::HashSet;

use serde_json::Value;

/// Characters of JSON (without blanks) of a schema.
pub const MAX_BYTES: usize = 2 << 20;

/// Levels that a walk through a schema and its references may take: its nesting, once for the whole
/// and once for every reference. A level takes up to 10 KiB of stack in a debug build.
pub const MAX_LEVELS: usize = 16_384;

/// Sums of squares: branches of each `oneOf`, which are compared with each other; fields of each
/// `properties`, which exclude each other as names.
const MAX_BRANCH_PAIRS: usize = 100_000_000;
const MAX_FIELD_PAIRS: usize = 16_000_000;

/// Objects and lists among the values of `enum`.
const MAX_COMPOUNDS: usize = 20_000;

/// Checks the size of a schema, wherever in it references stand.
///
/// # Errors
/// In words: a limit, and what helps.
pub fn check(schema: &Value) -> Result<(), String> {
    let (mut references, mut ids) = (Vec::new(), 0_usize);
    let (mut branches, mut fields, mut compounds) = (0_usize, 0_usize, 0_usize);
    let depth = walk(schema, &mut |name, value| match (name, value) {
        ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to)) => {
            references.push(to.as_str());
        }
        ("$id" | "id", Value::String(_)) => ids += 1,
        ("oneOf", Value::Array(schemas)) => branches += schemas.len() * schemas.len(),
        ("properties", Value::Object(schemas)) => fields += schemas.len() * schemas.len(),
        ("enum", Value::Array(values)) => {
            compounds += values.iter().filter(|v| v.is_array() || v.is_object()).count();
        }
        _ => {}
    });
    let bytes = schema.to_string().len();
    if bytes > MAX_BYTES {
        return Err(format!("the schema has {bytes} bytes, more than {MAX_BYTES}"));
    }
    for (what, count, most) in [
        ("pairs of `oneOf` branches", branches, MAX_BRANCH_PAIRS),
        ("pairs of `properties`", fields, MAX_FIELD_PAIRS),
        ("objects and lists in `enum`", compounds, MAX_COMPOUNDS),
    ] {
        if count > most {
            return Err(format!("the schema has {count} {what}, more than {most}"));
        }
    }
    // A reference leads somewhere else below each `$id`; without these only its text counts.
    let num_references = match ids {
        0 | 1 => references.iter().collect::<HashSet<_>>().len(),
        _ => references.len(),
    };
    let levels = (1 + num_references).saturating_mul(depth);
    if levels > MAX_LEVELS {
        return Err(format!(
            "the schema has {num_references} references and {depth} levels of nesting: their \
             product may be {MAX_LEVELS}; write parts of it without references, or nest it less"
        ));
    }
    Ok(())
}

/// Pairs of patterns in one `patternProperties`, over all of them.
pub fn pattern_pairs(schema: &Value) -> usize {
    let mut pairs = 0;
    walk(schema, &mut |name, value| {
        if let ("patternProperties", Value::Object(patterns)) = (name, value) {
            pairs += patterns.len() * patterns.len();
        }
    });
    pairs
}

/// Levels of objects and lists; each field is visited. The parser of JSON limits the recursion.
fn walk<'a>(value: &'a Value, visit: &mut impl FnMut(&'a str, &'a Value)) -> usize {
    let mut deepest = 0;
    match value {
        Value::Array(items) => {
            for item in items {
                deepest = deepest.max(walk(item, visit));
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                visit(name, value);
                deepest = deepest.max(walk(value, visit));
            }
        }
        _ => return 0,
    }
    1 + deepest
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn references_and_bytes_are_limited() {
        let chain = |num: usize| {
            let definition =
                |at: usize| (format!("d{at}"), json!({"$ref": format!("#/$defs/d{}", at + 1)}));
            let definitions: Map<String, Value> = (0..num).map(definition).collect();
            json!({"$ref": "#/$defs/d0", "$defs": definitions})
        };
        assert_eq!(check(&chain(1_000)), Ok(()));
        assert!(check(&chain(6_000)).unwrap_err().contains("6001 references"));
        let same: Vec<Value> = vec![json!({"$ref": "#/$defs/d"}); 10_000];
        assert_eq!(check(&json!({"anyOf": same, "$defs": {"d": {}}})), Ok(()));
        let ids = json!({"$id": "a", "anyOf": same, "$defs": {"d": {"$id": "b"}}});
        assert!(check(&ids).is_err());
        let long = json!({"enum": vec!["x".repeat(100); 30_000]});
        assert!(check(&long).unwrap_err().contains("bytes"));
    }
}
