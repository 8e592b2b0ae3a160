//! `Document`: a JSON document that a flag asks for beside the rows: `--stats`, `--output-json`.
//! An older one is replaced; no other file is, unless that is asked for.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::claim::Claim;
use super::error::{LedgerError, unreadable};
use super::files::Destination;
use super::names::{Named, refuse_read};
use super::output::part_of;
use super::storage::{Access, Disk, Storage, read_at_most};
use crate::cli::terminal::error::CliError;

/// No document is longer.
const MAX_BYTES: u64 = 1 << 20;

/// What every document has: vLLM's first figure, and the version of the layout.
const SIGNATURE: [&str; 2] = ["elapsed_time", "schema"];

/// A document that is to be written, under a name that is this run's.
pub struct Document {
    destination: Destination,
    claim: Option<Claim>,
}

impl Document {
    /// Takes a name that was claimed.
    pub fn new(destination: Destination, claim: Option<Claim>) -> Self {
        Self { destination, claim }
    }

    /// Opens the one file that a command writes, which is none of those that it reads.
    ///
    /// # Errors
    /// It is one of them, exists and is no document, or cannot be made.
    pub fn open(
        storage: &Arc<dyn Storage>,
        flag: &'static str,
        path: &Path,
        read: &[Named],
    ) -> Result<Self, LedgerError> {
        let destination = Destination::of(path)?;
        let mut claim = None;
        if let Some(path) = destination.path() {
            let written = [Named::new(flag, path), Named::new(flag, part_of(path))];
            refuse_read(&written, read)?;
            let taken = claim.insert(Claim::take(storage, path)?);
            refuse_other(&**storage, taken)?;
        }
        Ok(Self { destination, claim })
    }

    /// Opens what `--output-json` names, if it is given. Before anything is computed.
    ///
    /// # Errors
    /// It is a file that is read, exists and is no document, or cannot be made.
    pub fn output_json(path: Option<&Path>, read: &[Named]) -> Result<Option<Self>, CliError> {
        const FLAG: &str = "--output-json";
        let Some(path) = path else { return Ok(None) };
        let storage: Arc<dyn Storage> = Arc::new(Disk);
        Self::open(&storage, FLAG, path, read).map(Some).map_err(|error| {
            let help = format!("choose another name for {FLAG}, or move the file away");
            CliError::from_output(error).help(help)
        })
    }

    /// Writes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(self, document: &Value) -> Result<(), LedgerError> {
        let text = format!("{document:#}\n");
        let mut stream: Box<dyn Write> = match (self.destination, self.claim) {
            (_, Some(claim)) => return claim.publish_text(&text),
            (Destination::Stream(stream), None) => stream,
            (Destination::Stdout, None) => Box::new(io::stdout()),
            (Destination::File(_), None) => unreachable!("files are claimed"),
        };
        let written = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
        written.map_err(|error| LedgerError::of("write the document", error))
    }
}

/// Refuses to replace a file that is no document, under the name or that of its part.
///
/// # Errors
/// There is one, or it cannot be read.
pub fn refuse_other(storage: &dyn Storage, claim: &mut Claim) -> Result<(), LedgerError> {
    if storage.kind(claim.path()).is_some() && !is_document(storage, claim.path())? {
        return Err(LedgerError::Exists(claim.path().to_owned()));
    }
    let part = claim.part().to_owned();
    let failed = |error| LedgerError::of(format!("write {}", part.display()), error);
    if claim.file().length().map_err(failed)? > 0 {
        if !is_document(storage, &part)? {
            return Err(LedgerError::Exists(part));
        }
        // Of a run that was killed before it could give it its name.
        claim.file().set_length(0).map_err(failed)?;
    }
    Ok(())
}

/// Whether it is one, or empty: that is nobody's loss, and what `mktemp` leaves.
fn is_document(storage: &dyn Storage, path: &Path) -> Result<bool, LedgerError> {
    let read = || -> io::Result<Option<Vec<u8>>> {
        let file = storage.open(path, Access::Read)?;
        let length = file.length()?;
        if length > MAX_BYTES {
            return Ok(None);
        }
        let mut bytes = vec![0; length as usize];
        let count = read_at_most(&*file, &mut bytes, 0)?;
        bytes.truncate(count);
        Ok(Some(bytes))
    };
    let Some(bytes) = read().map_err(|error| unreadable(path, error))? else { return Ok(false) };
    let document = serde_json::from_slice::<Value>(&bytes);
    let is_signed = |document: Value| {
        SIGNATURE.iter().all(|key| document.get(key).is_some_and(Value::is_number))
    };
    Ok(bytes.is_empty() || document.is_ok_and(is_signed))
}
