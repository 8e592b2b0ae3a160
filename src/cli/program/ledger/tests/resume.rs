//! What a run finished is not computed again, and how a run ends.

use super::*;
use crate::ledger::meta::{InputFacts, Meta, NamedFile, RowCounts, TokenCounts};
use crate::ledger::record::RecordHead;
use crate::ledger::storage::{Access, FileKind, Storage};
use crate::ledger::watched_file::{WatchedFile, Watcher};
use vllm_batch_dataset::input::shard::Shard;
use vllm_batch_dataset::output::FileFormat;

/// Takes rows from a journal: (position now, number of the row). Those that it has not.
fn reuse(ledger: &mut Ledger, recovered: &mut Recovered, rows: &[(u64, u64)]) -> Vec<u64> {
    let mut missing = Vec::new();
    for (position, number) in rows {
        match recovered.find(*position, &hash(*number)).expect("a folder") {
            Some(reused) => ledger.reuse(*position, &reused).expect("a folder"),
            None => missing.push(*number),
        }
    }
    missing
}

fn resumed(folder: &Folder) -> (Ledger, Recovered) {
    let locked = folder.locked().expect("a journal");
    let (ledger, recovered) = locked.begin(header()).expect("the same run");
    (ledger, recovered.expect("it has rows"))
}

#[test]
fn rows_are_taken_from_the_journal_and_only_the_others_computed() {
    let folder = Folder::new();
    let mut ledger = folder.ledger();
    for position in [4, 0, 2] {
        ledger.push(answer(position, &format!("row {position}\n"))).expect("a folder");
    }
    ledger.stop().expect("a folder");
    // A second run gets a little further.
    let (mut ledger, mut recovered) = resumed(&folder);
    let same: Vec<_> = (0..6).map(|position| (position, position)).collect();
    assert_eq!(reuse(&mut ledger, &mut recovered, &same), [1, 3, 5]);
    ledger.push(answer(3, "row 3\n")).expect("a folder");
    assert_eq!((ledger.emitted(), ledger.num_waiting()), (1, 3));
    ledger.stop().expect("a folder");
    assert_eq!(folder.text("out.part"), "row 0\n");
    let (mut ledger, mut recovered) = resumed(&folder);
    assert_eq!(reuse(&mut ledger, &mut recovered, &same), [1, 5]);
    ledger.push(answer(5, "row 5\n")).expect("a folder");
    ledger.push(answer(1, "row 1\n")).expect("a folder");
    let mut num_resumes = 0;
    let side_text = |totals: &Totals| {
        num_resumes = totals.num_resumes;
        "{}".to_owned()
    };
    ledger.finish(side_text).expect("a folder");
    assert_eq!(folder.text("out"), "row 0\nrow 1\nrow 2\nrow 3\nrow 4\nrow 5\n");
    assert_eq!(num_resumes, 2);
    assert_eq!(folder.names(), ["out", "out.meta.json"]);
}

#[test]
fn rows_are_found_wherever_they_stand_in_the_input_now() {
    let folder = Folder::new();
    let mut ledger = folder.ledger();
    for position in 0..4 {
        ledger.push(answer(position, &format!("row {position}\n"))).expect("a folder");
    }
    ledger.stop().expect("a folder");
    // Row 1 is gone, the others stand in another order, one of them twice, and row 9 is new.
    let (mut ledger, mut recovered) = resumed(&folder);
    let rows = [(0, 3), (1, 0), (2, 9), (3, 0), (4, 2)];
    assert_eq!(reuse(&mut ledger, &mut recovered, &rows), [9]);
    let new = Finished { hash: hash(9), ..answer(2, "row 9\n") };
    ledger.push(new).expect("a folder");
    finish(ledger).expect("a folder");
    assert_eq!(folder.text("out"), "row 3\nrow 0\nrow 9\nrow 0\nrow 2\n");
}

#[test]
fn a_run_of_which_every_row_is_there_only_writes_them() {
    let folder = Folder::new();
    let mut ledger = folder.ledger();
    for position in 0..3 {
        ledger.push(answer(position, "row\n")).expect("a folder");
    }
    ledger.stop().expect("a folder");
    fs::remove_file(folder.path("out.part")).expect("it was written");
    let (mut ledger, mut recovered) = resumed(&folder);
    assert!(reuse(&mut ledger, &mut recovered, &[(0, 0), (1, 1), (2, 2)]).is_empty());
    assert_eq!(ledger.held_bytes, 0);
    finish(ledger).expect("a folder");
    assert_eq!(folder.text("out"), "row\nrow\nrow\n");
}

