//! Which files a run touches: what is there stays, and nothing has its name before it is complete.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// Writes an output of one row.
fn write(options: LedgerOptions) -> Result<(), LedgerError> {
    let (mut ledger, _) = open(options)?.begin(header())?;
    ledger.push(answer(0, "new\n"))?;
    finish(ledger)
}

fn error_of(locked: Result<LockedOutput, LedgerError>) -> LedgerError {
    locked.err().expect("it is refused")
}

#[test]
fn the_file_exists_only_when_it_is_complete() {
    let folder = Folder::new();
    let mut ledger = folder.ledger();
    ledger.push(answer(0, "row\n")).expect("a folder");
    ledger.flush().expect("a folder");
    // The side file's name is this run's too.
    assert_eq!(folder.names(), ["out.journal", "out.meta.json.part", "out.part"]);
    assert_eq!(
        (folder.text("out.part"), ledger.part()),
        ("row\n".into(), Some(&*folder.path("out.part")))
    );
    finish(ledger).expect("a folder");
    assert_eq!(folder.names(), ["out", "out.meta.json"]);
    assert_eq!(
        (folder.text("out"), folder.text("out.meta.json")),
        ("row\n".into(), "1 rows".into())
    );
}

#[test]
fn nothing_is_left_by_a_run_without_rows() {
    let folder = Folder::new();
    drop(folder.locked().expect("a new file"));
    assert!(folder.names().is_empty());
    drop(folder.ledger());
    assert!(folder.names().is_empty());
    folder.ledger().stop().expect("nothing to keep");
    assert!(folder.names().is_empty());
    folder.ledger().rescue();
    assert!(folder.names().is_empty());
    // A row that waits for an earlier one is kept.
    let mut ledger = folder.ledger();
    ledger.push(answer(1, "row\n")).expect("a folder");
    ledger.stop().expect("a folder");
    assert_eq!(folder.names(), ["out.journal"]);
}

#[test]
fn a_run_over_no_rows_is_complete_and_empty() {
    let folder = Folder::new();
    finish(folder.ledger()).expect("a folder");
    assert_eq!(folder.names(), ["out", "out.meta.json"]);
    assert_eq!(folder.text("out"), "");
}

#[test]
fn rows_without_a_journal_stay_until_they_are_replaced() {
    let folder = Folder::new();
    folder.write("out.part", "old row\n");
    let part = folder.path("out.part");
    assert!(matches!(error_of(folder.locked()), LedgerError::Unfinished(named) if named == part));
    drop(folder.overwriting().expect("overwrite was asked for").begin(header()));
    assert_eq!(folder.text("out.part"), "old row\n", "no row came");
    assert_eq!(folder.names(), ["out.part"]);
    write(LedgerOptions { overwrite: true, ..folder.options() }).expect("asked for");
    assert_eq!(folder.text("out"), "new\n");
    for name in ["out", "out.meta.json"] {
        fs::remove_file(folder.path(name)).expect("it was written");
    }
    folder.write("out.part", "");
    write(folder.options()).expect("an empty part is no obstacle");
}

#[test]
fn a_journal_stays_until_it_is_replaced() {
    let folder = Folder::new();
    let mut ledger = folder.ledger();
    ledger.push(answer(0, "old row\n")).expect("a folder");
    ledger.stop().expect("a folder");
    let before = folder.read("out.journal");
    drop(folder.overwriting().expect("overwrite was asked for").begin(header()));
    assert!(folder.read("out.journal") == before, "no row came");
    drop(folder.locked().expect("to be continued").begin(header()));
    assert!(folder.read("out.journal") == before, "no row came");
    write(LedgerOptions { overwrite: true, ..folder.options() }).expect("asked for");
    assert_eq!(folder.names(), ["out", "out.meta.json"]);
    assert_eq!(folder.text("out"), "new\n");
}

#[test]
fn an_output_has_one_writer() {
    let folder = Folder::new();
    let out = folder.path("out");
    let assert_locked = || {
        for locked in [folder.locked(), folder.overwriting()] {
            assert!(matches!(error_of(locked), LedgerError::Locked(named) if named == out));
        }
    };
    let locked = folder.locked().expect("a new file");
    assert_locked();
    let mut ledger = locked.begin(header()).expect("a new file").0;
    assert_locked();
    ledger.push(answer(0, "row\n")).expect("a folder");
    assert_locked();
    finish(ledger).expect("a folder");
    assert_eq!(folder.text("out"), "row\n");
    write(LedgerOptions { overwrite: true, ..folder.options() }).expect("nobody writes it now");
}

