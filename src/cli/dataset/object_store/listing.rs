//! Names of objects that begin alike, and of those that a pattern matches.

use std::path::PathBuf;

use super::client::{Call, Store};
use super::error::{ErrorKind, StoreError};
use super::name::ObjectName;
use super::xml;
use crate::network::name_pattern::NamePattern;

/// An object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name in the bucket.
    pub key: String,
    /// Its length in bytes.
    pub size: u64,
}

impl Store {
    /// The objects whose names begin with that of `prefix`, in the order of their names.
    ///
    /// # Errors
    /// The bucket cannot be listed.
    pub fn list(&self, prefix: &ObjectName) -> Result<Vec<Listed>, StoreError> {
        let bucket = ObjectName { bucket: prefix.bucket.clone(), key: String::new() };
        let (mut found, mut token) = (Vec::new(), None::<String>);
        loop {
            let mut query =
                vec![("list-type", "2"), ("encoding-type", "url"), ("prefix", prefix.key.as_str())];
            if let Some(token) = &token {
                query.push(("continuation-token", token));
            }
            let answer = self.ask(&Call { query: &query, ..Call::new("GET", &bucket) }, &[])?;
            let text = answer.text();
            let odd = || {
                let message = format!("{prefix}: the list of objects is not as expected");
                StoreError::new(ErrorKind::Network, message)
            };
            let is_encoded = xml::text_of(&text, "EncodingType").as_deref() == Some("url");
            for object in xml::elements(&text, "Contents") {
                let key = xml::text_of(object, "Key").ok_or_else(odd)?;
                let size = xml::text_of(object, "Size").and_then(|size| size.parse().ok());
                let key = if is_encoded { decoded(&key).ok_or_else(odd)? } else { key };
                found.push(Listed { key, size: size.ok_or_else(odd)? });
            }
            let next = xml::text_of(&text, "NextContinuationToken");
            match next.filter(|_| xml::text_of(&text, "IsTruncated").as_deref() == Some("true")) {
                // The same again would never end.
                Some(next) if token.as_ref() == Some(&next) => return Err(odd()),
                Some(next) => token = Some(next),
                None => break,
            }
        }
        found.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(found)
    }

    /// The objects that a pattern matches, in the order of their names. Markers of folders are
    /// none.
    ///
    /// # Errors
    /// It is no pattern, or matches nothing, or the bucket cannot be listed.
    fn matches(&self, name: &ObjectName, prefix: &str) -> Result<Vec<PathBuf>, StoreError> {
        let pattern = NamePattern::new(&name.key).map_err(|error| {
            StoreError::new(ErrorKind::BadName, format!("{name} is no pattern: {error}"))
        })?;
        let begun = ObjectName { bucket: name.bucket.clone(), key: prefix.to_owned() };
        let listed = self.list(&begun)?.into_iter();
        let is_marker = |object: &Listed| object.size == 0 && object.key.ends_with('/');
        let matching = listed.filter(|object| !is_marker(object) && pattern.matches(&object.key));
        let found: Vec<PathBuf> = matching
            .map(|object| {
                let bucket = name.bucket.clone();
                ObjectName { bucket, key: object.key }.to_string().into()
            })
            .collect();
        match found.is_empty() {
            false => Ok(found),
            true => {
                let message = format!("no object is named {name}");
                Err(StoreError::new(ErrorKind::NotFound, message)
                    .help("`*` stands for a part of a name, and `**` for any folders"))
            }
        }
    }
}

/// Puts the objects that patterns match in the place of the patterns. Other inputs stay.
///
/// # Errors
/// One of them matches nothing, or the store cannot be asked.
pub fn expand(inputs: &mut Vec<PathBuf>) -> Result<(), StoreError> {
    let (mut found, mut store) = (Vec::new(), None::<Store>);
    for input in inputs.drain(..) {
        let name = ObjectName::of(&input)?;
        let Some((name, prefix)) = name.as_ref().and_then(|n| Some((n, n.pattern_prefix()?)))
        else {
            found.push(input);
            continue;
        };
        if store.is_none() {
            store = Some(Store::from_env()?);
        }
        found.extend(store.iter().map(|store| store.matches(name, prefix)).next().expect("made")?);
    }
    *inputs = found;
    Ok(())
}

/// A key of a list: `+` is a blank.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_list_are_decoded() {
        assert_eq!(decoded("a%2Fb+c%C3%A9").as_deref(), Some("a/b c\u{e9}"));
        assert_eq!(decoded("%2"), None);
        assert_eq!(decoded("%ff"), None, "no text");
    }
}
