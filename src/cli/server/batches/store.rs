//! `Store`: what is known of files and batches, in memory and in a folder. A record is replaced as
//! a whole, and is on the disk before anybody is told of it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::BatchRun;
use super::record::{Api, BatchRecord, FileRecord, Status};
use crate::guard;
use vllm_batch_dataset::input::row_error::NotRun;
use vllm_batch_dataset::terminal::clock::now;

/// Records by the names of their ids' kinds.
const FILE: &str = "file-";
const BATCH: &str = "batch_";
const MESSAGE_BATCH: &str = "msgbatch_";

/// How often files are looked for whose time is over, where nothing else happens.
const SWEEP: Duration = Duration::from_secs(60);

/// The end of a record's name.
const RECORD: &str = ".json";

/// The end of a name that is not yet what it will be.
const UNFINISHED: &str = ".unfinished";

/// Files and batches, in a folder that no other server has.
pub struct Store {
    dir: PathBuf,
    /// Held for as long as the server runs: no other one has this folder.
    _lock: File,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, FileRecord>,
    batches: BTreeMap<String, BatchRecord>,
    next_number: u64,
    /// The batch that runs.
    running: Option<(String, Arc<dyn BatchRun>)>,
    is_stopping: bool,
}

/// What was asked of a record.
pub(crate) enum Refusal {
    /// There is none of this name.
    Unknown,
    /// It is in a state, or in use, that forbids it.
    Conflict(String),
    /// The folder does not take it.
    Failed(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Failed(error)
    }
}

impl Store {
    /// Opens a folder, and makes it where it is not there. What a server before left unfinished of
    /// a file goes.
    ///
    /// # Errors
    /// It cannot be had, another server has it, or a record of it is damaged.
    pub fn open(dir: &Path) -> io::Result<Self> {
        for folder in [dir.to_owned(), dir.join("files"), dir.join("batches")] {
            fs::create_dir_all(folder)?;
        }
        let lock = File::create(dir.join("lock"))?;
        if lock.try_lock().is_err() {
            return Err(io::Error::other("another server has it"));
        }
        let (files, batches) = (records(&dir.join("files"))?, records(&dir.join("batches"))?);
        let mut state = State::default();
        let numbers = files.iter().map(|file: &FileRecord| file.number);
        let numbers = numbers.chain(batches.iter().map(|batch: &BatchRecord| batch.number));
        state.next_number = numbers.max().map_or(0, |last| last + 1);
        state.files = files.into_iter().map(|file| (file.id.clone(), file)).collect();
        state.batches = batches.into_iter().map(|batch| (batch.id.clone(), batch)).collect();
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let store = Self { dir: dir.to_owned(), _lock: lock, state, changed };
        store.remove_strays()?;
        Ok(store)
    }