#[test]
fn an_existing_file_is_refused_unless_told_otherwise() {
    let folder = Folder::new();
    folder.write("out", "old\n");
    let out = folder.path("out");
    assert!(matches!(error_of(folder.locked()), LedgerError::Exists(named) if named == out));
    folder.write("errors", "old\n");
    let options = LedgerOptions {
        out: Some(folder.path("other")),
        errors: Some(folder.path("errors")),
        ..LedgerOptions::default()
    };
    let errors = folder.path("errors");
    let error = error_of(open(options.clone()));
    assert!(matches!(error, LedgerError::Exists(named) if named == errors));
    assert_eq!((folder.text("out"), folder.text("errors")), ("old\n".into(), "old\n".into()));
    assert_eq!(folder.names(), ["errors", "out"]);
    write(LedgerOptions { overwrite: true, ..options }).expect("asked for");
    assert_eq!((folder.text("other"), folder.text("errors")), ("new\n".into(), String::new()));
}

#[test]
fn a_link_stays_a_link() {
    let folder = Folder::new();
    folder.write("out", "old\n");
    symlink(folder.path("out"), folder.path("link")).expect("temporary folder");
    let options = LedgerOptions { out: Some(folder.path("link")), ..LedgerOptions::default() };
    let error = error_of(open(options.clone()));
    assert!(matches!(error, LedgerError::Exists(named) if named.ends_with("out")));
    write(LedgerOptions { overwrite: true, ..options }).expect("asked for");
    assert!(folder.path("link").is_symlink(), "the link still names the file");
    assert_eq!(folder.names(), ["link", "out", "out.meta.json"]);
    assert_eq!(folder.text("out"), "new\n");
}

#[test]
fn the_input_is_never_the_output() {
    let names = ["out", "out.part", "out.journal", "out.meta.json", "errors", "errors.part", "log"];
    for name in names {
        for is_linked in [false, true] {
            let folder = Folder::new();
            let input = folder.path(if is_linked { "in" } else { name });
            fs::write(&input, "row\n").expect("temporary folder");
            if is_linked {
                fs::hard_link(&input, folder.path(name)).expect("temporary folder");
            }
            let options = LedgerOptions {
                errors: Some(folder.path("errors")),
                journal: (name == "log").then(|| folder.path("log")),
                read: vec![Named::new("the input", input)],
                overwrite: true,
                ..folder.options()
            };
            let error = error_of(open(options));
            let named = folder.path(name);
            let LedgerError::IsRead(pair) = &error else { panic!("{error}") };
            assert_eq!(pair.0.path, named);
            assert!(error.to_string().contains(" is the input: "), "{error}");
            assert_eq!(folder.text(name), "row\n");
            assert_eq!(folder.names().len(), 1 + usize::from(is_linked));
        }
    }
}

#[test]
fn two_files_of_a_run_have_two_names() {
    let folder = Folder::new();
    let out = folder.path("out");
    let twice = |errors: Option<&str>, journal: Option<&str>| {
        let options = LedgerOptions {
            errors: errors.map(|name| folder.path(name)),
            journal: journal.map(|name| folder.path(name)),
            ..folder.options()
        };
        match error_of(open(options)) {
            LedgerError::Twice(pair) => pair.1.path,
            error => panic!("{error}"),
        }
    };
    assert_eq!(twice(Some("out"), None), out);
    assert_eq!(twice(None, Some("out")), out);
    assert_eq!(twice(Some("out.part"), None), folder.path("out.part"));
    assert_eq!(twice(Some("out.journal"), None), folder.path("out.journal"));
    assert_eq!(twice(Some("out.meta.json"), None), folder.path("out.meta.json"));
    assert_eq!(twice(Some("errors"), Some("errors.part")), folder.path("errors.part"));
    assert!(folder.names().is_empty());
}

#[test]
fn a_device_is_written_and_not_replaced() {
    let null = Path::new("/dev/null");
    let to = |path: &Path| LedgerOptions { out: Some(path.to_owned()), ..LedgerOptions::default() };
    write(to(null)).expect("takes everything");
    assert!(!fs::metadata(null).expect("still there").is_file());
    for suffix in ["part", "journal", "meta.json"] {
        assert!(!Path::new(&format!("/dev/null.{suffix}")).exists());
    }
    let mut ledger = open(to(Path::new("/dev/full"))).unwrap().begin(header()).unwrap().0;
    ledger.push(answer(0, "row\n")).expect("buffered");
    let error = ledger.flush().expect_err("it is full");
    assert!(matches!(error, LedgerError::Full { .. }), "{error}");
    for stream in [None, Some(Path::new("/dev/stdout")), Some(null)] {
        let out = stream.map(Path::to_owned);
        let locked = open(LedgerOptions { out, ..LedgerOptions::default() }).expect("a stream");
        let names = (locked.path(), locked.journal_path());
        assert_eq!(names, (None, None), "{stream:?}");
    }
}