#[test]
fn error_rows_are_asked_again_on_demand() {
    let folder = Folder::new();
    let mut ledger = folder.ledger();
    ledger.push(answer(0, "good\n")).expect("a folder");
    ledger.push(failure(1, "bad\n")).expect("a folder");
    ledger.stop().expect("a folder");
    let (ledger, mut recovered) = resumed(&folder);
    let found = recovered.find(0, &hash(1)).unwrap().expect("an error row is a finished row");
    assert_eq!(found.code.as_deref(), Some("bad_json"));
    drop(ledger);
    let locked = open(LedgerOptions { retry_failed: true, ..folder.options() }).expect("a journal");
    let (mut ledger, recovered) = locked.begin(header()).expect("the same run");
    let mut recovered = recovered.expect("it has rows");
    assert_eq!(reuse(&mut ledger, &mut recovered, &[(0, 0), (1, 1)]), [1]);
    ledger.push(answer(1, "better\n")).expect("a folder");
    ledger.stop().expect("a folder");
    // Without the flag: the later one counts.
    let (mut ledger, mut recovered) = resumed(&folder);
    assert!(reuse(&mut ledger, &mut recovered, &[(0, 0), (1, 1)]).is_empty());
    finish(ledger).expect("a folder");
    assert_eq!(folder.text("out"), "good\nbetter\n");
}

/// A disk that remembers what was made durable, renamed and removed, in order.
#[derive(Clone, Default)]
struct Spy(Arc<Mutex<Vec<String>>>);

impl Spy {
    fn note(&self, what: &str, path: &Path) {
        let name = path.file_name().expect("a file").to_string_lossy();
        self.0.lock().unwrap().push(format!("{what} {name}"));
    }
}

impl Storage for Spy {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn StoredFile>> {
        let file = Disk.open(path, access)?;
        let watcher = Notes { path: path.to_owned(), spy: self.clone() };
        Ok(Box::new(WatchedFile { file, watcher }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note("rename to", to);
        Disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.note("remove", path);
        Disk.remove(path)
    }

    fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
        self.note("sync folder of", path);
        Disk.sync_folder_of(path)
    }

