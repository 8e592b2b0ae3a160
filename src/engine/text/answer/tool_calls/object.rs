//! A JSON object in the making, from values that are JSON texts.

use std::collections::HashMap;

/// Members in the order of their first mention; the last value of a key counts.
#[derive(Debug, Default)]
pub(super) struct Object {
    members: Vec<(String, String)>,
    places: HashMap<String, usize>,
}

impl Object {
    /// Sets a member to a JSON text.
    pub(super) fn insert(&mut self, key: &str, value: String) {
        match self.places.get(key) {
            Some(place) => self.members[*place].1 = value,
            None => {
                self.places.insert(key.to_owned(), self.members.len());
                self.members.push((key.to_owned(), value));
            }
        }
    }

    /// The object's text, with the spaces of Python's `json.dumps`.
    pub(super) fn into_json(self) -> String {
        let member = |(key, value): (String, String)| format!("{}: {value}", string(&key));
        let members: Vec<String> = self.members.into_iter().map(member).collect();
        format!("{{{}}}", members.join(", "))
    }
}

/// A string's JSON text.
pub(super) fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
