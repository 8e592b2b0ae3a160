//! Files that other programs wrote (`testdata/parquet`, by its script), to rows.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::input::reader::{Content, InputFormat, MAX_LINE, Opened, Records};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/parquet")
}

fn rows(path: &Path) -> Vec<String> {
    let opened = Opened::of_file(File::open(path).unwrap()).unwrap();
    let records = Records::of(opened, InputFormat::Auto, MAX_LINE).unwrap();
    let lines = records.map(|record| match record.unwrap() {
        crate::input::reader::Record { content: Content::Line(line), error: None, .. } => line,
        other => panic!("{}: {other:?}", path.display()),
    });
    lines.collect()
}

#[test]
fn files_of_other_programs_are_the_rows_that_they_wrote() {
    let mut num_files = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "parquet") {
            continue;
        }
        num_files += 1;
        let wanted = fs::read_to_string(path.with_extension("jsonl")).unwrap();
        let found = rows(&path);
        assert_eq!(found.len(), wanted.lines().count(), "{}", path.display());
        for (found, wanted) in found.iter().zip(wanted.lines()) {
            assert_eq!(found, wanted, "{}", path.display());
        }
    }
    assert!(num_files >= 8, "{num_files}");
}
