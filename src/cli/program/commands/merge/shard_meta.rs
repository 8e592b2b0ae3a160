//! The side file of a finished output, `out.jsonl.meta.json`, as `merge` reads it.

use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;

use crate::ledger::files::side_file_of;
use crate::ledger::meta::{Meta, RowCounts, SCHEMA};
use vllm_batch_base::files::read as read_file;
use vllm_batch_dataset::input::shard::Shard;
use vllm_batch_dataset::terminal::error::CliError;

/// No side file is longer: what is belongs to something else.
const MAX_BYTES: u64 = 16 << 20;

/// Reads the side file of an output.
///
/// # Errors
/// It is missing, no such file, or of another layout.
pub fn read_meta(output: &Path) -> Result<Meta, CliError> {
    let mut path = side_file_of(output);
    // A run follows a link, so its side file is beside the file that the link names.
    if output.is_symlink()
        && !path.exists()
        && let Ok(output) = std::fs::canonicalize(output)
    {
        path = side_file_of(&output);
    }
    let unreadable = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => {
            let message = format!("{} has no {}", output.display(), path.display());
            CliError::refused("no_meta", message)
                .help("a run that finishes writes it; keep it beside the output")
        }
        _ => CliError::refused("no_meta", format!("cannot read {}: {error}", path.display())),
    };
    let bytes = read_file(&path, MAX_BYTES).map_err(unreadable)?;
    parse(&String::from_utf8_lossy(&bytes), &path)
}

fn parse(text: &str, path: &Path) -> Result<Meta, CliError> {
    #[derive(Deserialize)]
    struct Layout {
        schema: u32,
    }
    let bad = |what: String| {
        CliError::refused("bad_meta", format!("{}: {what}", path.display()))
            .help("it was damaged, or is not of vllm-batch; run the shard again")
    };
    Meta::check(text).map_err(bad)?;
    let layout: Layout = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
    if layout.schema != SCHEMA {
        let message =
            format!("{}: schema {}, this program knows {SCHEMA}", path.display(), layout.schema);
        return Err(CliError::refused("bad_meta", message)
            .help("use the version of vllm-batch that wrote it"));
    }
    let meta = Meta::parse(text).map_err(bad)?;
    Shard::new(meta.shard.index, meta.shard.count).map_err(bad)?;
    let RowCounts { total, ok, failed, .. } = meta.rows;
    match ok.checked_add(failed) == Some(total) {
        true => Ok(meta),
        false => Err(bad(format!("{ok} rows ok and {failed} failed are not {total}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: &str = r#"{"schema":1,"tool":"vllm-batch","version":"0.1.0",
        "started":"2026-11-20T10:00:00Z","finished":"2026-11-20T10:05:00Z","resumes":0,
        "rows":{"total":3,"ok":2,"failed":1,"by_code":{"bad_json":1}},
        "tokens":{"input":30,"output":20},
        "input":{"path":"prompts.jsonl","rows":9,"digest":"00","later":1},
        "output":{"rows":3,"bytes":70,"blake3":"ab"},
        "format":"jsonl","compression":"none",
        "fingerprint":{"id":"cd","fields":{"model":"m","dtype":"float32"}},
        "shard":{"index":1,"count":3},"limit":null,"later":{"a":[]}}"#;

    fn refusal(text: &str) -> (String, String) {
        let error = parse(text, Path::new("s.meta.json")).expect_err(text);
        assert_eq!((error.exit.code(), error.code), (2, "bad_meta"));
        (error.message, error.help.expect("a remedy"))
    }

    #[test]
    fn what_later_versions_add_is_ignored() {
        let meta = parse(META, Path::new("s.meta.json")).expect("the contract's example");
        assert_eq!(meta.shard, Shard { index: 1, count: 3 });
        assert_eq!((meta.errors.is_none(), meta.limit), (true, None));
        assert_eq!(meta.rows.by_code["bad_json"], 1);
        let written = serde_json::to_string(&meta).expect("plain values");
        let again = parse(&written, Path::new("s.meta.json")).expect("our own");
        assert_eq!(again, meta);
        assert!(!written.contains("later") && !written.contains("errors"), "{written}");
    }

    #[test]
    fn errors_are_the_bytes_of_a_file() {
        let errors = r#""errors":{"path":"e.jsonl","rows":1,"bytes":5,"blake3":"ef"},"format""#;
        let text = META.replace("\"format\"", errors);
        let meta = parse(&text, Path::new("s.meta.json")).expect("with errors");
        let errors = meta.errors.expect("as given");
        assert_eq!((errors.path.as_str(), errors.facts.bytes), ("e.jsonl", 5));
    }

    #[test]
    fn damage_and_other_layouts_are_named() {
        let (message, help) = refusal(&META.replace("\"schema\":1", "\"schema\":2"));
        assert_eq!(message, "s.meta.json: schema 2, this program knows 1");
        assert_eq!(help, "use the version of vllm-batch that wrote it");
        for (text, wanted) in [
            ("".to_owned(), "EOF while parsing a value at line 1"),
            (META[..200].to_owned(), "EOF"),
            ("{}".to_owned(), "missing field `schema`"),
            (META.replace("\"blake3\":\"ab\"", "\"x\":0"), "missing field `blake3`"),
            (META.replace("\"jsonl\"", "\"xml\""), "unknown variant `xml`"),
            (META.replace("\"index\":1", "\"index\":3"), "there is no shard 3/3"),
            (META.replace("\"ok\":2", "\"ok\":3"), "3 rows ok and 1 failed are not 3"),
            (META.replace("\"total\":3", "\"total\":-3"), "invalid value"),
        ] {
            let (message, help) = refusal(&text);
            assert!(message.starts_with("s.meta.json: ") && message.contains(wanted), "{message}");
            assert!(help.contains("run the shard again"), "{help}");
        }
    }

    #[test]
    fn a_missing_side_file_is_said() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let output = folder.path().join("s.jsonl");
        let error = read_meta(&output).expect_err("there is none");
        assert_eq!((error.exit.code(), error.code), (2, "no_meta"));
        assert!(error.message.ends_with("s.jsonl.meta.json"), "{}", error.message);
        std::fs::create_dir(side_file_of(&output)).expect("temporary folder");
        let error = read_meta(&output).expect_err("a folder");
        assert!(error.message.starts_with("cannot read "), "{}", error.message);
    }
}
