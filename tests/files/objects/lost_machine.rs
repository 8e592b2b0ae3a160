//! A run whose output is an object, on machines that are lost: each request to the store is the
//! last one of some machine, and another goes on.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::tempdir;
use vllm_batch::cli::args::OutputArgs;
use vllm_batch::cli::ledger::meta::Meta;
use vllm_batch::cli::ledger::remote::lease::{Claimant, Lease};
use vllm_batch::cli::ledger::remote::mirror::Keeper;
use vllm_batch::cli::ledger::remote::{Remote, Staged};
use vllm_batch::cli::ledger::storage::{Access, FileKind, Storage, StoredFile};
use vllm_batch::cli::ledger::watched_file::{WatchedFile, Watcher};
use vllm_batch::cli::object_store::{ErrorKind, StoreError};

use super::server::{Fault, Server};
use super::{name, store};
use crate::crash::job::{Done, Job};

const OUT: &str = "s3://bucket/out/rows.jsonl";

const JOB: Job =
    Job { num_rows: 24, seed: 3, splits_errors: false, is_table: false, replaces: false };

/// The files of a machine. With each sync of the journal its pieces are kept, on this thread: so
/// that a test knows which request comes when.
struct Files {
    inner: Arc<dyn Storage>,
    keeper: Arc<Mutex<SlowKeeper>>,
}

/// Keeps pieces at so many more syncs; those of later ones come too late for the store.
struct SlowKeeper(Keeper, usize);

/// Keeps the pieces.
struct Keeps(Arc<Mutex<SlowKeeper>>);

impl Storage for Files {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn StoredFile>> {
        let (file, keeper) = (self.inner.open(path, access)?, Arc::clone(&self.keeper));
        Ok(Box::new(WatchedFile { file, watcher: Keeps(keeper) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_folder_of(path)
    }

    fn kind(&self, path: &Path) -> Option<FileKind> {
        self.inner.kind(path)
    }
}

impl Watcher for Keeps {
    fn synced(&mut self) -> io::Result<()> {
        let SlowKeeper(keeper, num_left) = &mut *self.0.lock().unwrap();
        match num_left.checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                *num_left = left;
                Ok(keeper.keep()?)
            }
        }
    }
}

fn claimant(owner: &str) -> Claimant {
    Claimant { takes_over: true, ..Claimant::new(owner.to_owned(), true) }
}

/// The whole run on a machine whose folder this is. None: it is lost on the way.
fn live(server: &Server, folder: &Path, owner: &str) -> Option<Done> {
    live_keeping(usize::MAX, server, folder, owner)
}

/// The same, of whose journal the store gets what is written until so many syncs.
fn live_keeping(max_syncs: usize, server: &Server, folder: &Path, owner: &str) -> Option<Done> {
    let mut args = OutputArgs {
        out: Some(OUT.into()),
        work_dir: Some(folder.to_owned()),
        ..OutputArgs::default()
    };
    let staged = Staged::of(&mut args).unwrap().unwrap();
    let (remote, keeper) = Remote::begin(staged, store(server), &claimant(owner), false).ok()?;
    let keeper = Arc::new(Mutex::new(SlowKeeper(keeper, max_syncs)));
    let files = Files { inner: remote.files(), keeper };
    let done = JOB.run_in(Arc::new(files), args.out.unwrap(), false).ok()?;
    remote.upload().and_then(|()| remote.clean()).ok()?;
    Some(done)
}

fn assert_complete(server: &Server, what: &str) {
    let wanted = &JOB.expected()[0].1;
    assert!(server.get("bucket/out/rows.jsonl").as_ref() == Some(wanted), "{what}: other bytes");
    let names = ["bucket/out/rows.jsonl", "bucket/out/rows.jsonl.meta.json"];
    assert_eq!(server.names(), names, "{what}");
}

#[test]
fn whichever_request_is_the_last_another_machine_completes_the_output() {
    assert_eq!(most_reused(usize::MAX), JOB.num_rows, "a run that was complete has nothing to do");
}

/// The end of the journal may not be in the store when the outputs are: its pieces are kept beside
/// the run.
#[test]
fn without_the_last_pieces_too_another_machine_completes_the_output() {
    for max_syncs in [0, 1, 2] {
        most_reused(max_syncs);
    }
}

/// Ends a machine after each number of requests, and completes its run by another. Returns the most
/// rows that were not computed again.
fn most_reused(max_syncs: usize) -> u64 {
    let mut most_reused = 0;
    for last in 0.. {
        let server = Server::start();
        server.set_fault(Fault::DeadAfter(last));
        let first = tempdir().unwrap();
        let survived = live_keeping(max_syncs, &server, first.path(), "the first").is_some();
        server.set_fault(Fault::None);
        // Another machine, or the same one again.
        let second = tempdir().unwrap();
        let (folder, owner) = match last % 3 {
            0 => (first.path(), "the first"),
            _ => (second.path(), "the second"),
        };
        let what = format!("{max_syncs} syncs, after {last} requests, by {owner}");
        let done = live(&server, folder, owner).unwrap_or_else(|| panic!("{what}: not completed"));
        assert_complete(&server, &what);
        most_reused = most_reused.max(JOB.num_rows - done.num_computed);
        // Twice, so that both kinds saw a run that survived.
        if survived && last % 3 == 2 {
            break;
        }
    }
    most_reused
}

/// A run that replaces what is there, up to its upload.
fn overwriting(server: &Server, folder: &Path, owner: &str, job: Job) -> Remote {
    let mut args = OutputArgs {
        out: Some(OUT.into()),
        work_dir: Some(folder.to_owned()),
        overwrite: true,
        ..OutputArgs::default()
    };
    let staged = Staged::of(&mut args).unwrap().unwrap();
    let (remote, _) = Remote::begin(staged, store(server), &claimant(owner), true).unwrap();
    job.run_in(remote.files(), args.out.unwrap(), true).unwrap();
    remote
}

/// What is in the store: the bytes of a job, and a side file that tells of them.
fn assert_is_of(server: &Server, job: Job, what: &str) {
    let out = server.get("bucket/out/rows.jsonl").unwrap();
    assert!(out == job.expected()[0].1, "{what}: other bytes");
    let meta = server.get("bucket/out/rows.jsonl.meta.json").unwrap();
    let meta: Meta = serde_json::from_slice(&meta).unwrap();
    assert_eq!(meta.output.bytes, out.len() as u64, "{what}");
}

#[test]
fn a_request_that_arrives_when_the_lease_is_lost_changes_nothing() {
    let other = Job { num_rows: 25, ..JOB };
    for (held, was_there) in [
        ("bucket/out/rows.jsonl.meta.json", false),
        ("bucket/out/rows.jsonl.meta.json", true),
        ("bucket/out/rows.jsonl", false),
        ("bucket/out/rows.jsonl", true),
    ] {
        let what = format!("{held}, there before: {was_there}");
        let server = Server::start();
        if was_there {
            let folder = tempdir().unwrap();
            live(&server, folder.path(), "an earlier one").unwrap();
        }
        let folders = [tempdir().unwrap(), tempdir().unwrap()];
        let first =
            overwriting(&server, folders[0].path(), "the first", Job { num_rows: 23, ..JOB });
        server.hold(held);
        std::thread::scope(|scope| {
            let uploading = scope.spawn(|| first.upload());
            while !server.is_holding() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let second = overwriting(&server, folders[1].path(), "the second", other);
            second.upload().unwrap();
            second.clean().unwrap();
            assert_is_of(&server, other, &what);
            server.release();
            let error = uploading.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Exists, "{what}: {error}");
        });
        assert_is_of(&server, other, &what);
    }
}