#[test]
fn a_stream_with_a_journal_is_written_again_from_its_beginning() {
    let folder = Folder::new();
    let options = || LedgerOptions {
        out: Some("/dev/null".into()),
        journal: Some(folder.path("log")),
        ..LedgerOptions::default()
    };
    let mut ledger = open(options()).unwrap().begin(header()).expect("new").0;
    ledger.push(answer(0, "row\n")).expect("a folder");
    ledger.stop().expect("a folder");
    assert_eq!(folder.names(), ["log"]);
    let (mut ledger, recovered) = open(options()).unwrap().begin(header()).expect("continued");
    let reused = recovered.expect("there are rows").find(0, &hash(0)).unwrap().expect("row 0");
    ledger.reuse(0, &reused).expect("a folder");
    finish(ledger).expect("a folder");
    assert!(folder.names().is_empty(), "the journal goes when all is written");
}

#[test]
fn what_cannot_be_created_is_named() {
    let folder = Folder::new();
    let to = |path| open(LedgerOptions { out: Some(path), ..LedgerOptions::default() });
    let error = error_of(to(folder.path("none/out"))).to_string();
    assert!(error.starts_with("no such folder: ") && error.ends_with("/none"), "{error}");
    let error = error_of(to(folder.path(""))).to_string();
    assert!(error.starts_with("cannot write to "), "{error}");
    fs::create_dir(folder.path("out.part")).expect("temporary folder");
    let error = error_of(folder.overwriting()).to_string();
    assert!(error.ends_with("/out.part is a folder"), "{error}");
    fs::remove_dir(folder.path("out.part")).expect("it was made");
    fs::create_dir(folder.path("log")).expect("temporary folder");
    let journal = Some(folder.path("log"));
    let error = error_of(open(LedgerOptions { journal, ..folder.options() })).to_string();
    assert!(error.ends_with("/log is a folder"), "{error}");
    assert_eq!(folder.names(), ["log"]);
}

#[test]
fn rows_of_a_private_file_are_private_from_the_first_on() {
    let folder = Folder::new();
    folder.write("out", "secret\n");
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(folder.path("out"), private).expect("temporary folder");
    let mut ledger = folder.overwriting().unwrap().begin(header()).expect("asked for").0;
    ledger.push(answer(0, "row\n")).expect("a folder");
    ledger.flush().expect("a folder");
    for name in ["out.part", "out.journal"] {
        let mode = fs::metadata(folder.path(name)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    finish(ledger).expect("a folder");
    assert_eq!(fs::metadata(folder.path("out")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn errors_of_a_stream_have_their_name_when_all_is_written() {
    let folder = Folder::new();
    for has_journal in [false, true] {
        let options = LedgerOptions {
            out: Some("/dev/null".into()),
            errors: Some(folder.path("errors")),
            journal: has_journal.then(|| folder.path("log")),
            ..LedgerOptions::default()
        };
        let mut ledger = open(options.clone()).unwrap().begin(header()).expect("new").0;
        ledger.push(answer(0, "good\n")).expect("buffered");
        ledger.push(failure(1, "bad\n")).expect("buffered");
        ledger.flush().expect("a folder");
        assert!(!folder.path("errors").exists());
        finish(ledger).expect("a folder");
        assert_eq!(
            (folder.names(), folder.text("errors")),
            (vec!["errors".into()], "bad\n".into())
        );
        assert!(matches!(error_of(open(options)), LedgerError::Exists(_)));
        fs::remove_file(folder.path("errors")).expect("it was written");
    }
}

#[test]
fn errors_may_go_to_a_device_or_through_a_link() {
    let folder = Folder::new();
    for overwrite in [false, true] {
        let errors = Some("/dev/null".into());
        let options = LedgerOptions { errors, overwrite, ..folder.options() };
        let mut ledger = open(options).unwrap().begin(header()).expect("new").0;
        ledger.push(failure(0, "bad\n")).expect("a folder");
        finish(ledger).expect("a folder");
        assert!(!fs::metadata("/dev/null").expect("still there").is_file());
        assert!(!Path::new("/dev/null.part").exists());
        assert_eq!(
            (folder.names(), folder.text("out")),
            (vec!["out".into(), "out.meta.json".into()], "".into())
        );
    }
    folder.write("errors", "old\n");
    symlink(folder.path("errors"), folder.path("link")).expect("temporary folder");
    let errors = Some(folder.path("link"));
    let options = LedgerOptions { errors, overwrite: true, ..folder.options() };
    let mut ledger = open(options).unwrap().begin(header()).expect("new").0;
    ledger.push(failure(0, "bad\n")).expect("a folder");
    finish(ledger).expect("a folder");
    assert!(folder.path("link").is_symlink());
    assert_eq!(folder.text("errors"), "bad\n");
}