    fn kind(&self, path: &Path) -> Option<FileKind> {
        Disk.kind(path)
    }
}

/// Notes when a file is made durable.
struct Notes {
    path: PathBuf,
    spy: Spy,
}

impl Watcher for Notes {
    fn syncs(&mut self) -> io::Result<()> {
        self.spy.note("sync", &self.path);
        Ok(())
    }
}

/// A run of two rows, one of them an error row, with `--errors`.
fn split_run(folder: &Folder, spy: &Spy) -> Ledger {
    let errors = Some(folder.path("errors"));
    let options = LedgerOptions { errors, ..folder.options() };
    let locked = LockedOutput::open(Arc::new(spy.clone()), options).expect("new files");
    let mut ledger = locked.begin(header()).expect("new files").0;
    ledger.write_header(b"head\n");
    ledger.push(failure(1, "bad\n")).expect("a folder");
    ledger.push(answer(0, "good\n")).expect("a folder");
    ledger
}

#[test]
fn error_rows_go_to_their_own_file_in_order() {
    let folder = Folder::new();
    let mut ledger = split_run(&folder, &Spy::default());
    for position in [5, 3, 2, 4] {
        let row = match position {
            2 | 5 => failure(position, &format!("bad {position}\n")),
            _ => answer(position, &format!("good {position}\n")),
        };
        ledger.push(row).expect("a folder");
    }
    ledger.flush().expect("a folder");
    assert_eq!(folder.names(), ["errors.part", "out.journal", "out.meta.json.part", "out.part"]);
    let mut totals = None;
    ledger
        .finish(|all| {
            totals = Some(all.clone());
            "{}".to_owned()
        })
        .expect("a folder");
    assert_eq!(folder.text("out"), "head\ngood\ngood 3\ngood 4\n");
    assert_eq!(folder.text("errors"), "head\nbad\nbad 2\nbad 5\n");
    let totals = totals.expect("it was asked for");
    let errors = totals.errors.expect("there is such a file");
    assert_eq!((totals.output.num_rows, errors.num_rows), (3, 3));
    for (facts, name) in [(&totals.output, "out"), (&errors, "errors")] {
        assert_eq!(facts.blake3, blake3::hash(&folder.read(name)).to_hex().to_string());
    }
}

#[test]
fn each_step_of_the_end_is_durable_before_the_next() {
    let folder = Folder::new();
    let spy = Spy::default();
    let ledger = split_run(&folder, &spy);
    finish(ledger).expect("a folder");
    let steps = [
        // What kept the journal's name free until it was looked at.
        "remove out.journal.part",
        // The journal and its name, before a row.
        "sync out.journal",
        "sync folder of out.journal",
        // Both outputs whole, under the names of their parts.
        "sync out.part",
        "sync folder of out.part",
        "sync errors.part",
        "sync folder of errors.part",
        // That they are whole is in the journal.
        "sync out.journal",
        "rename to errors",
        "sync folder of errors",
        "rename to out",
        "sync folder of out",
        "sync out.meta.json.part",
        "rename to out.meta.json",
        "sync folder of out.meta.json",
        // Nothing needs it any more.
        "remove out.journal",
    ];
    assert_eq!(*spy.0.lock().unwrap(), steps);
}

fn meta_of(folder: &Folder, totals: &Totals) -> Meta {
    let errors = totals.errors.clone().map(|facts| NamedFile {
        path: folder.path("errors").display().to_string(),
        facts: facts.into(),
    });
    Meta {
        schema: 1,
        tool: "vllm-batch".to_owned(),
        version: "0".to_owned(),
        started: "then".to_owned(),
        finished: "now".to_owned(),
        resumes: totals.num_resumes,
        rows: RowCounts { total: 2, ..RowCounts::default() },
        tokens: TokenCounts::default(),
        input: InputFacts::default(),
        output: totals.output.clone().into(),
        errors,
        format: FileFormat::Jsonl,
        compression: "none".to_owned(),
        model: None,
        fingerprint: header().fingerprint,
        shard: Shard::default(),
        limit: None,
        sample: None,
    }
}

/// What the disk held when a run of two rows was killed before `step` of its end.
fn killed_before(step: &str) -> Folder {
    let folder = Folder::new();
    let mut ledger = split_run(&folder, &Spy::default());
    ledger.sync().expect("a folder");
    let journal_while = folder.path("copy");
    let mut text = String::new();
    ledger
        .finish(|totals| {
            text = meta_of(&folder, totals).text();
            fs::copy(folder.path("out.journal"), &journal_while).expect("a folder");
            text.clone()
        })
        .expect("a folder");
    // The journal comes back, with the record that the run had written last.
    let mut journal = fs::read(&journal_while).expect("copied above");
    RecordHead::encode(&Record::mark(Kind::End, text.as_bytes()), 0, &mut journal);
    folder.write("out.journal", journal);
    fs::remove_file(&journal_while).expect("copied above");
    for (name, undone) in [
        ("out.meta.json", &["names", "out", "meta"][..]),
        ("out", &["names", "out"]),
        ("errors", &["names"]),
    ] {
        if undone.contains(&step) {
            fs::rename(folder.path(name), folder.path(&format!("{name}.part"))).expect("a folder");
        }
    }
    folder
}

#[test]
fn the_same_command_does_what_a_killed_run_did_not_come_to() {
    for step in ["names", "out", "meta", "journal"] {
        let folder = killed_before(step);
        let errors = Some(folder.path("errors"));
        let locked = open(LedgerOptions { errors, ..folder.options() }).expect("whole outputs");
        assert!(locked.found().is_none(), "{step}: nothing is to be continued");
        assert_eq!(locked.complete().map(|meta| meta.rows.total), Some(2), "{step}");
        drop(locked);
        let mut names = folder.names();
        // It was being written when the run was killed, and no other run reads it.
        names.retain(|name| name != "out.meta.json.part");
        assert_eq!(names, ["errors", "out", "out.meta.json"], "{step}");
        assert_eq!(
            (folder.text("out"), folder.text("errors")),
            ("head\ngood\n".into(), "head\nbad\n".into())
        );
    }
}

#[test]
fn outputs_that_were_changed_after_their_end_are_written_again() {
    let folder = killed_before("names");
    folder.write("out.part", "head\nbetter\n");
    let errors = Some(folder.path("errors"));
    let locked = open(LedgerOptions { errors, ..folder.options() }).expect("a journal");
    assert!(locked.complete().is_none());
    let (mut ledger, recovered) = locked.begin(header()).expect("the same run");
    let mut recovered = recovered.expect("it has rows");
    ledger.write_header(b"head\n");
    assert!(reuse(&mut ledger, &mut recovered, &[(0, 0), (1, 1)]).is_empty());
    finish(ledger).expect("a folder");
    assert_eq!(
        (folder.text("out"), folder.text("errors")),
        ("head\ngood\n".into(), "head\nbad\n".into())
    );
}
