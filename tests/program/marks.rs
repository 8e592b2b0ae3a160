//! The byte-order mark of a table, which spreadsheets know UTF-8 by.

use std::fs;

use crate::data_files::{MARK, TABLE, rows_of, run, separated};

#[test]
fn the_mark_of_a_table_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (name, table) in [("a.csv", TABLE.to_owned()), ("a.tsv", separated('\t'))] {
        let plain = rows_of(path, name, table.as_bytes(), &[]).0;
        assert!(plain.starts_with("id"), "{plain}");
        let with_mark = format!("{MARK}{table}");
        let marked = rows_of(path, name, with_mark.as_bytes(), &[]).0;
        assert_eq!(marked, format!("{MARK}{plain}"));
        assert_eq!(run(path, &[], with_mark.as_bytes()).rows, marked, "from a pipe");
        let again = rows_of(path, name, marked.as_bytes(), &["--limit", "1"]).0;
        assert_eq!(again.matches(MARK).count(), 1, "an output is an input");
    }
    // Other rows have none.
    let line = format!("{MARK}{{\"prompt\":\"1+1=\"}}\n");
    assert!(run(path, &[], line.as_bytes()).rows.starts_with('{'));
    let out = ["-i", "a.csv", "-o", "out.csv"];
    let jsonl = ["-i", "a.csv", "-o", "out.jsonl"];
    let marked = |rows: &str| fs::write(path.join("a.csv"), format!("{MARK}{rows}")).unwrap();
    marked(TABLE);
    assert_eq!(run(path, &jsonl, b"").code, Some(0));
    assert!(fs::read_to_string(path.join("out.jsonl")).unwrap().starts_with('{'));
    // A spreadsheet that corrects a cell may put a mark before a table that had none, and end its
    // lines otherwise.
    fs::write(path.join("a.csv"), "id,text\n1,1+1=\n2,\n").unwrap();
    assert_eq!(run(path, &out, b"").code, Some(3));
    marked("id,text\r\n1,1+1=\r\n2,2+3=\r\n");
    let retried = run(path, &[&out[..], &["--retry-failed"]].concat(), b"");
    assert_eq!(retried.code, Some(0), "{}", retried.said);
    assert!(retried.said.contains("1 row with an answer"), "{}", retried.said);
    let fresh = run(path, &["-i", "a.csv", "-o", "fresh.csv"], b"");
    assert_eq!(fresh.code, Some(0), "{}", fresh.said);
    let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
    assert!(read("out.csv").starts_with(MARK));
    assert_eq!(read("out.csv"), read("fresh.csv"));
    // Nothing but its line ends is another: there is nothing to do.
    marked("id,text\n1,1+1=\n2,2+3=\n");
    let again = run(path, &out, b"");
    assert!(again.code == Some(0) && again.said.contains("Nothing to do"), "{}", again.said);
}