#[test]
fn the_run_with_the_lease_replaces_what_arrives_late() {
    let server = Server::start();
    let folder = tempdir().unwrap();
    let run = overwriting(&server, folder.path(), "the second", JOB);
    // Of a run that had the lease before.
    for name in ["bucket/out/rows.jsonl", "bucket/out/rows.jsonl.meta.json"] {
        server.put(name, b"late");
    }
    run.upload().unwrap();
    assert_is_of(&server, JOB, "late objects");
    run.clean().unwrap();
    assert_complete(&server, "late objects");
}

#[test]
fn objects_of_others_beside_the_journal_stay() {
    let server = Server::start();
    let foreign = ["notes.txt", "lock-notes", "segment-1", "alive-00000001.bak"];
    for name in foreign {
        server.put(&format!("bucket/out/rows.jsonl.journal/{name}"), b"precious");
    }
    let folder = tempdir().unwrap();
    live(&server, folder.path(), "the first").unwrap();
    let names = server.names();
    let left = names.iter().filter_map(|name| name.strip_prefix("bucket/out/rows.jsonl.journal/"));
    let mut expected = foreign.to_vec();
    expected.sort_unstable();
    assert_eq!(left.collect::<Vec<_>>(), expected);
}

#[test]
fn one_run_has_the_lease_and_one_that_lost_it_notices() {
    let server = Server::start();
    let (store, prefix) = (store(&server), name(OUT).with_suffix(".journal/"));
    let wait = Duration::from_millis(1);
    let take = |owner: &str, takes_over, patience| {
        let claimant =
            Claimant { watch: (patience, wait), ..Claimant::new(owner.to_owned(), takes_over) };
        Lease::take(&store, &prefix, &claimant)
    };
    let kind = |result: Result<Lease, StoreError>| result.err().map(|error| error.kind());
    let first = take("first", false, wait).unwrap();
    first.check().unwrap();
    // It gives signs of life while another looks.
    let stop = Mutex::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !*stop.lock().unwrap() {
                first.beat().unwrap();
            }
        });
        let found = kind(take("second", false, Duration::from_secs(60)));
        *stop.lock().unwrap() = true;
        assert_eq!(found, Some(ErrorKind::Exists));
    });
    // It gives none.
    let second = take("second", false, wait).unwrap();
    assert_eq!(first.check().unwrap_err().kind(), ErrorKind::Exists);
    second.check().unwrap();
    // The user says that it is dead; or it is the same one again; or it has ended by itself.
    let third = take("third", true, Duration::from_secs(60)).unwrap();
    let again = take("third", false, Duration::from_secs(60)).unwrap();
    assert!(again.is_own_again && !third.is_own_again && again.epoch() > third.epoch());
    again.leave().unwrap();
    take("fourth", false, Duration::from_secs(60)).unwrap();

    server.set_fault(Fault::NoConditions);
    let error = take("fifth", true, wait).err().unwrap();
    assert!(error.to_string().contains("replaces objects"), "{error}");
}
