//! `ObjectName`: what is behind `s3://`.

use std::fmt;
use std::path::Path;

use super::error::{ErrorKind, StoreError};

/// How names of objects begin.
const SCHEME: &str = "s3://";

/// Names of stores that are not spoken to, and what to do instead.
const OTHERS: [(&str, &str); 5] = [
    (
        "gs://",
        "Google's store answers S3's requests: -i s3://BUCKET/KEY with \
         AWS_ENDPOINT_URL=https://storage.googleapis.com and HMAC keys as AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY",
    ),
    ("az://", "copy the file to this machine first"),
    ("abfs://", "copy the file to this machine first"),
    ("abfss://", "copy the file to this machine first"),
    ("s3a://", "write s3://BUCKET/KEY"),
];

/// An object, or where one would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// The bucket.
    pub bucket: String,
    /// Its name in the bucket; for a pattern, the pattern.
    pub key: String,
}

impl ObjectName {
    /// What a flag names; None if it is a file.
    ///
    /// # Errors
    /// It is no usable name, or one of a store that is not spoken to.
    pub fn of(path: &Path) -> Result<Option<Self>, StoreError> {
        let Some(text) = path.to_str() else { return Ok(None) };
        if let Some((scheme, help)) = OTHERS.iter().find(|(scheme, _)| text.starts_with(scheme)) {
            let message = format!("{scheme} is not spoken: {text}");
            return Err(StoreError::new(ErrorKind::BadName, message).help(*help));
        }
        let Some(rest) = text.strip_prefix(SCHEME) else { return Ok(None) };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_plain) || key.is_empty() {
            let message = format!("{text} names no object");
            return Err(StoreError::new(ErrorKind::BadName, message)
                .help("name it as in s3://BUCKET/folder/rows.jsonl"));
        }
        Ok(Some(Self { bucket: bucket.to_owned(), key: key.to_owned() }))
    }

    /// The name with something appended.
    pub fn with_suffix(&self, suffix: &str) -> Self {
        Self { bucket: self.bucket.clone(), key: format!("{}{suffix}", self.key) }
    }

    /// The last part of the key: what a file of it is called.
    pub fn file_name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or(&self.key)
    }

    /// The beginning of a pattern's matches; None if it is no pattern.
    pub(super) fn pattern_prefix(&self) -> Option<&str> {
        self.key.find(['*', '?', '[']).map(|at| &self.key[..at])
    }
}

/// Whether a flag names an object.
pub fn is_object(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(SCHEME))
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_buckets_and_keys() {
        let name = |text: &str| ObjectName::of(Path::new(text));
        let found = name("s3://my-bucket/a/b c.jsonl").unwrap().unwrap();
        assert_eq!((found.bucket.as_str(), found.key.as_str()), ("my-bucket", "a/b c.jsonl"));
        assert_eq!((found.file_name(), found.pattern_prefix()), ("b c.jsonl", None));
        assert_eq!(found.to_string(), "s3://my-bucket/a/b c.jsonl");
        let pattern = name("s3://b/data/x-*.parquet").unwrap().unwrap();
        assert_eq!(pattern.pattern_prefix(), Some("data/x-"));
        assert_eq!(name("data/a.jsonl").unwrap(), None);
        for bad in ["s3://", "s3://bucket", "s3://bucket/", "s3:///key", "s3://a b/c", "gs://b/k"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
