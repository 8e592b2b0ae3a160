//! Objects that are written: whole, or not at all.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::client::{Call, Store};
use super::error::{ErrorKind, StoreError};
use super::name::ObjectName;
use super::object::BLAKE3;
use super::xml::{escaped, text_of};

/// The most parts of an object.
const MAX_PARTS: u64 = 10_000;

/// Whether an object may take the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// It must be free.
    Free,
    /// The object of this ETag is there, and is replaced.
    Of(&'a str),
    /// What is there is replaced.
    Any,
}

impl<'a> Place<'a> {
    fn headers(self) -> Vec<(&'static str, &'a str)> {
        match self {
            Place::Free => vec![("if-none-match", "*")],
            Place::Of(etag) => vec![("if-match", etag)],
            Place::Any => Vec::new(),
        }
    }

    /// Statuses that say that the place is another one. An object that is gone has no ETag.
    fn taken(self) -> &'static [u16] {
        match self {
            Place::Of(_) => &[404, 412],
            Place::Free | Place::Any => &[412],
        }
    }
}

impl Store {
    /// Writes a small object. False: there is another one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        place: Place<'_>,
    ) -> Result<bool, StoreError> {
        let headers = place.headers();
        let call = Call { headers: &headers, body: bytes, ..Call::new("PUT", name) };
        let answer = self.ask(&call, place.taken())?;
        match place.taken().contains(&answer.status) {
            false => Ok(true),
            // The first request may have been heard, and its answer lost.
            true if answer.is_repeated => Ok(self.get(name)?.as_deref() == Some(bytes)),
            true => Ok(false),
        }
    }

    /// Removes an object; it need not be there.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.ask(&Call::new("DELETE", name), &[404]).map(drop)
    }

    /// Writes a file as an object, with its blake3 beside it. If an object of these bytes is there
    /// already, it is this one.
    ///
    /// # Errors
    /// There is another object, or it cannot be written. No part of it stays.
    pub fn upload(
        &self,
        file: &File,
        name: &ObjectName,
        blake3: &str,
        place: Place<'_>,
    ) -> Result<(), StoreError> {
        let size = file.metadata().map_err(|error| unreadable(name, &error))?.len();
        let upload = Upload { store: self, file, name, blake3, place };
        let written = match size <= self.part {
            true => upload.whole(size),
            false => upload.in_parts(size),
        };
        if written?
            || self.facts(name)?.is_some_and(|facts| facts.blake3.as_deref() == Some(blake3))
        {
            return Ok(());
        }
        Err(StoreError::new(ErrorKind::Exists, format!("{name} exists"))
            .help("another run made it meanwhile: choose another --out, or give --overwrite"))
    }
}

fn unreadable(name: &ObjectName, error: &std::io::Error) -> StoreError {
    StoreError::disk(format!("read what becomes {name}"), error)
}

/// A file on its way.
struct Upload<'a> {
    store: &'a Store,
    file: &'a File,
    name: &'a ObjectName,
    blake3: &'a str,
    place: Place<'a>,
}

impl Upload<'_> {
    fn read(&self, start: u64, length: u64) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; length as usize];
        let read = self.file.read_exact_at(&mut bytes, start);
        read.map(|()| bytes).map_err(|error| unreadable(self.name, &error))
    }

    /// False: there is another object.
    fn whole(&self, size: u64) -> Result<bool, StoreError> {
        let body = self.read(0, size)?;
        let mut headers = self.place.headers();
        headers.push((BLAKE3, self.blake3));
        let call = Call { headers: &headers, body: &body, ..Call::new("PUT", self.name) };
        let taken = self.place.taken();
        Ok(!taken.contains(&self.store.ask(&call, taken)?.status))
    }

    fn in_parts(&self, size: u64) -> Result<bool, StoreError> {
        let call = Call {
            query: &[("uploads", "")],
            headers: &[(BLAKE3, self.blake3)],
            ..Call::new("POST", self.name)
        };
        let answer = self.store.ask(&call, &[])?;
        let id = text_of(&answer.text(), "UploadId").ok_or_else(|| self.odd())?;
        let written = self.parts(&id, size).and_then(|parts| self.complete(&id, &parts));
        if !matches!(written, Ok(true)) {
            // Parts that nobody completes cost money until someone looks for them.
            let call = Call { query: &[("uploadId", &id)], ..Call::new("DELETE", self.name) };
            let _ = self.store.ask(&call, &[404]);
        }
        written
    }

    /// The parts as the store calls them.
    fn parts(&self, id: &str, size: u64) -> Result<String, StoreError> {
        let length = self.store.part.max(size.div_ceil(MAX_PARTS));
        let mut list = String::new();
        for (index, start) in (0..size).step_by(length as usize).enumerate() {
            let body = self.read(start, length.min(size - start))?;
            let number = (index + 1).to_string();
            let query = [("partNumber", number.as_str()), ("uploadId", id)];
            let call = Call { query: &query, body: &body, ..Call::new("PUT", self.name) };
            let answer = self.store.ask(&call, &[])?;
            let etag = answer.header("etag").ok_or_else(|| self.odd())?;
            list.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>",
                escaped(etag)
            ));
        }
        Ok(list)
    }

    fn complete(&self, id: &str, parts: &str) -> Result<bool, StoreError> {
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let headers = self.place.headers();
        let call = Call {
            query: &[("uploadId", id)],
            headers: &headers,
            body: body.as_bytes(),
            ..Call::new("POST", self.name)
        };
        // Of an answer that was lost the upload is known no more: who asks looks at the object.
        let answer = self.store.ask(&call, &[404, 412])?;
        match answer.status {
            404 | 412 => Ok(false),
            // The status comes before the store has put the parts together.
            _ if answer.text().contains("<Error>") => Err(self.odd()),
            _ => Ok(true),
        }
    }

    fn odd(&self) -> StoreError {
        let message = format!("{}: the store did not put its parts together", self.name);
        StoreError::new(ErrorKind::Network, message).help("the same command uploads it again")
    }
}