    /// Contents that no record names: of files that were not there to their end, or not gone.
    fn remove_strays(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.dir.join("files"))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let is_known = self.lock().files.contains_key(name.trim_end_matches(RECORD));
            if !is_known && !self.is_result(&name) {
                fs::remove_file(self.dir.join("files").join(name))?;
            }
        }
        for entry in fs::read_dir(self.dir.join("batches"))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && !self.lock().batches.contains_key(&*name) {
                fs::remove_dir_all(&path)?;
            }
        }
        Ok(())
    }

    /// Whether a file is of a batch whose files are being shown: its record comes later.
    fn is_result(&self, name: &str) -> bool {
        let state = self.lock();
        let open = state.batches.values().filter(|batch| !batch.status.has_ended());
        open.flat_map(|batch| ["output", "error"].map(|part| result_id(&batch.id, part)))
            .any(|id| id == name)
    }

    /// A name that nothing has yet.
    fn new_id(prefix: &str) -> String {
        format!("{prefix}{:016x}{:016x}", guard::random(), guard::random())
    }

    /// Where the bytes of a file are, by an id that a record has.
    pub(crate) fn content(&self, id: &str) -> PathBuf {
        self.dir.join("files").join(id)
    }

    /// The folder of a batch's run.
    pub(crate) fn work_folder(&self, id: &str) -> PathBuf {
        self.dir.join("batches").join(id)
    }

    /// A place for the bytes of a file that comes, and its id.
    pub(crate) fn begin_file(&self) -> (String, PathBuf) {
        let id = Self::new_id(FILE);
        let path = self.dir.join("files").join(format!("{id}{UNFINISHED}"));
        (id, path)
    }

    /// Takes a file whose bytes are durable in the place that it was given. `names`: its own, and
    /// what it is for.
    pub(crate) fn finish_file(
        &self,
        (id, path): (&str, &Path),
        names: (String, String),
        expires_after: Option<i64>,
    ) -> io::Result<FileRecord> {
        fs::rename(path, self.content(id))?;
        self.record_file(id, names, expires_after)
    }

    /// The record of a file whose bytes are there.
    fn record_file(
        &self,
        id: &str,
        (filename, purpose): (String, String),
        expires_after: Option<i64>,
    ) -> io::Result<FileRecord> {
        let (bytes, created_at) = (fs::metadata(self.content(id))?.len(), now());
        let mut state = self.lock();
        let file = FileRecord {
            id: id.to_owned(),
            number: state.take_number(),
            bytes,
            created_at,
            expires_at: expires_after.map(|seconds| created_at + seconds),
            filename,
            purpose,
        };
        self.write("files", id, &file)?;
        state.files.insert(file.id.clone(), file.clone());
        Ok(file)
    }

    /// Takes a result of a batch as a file. Again, where it was taken already.
    pub(crate) fn publish(&self, batch: &BatchRecord, part: &str) -> io::Result<Option<String>> {
        let id = result_id(&batch.id, part);
        let from = self.work_folder(&batch.id).join(format!("{part}.jsonl"));
        let to = self.content(&id);
        match fs::metadata(&from).map(|found| found.len()) {
            Ok(0) => return Ok(None),
            Ok(_) => fs::rename(&from, &to)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if !to.exists() {
            return Ok(None);
        }
        let names = (format!("{}_{part}.jsonl", batch.id), "batch_output".to_owned());
        self.record_file(&id, names, batch.output_expires_after)?;
        Ok(Some(id))
    }

    /// A file; None: there is none of this name.
    pub(crate) fn file(&self, id: &str) -> Option<FileRecord> {
        let file = self.lock().files.get(id).cloned();
        file.filter(|file| file.expires_at.is_none_or(|at| at > now()))
    }

    /// All files, the oldest first.
    pub(crate) fn files(&self) -> Vec<FileRecord> {
        let now = now();
        let state = self.lock();
        let files = state.files.values().filter(|file| file.expires_at.is_none_or(|at| at > now));
        let mut files: Vec<_> = files.cloned().collect();
        files.sort_by_key(|file| file.number);
        files
    }

    /// Removes a file.
    pub(crate) fn delete_file(&self, id: &str) -> Result<(), Refusal> {
        let mut state = self.lock();
        if !state.files.contains_key(id) {
            return Err(Refusal::Unknown);
        }
        let uses = |batch: &&BatchRecord| batch.input_file_id == id && !batch.status.has_ended();
        if let Some(batch) = state.batches.values().find(uses) {
            let message = format!("The file is read by batch '{}'.", batch.id);
            return Err(Refusal::Conflict(message));
        }
        self.remove("files", id)?;
        state.files.remove(id);
        let _ = fs::remove_file(self.content(id));
        Ok(())
    }

    /// Removes files whose time is over.
    pub(crate) fn remove_expired(&self) {
        let now = now();
        let is_over = |file: &&FileRecord| file.expires_at.is_some_and(|at| at <= now);
        let over: Vec<_> = {
            let state = self.lock();
            state.files.values().filter(is_over).map(|file| file.id.clone()).collect()
        };
        for id in over {
            // One that a batch reads goes when that has ended.
            let _ = self.delete_file(&id);
        }
    }

    /// A name for a batch.
    pub(crate) fn new_batch_id(api: Api) -> String {
        Self::new_id(match api {
            Api::OpenAi => BATCH,
            Api::Anthropic => MESSAGE_BATCH,
        })
    }

    /// Takes a batch, which waits from now on.
    pub(crate) fn add_batch(&self, mut batch: BatchRecord) -> io::Result<BatchRecord> {
        let mut state = self.lock();
        batch.number = state.take_number();
        self.write("batches", &batch.id, &batch)?;
        state.batches.insert(batch.id.clone(), batch.clone());
        self.changed.notify_all();
        Ok(batch)
    }

    /// A batch of an API, with the counts of its run; None: there is none of this name.
    pub(crate) fn batch(&self, api: Api, id: &str) -> Option<BatchRecord> {
        let state = self.lock();
        state.batches.get(id).filter(|batch| batch.api == api).map(|batch| state.counted(batch))
    }

    /// All batches of an API, the oldest first.
    pub(crate) fn batches(&self, api: Api) -> Vec<BatchRecord> {
        let state = self.lock();
        let batches = state.batches.values().filter(|batch| batch.api == api);
        let mut batches: Vec<_> = batches.map(|batch| state.counted(batch)).collect();
        batches.sort_by_key(|batch| batch.number);
        batches
    }

    /// A batch as its record is.
    pub(crate) fn record(&self, id: &str) -> BatchRecord {
        self.lock().batches.get(id).expect("it is not removed while it runs").clone()
    }

    /// Changes a batch. What is in the folder is what was changed to.
    pub(crate) fn change(
        &self,
        id: &str,
        change: impl FnOnce(&mut BatchRecord),
    ) -> io::Result<BatchRecord> {
        let mut state = self.lock();
        let mut batch = state.batches.get(id).expect("it is not removed while it runs").clone();
        change(&mut batch);
        self.write("batches", id, &batch)?;
        state.batches.insert(id.to_owned(), batch.clone());
        Ok(batch)
    }

    /// Cancels a batch. One that has not begun ends at once; of one that runs what is done is kept.
    pub(crate) fn cancel(&self, api: Api, id: &str) -> Result<BatchRecord, Refusal> {
        let mut state = self.lock();
        let state = &mut *state;
        let batch = state.batches.get_mut(id).filter(|batch| batch.api == api);
        let batch = batch.ok_or(Refusal::Unknown)?;
        let runs = state.running.as_ref().filter(|(running, _)| *running == batch.id);
        let mut next = batch.clone();
        match batch.status {
            Status::Cancelling => return Ok(batch.clone()),
            Status::Validating | Status::InProgress => next.enter(Status::Cancelling, now()),
            status => {
                let message = format!("Cannot cancel a batch with status '{}'.", status.name());
                return Err(Refusal::Conflict(message));
            }
        }
        if batch.status == Status::Validating && runs.is_none() {
            next.enter(Status::Cancelled, now());
        }
        // Before the run knows: else what it ends as would be written over.
        self.write("batches", id, &next)?;
        *batch = next;
        if let Some((_, run)) = runs {
            run.give_up(NotRun::Cancelled);
        }
        self.changed.notify_all();
        Ok(batch.clone())
    }

    /// Removes a batch that has ended, and what is in its folder.
    pub(crate) fn delete_batch(&self, api: Api, id: &str) -> Result<(), Refusal> {
        let mut state = self.lock();
        let batch = state.batches.get(id).filter(|batch| batch.api == api);
        let batch = batch.ok_or(Refusal::Unknown)?;
        if !batch.status.has_ended() {
            return Err(Refusal::Conflict("The batch has not ended; cancel it first.".to_owned()));
        }
        self.remove("batches", id)?;
        state.batches.remove(id);
        let _ = fs::remove_dir_all(self.work_folder(id));
        Ok(())
    }

    /// Waits for the oldest batch that has not ended, and says that it runs. None: the server ends.
    pub(crate) fn next(&self, prepare: impl Fn() -> Arc<dyn BatchRun>) -> Option<BatchRecord> {
        let mut state = self.lock();
        loop {
            if state.is_stopping {
                return None;
            }
            let open = state.batches.values().filter(|batch| !batch.status.has_ended());
            if let Some(batch) = open.min_by_key(|batch| batch.number).cloned() {
                state.running = Some((batch.id.clone(), prepare()));
                return Some(batch);
            }
            state = self.wait(state, SWEEP);
            drop(state);
            self.remove_expired();
            state = self.lock();
        }
    }

    /// The run of the batch that runs.
    pub(crate) fn run_of(&self, id: &str) -> Option<Arc<dyn BatchRun>> {
        let state = self.lock();
        let running = state.running.as_ref().filter(|(running, _)| running == id);
        running.map(|(_, run)| Arc::clone(run))
    }

    /// No batch runs.
    pub(crate) fn end_run(&self) {
        self.lock().running = None;
    }

    /// Waits before a batch is tried again. False: the server ends.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let state = self.lock();
        !state.is_stopping && !self.wait(state, time).is_stopping
    }

    /// The server ends: what runs is stopped, to be gone on with by the next one.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopping = true;
        if let Some((_, run)) = &state.running {
            run.stop();
        }
        self.changed.notify_all();
    }

    /// Whether the server ends.
    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a record so that it is there as a whole, or as it was.
    fn write(&self, kind: &str, id: &str, record: &impl Serialize) -> io::Result<()> {
        let folder = self.dir.join(kind);
        let path = folder.join(format!("{id}{RECORD}"));
        let unfinished = folder.join(format!("{id}{RECORD}{UNFINISHED}"));
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        File::open(folder)?.sync_all()
    }

    fn remove(&self, kind: &str, id: &str) -> io::Result<()> {
        let folder = self.dir.join(kind);
        fs::remove_file(folder.join(format!("{id}{RECORD}")))?;
        File::open(folder)?.sync_all()
    }
}

impl State {
    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// A batch with what its run has done so far.
    fn counted(&self, batch: &BatchRecord) -> BatchRecord {
        let mut batch = batch.clone();
        let running = self.running.as_ref().filter(|(running, _)| *running == batch.id);
        if let Some((_, run)) = running.filter(|_| !batch.is_run) {
            (batch.counts.completed, batch.counts.failed) = run.counts();
        }
        batch
    }
}

/// The id of a result of a batch: the same however often it is shown.
fn result_id(batch: &str, part: &str) -> String {
    let hash = blake3::hash(format!("{batch} {part}").as_bytes());
    format!("{FILE}{}", &hash.to_hex()[..32])
}

/// All records of a folder.
fn records<T: DeserializeOwned>(folder: &Path) -> io::Result<Vec<T>> {
    let mut records = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(UNFINISHED) {
            fs::remove_file(&path)?;
        } else if name.ends_with(RECORD) {
            let record = serde_json::from_slice(&fs::read(&path)?).map_err(|error| {
                io::Error::other(format!("{} is no record: {error}", path.display()))
            })?;
            records.push(record);
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests;
