//! The folder over restarts, cancels and deletions.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::*;
use crate::batches::routes::new_batch;
use crate::batches::{Job, Unfinished};

/// A run of which only what it is told is looked at.
#[derive(Default)]
struct Told(AtomicU64, AtomicU64);

impl BatchRun for Told {
    fn run(&self, _: Job) -> Result<(), Unfinished> {
        Ok(())
    }

    fn give_up(&self, _: NotRun) {
        self.0.fetch_add(1, SeqCst);
    }

    fn stop(&self) {
        self.1.fetch_add(1, SeqCst);
    }

    fn counts(&self) -> (u64, u64) {
        (5, 2)
    }
}

fn added_file(store: &Store, text: &str, expires_after: Option<i64>) -> FileRecord {
    let (id, path) = store.begin_file();
    fs::write(&path, text).unwrap();
    let names = ("a.jsonl".to_owned(), "batch".to_owned());
    store.finish_file((&id, &path), names, expires_after).unwrap()
}

fn added_batch(store: &Store, input: &FileRecord) -> BatchRecord {
    let batch = new_batch(Api::OpenAi, "m".to_owned(), 3600);
    store.add_batch(BatchRecord { input_file_id: input.id.clone(), ..batch }).unwrap()
}

#[test]
fn what_was_answered_is_there_after_a_restart_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (file, batch) = {
        let store = Store::open(dir.path()).unwrap();
        let error = Store::open(dir.path()).err().unwrap();
        assert_eq!(error.to_string(), "another server has it");
        let file = added_file(&store, "abc", None);
        let batch = added_batch(&store, &file);
        store.change(&batch.id, |batch| batch.enter(Status::InProgress, 7)).unwrap();
        fs::write(store.begin_file().1, "half").unwrap();
        fs::write(store.content("file-without-a-record"), "lost").unwrap();
        fs::create_dir(store.work_folder("batch_without_a_record")).unwrap();
        (file, batch)
    };
    fs::write(dir.path().join("files").join("file-x.json.unfinished"), "{").unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.files().len(), 1);
    assert_eq!(fs::read(store.content(&file.id)).unwrap(), b"abc");
    let found = store.batch(Api::OpenAi, &batch.id).unwrap();
    assert_eq!((found.status, found.in_progress_at), (Status::InProgress, Some(7)));
    assert!(store.batch(Api::Anthropic, &batch.id).is_none());
    let names = fs::read_dir(dir.path().join("files")).unwrap().count();
    assert_eq!(names, 2, "the file and its record");
    assert!(!store.work_folder("batch_without_a_record").exists());
    let later = added_batch(&store, &file);
    assert!(later.number > found.number, "records are numbered on");
    fs::write(dir.path().join("batches").join("batch_x.json"), "{").unwrap();
    drop(store);
    let error = Store::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("batch_x.json is no record"), "{error}");
}

#[test]
fn a_cancel_is_on_the_disk_before_the_run_knows() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let file = added_file(&store, "abc", None);
    let (first, second) = (added_batch(&store, &file), added_batch(&store, &file));
    let run = Arc::new(Told::default());
    let next = store.next(|| run.clone()).unwrap();
    assert_eq!(next.id, first.id, "the oldest is the first");
    store.change(&first.id, |batch| batch.enter(Status::InProgress, 1)).unwrap();
    let shown = store.batch(Api::OpenAi, &first.id).unwrap();
    assert_eq!((shown.counts.completed, shown.counts.failed), (5, 2));
    // One that waits ends at once; one that runs is told, once.
    let cancelled = |id: &str| store.cancel(Api::OpenAi, id).map(|batch| batch.status);
    assert!(matches!(cancelled(&second.id), Ok(Status::Cancelled)));
    for _ in 0..2 {
        assert!(matches!(cancelled(&first.id), Ok(Status::Cancelling)));
    }
    assert_eq!(run.0.load(SeqCst), 1);
    let again = cancelled(&second.id);
    assert!(matches!(again, Err(Refusal::Conflict(ref text)) if text.contains("'cancelled'")));
    assert!(matches!(cancelled("../../etc"), Err(Refusal::Unknown)));
    // Its input stays until it has ended.
    assert!(matches!(store.delete_file(&file.id), Err(Refusal::Conflict(_))));
    store.change(&first.id, |batch| batch.enter(Status::Cancelled, 2)).unwrap();
    assert!(store.delete_file(&file.id).is_ok());
    assert!(matches!(store.delete_file(&file.id), Err(Refusal::Unknown)));
    store.stop();
    assert_eq!(run.1.load(SeqCst), 1);
    assert!(store.next(|| run.clone()).is_none());
}

#[test]
fn results_are_shown_once_however_often_it_is_tried() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let batch = added_batch(&store, &added_file(&store, "abc", None));
    let folder = store.work_folder(&batch.id);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("output.jsonl"), "one\n").unwrap();
    fs::write(folder.join("error.jsonl"), "").unwrap();
    let first = store.publish(&batch, "output").unwrap().unwrap();
    assert_eq!(store.publish(&batch, "output").unwrap(), Some(first.clone()));
    assert_eq!(store.publish(&batch, "error").unwrap(), None, "it has no lines");
    assert_eq!(fs::read(store.content(&first)).unwrap(), b"one\n");
    drop(store);
    // A server was killed after the file had its name, and before it had its record.
    fs::remove_file(dir.path().join("files").join(format!("{first}.json"))).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.publish(&batch, "output").unwrap(), Some(first.clone()));
    assert_eq!(store.file(&first).unwrap().bytes, 4);
}

#[test]
fn files_go_when_their_time_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (over, kept) = (added_file(&store, "a", Some(-1)), added_file(&store, "b", Some(3600)));
    assert!(store.file(&over.id).is_none() && store.file(&kept.id).is_some());
    assert_eq!(store.files().len(), 1);
    store.remove_expired();
    assert!(!store.content(&over.id).exists() && store.content(&kept.id).exists());
}
