//! Rows of files that have parts, without a process that draws.

use std::path::PathBuf;

use super::*;
use crate::input::pictures::{Input, sorted};
use vllm_batch_media::{Format, Header, ImageHeader, Limits, MediaId};

/// Files with as many parts as a file has bytes, each of which is called by its byte.
static BYTES: PartKind = PartKind {
    name: "test",
    extensions: &["parts"],
    medium: MediaKind::Image,
    is_asked: |_| true,
    open: of_bytes,
};

struct Bytes(std::vec::IntoIter<u8>);

impl Parts for Bytes {
    fn next_part(&mut self) -> Option<Part> {
        let byte = self.0.next()?;
        let fields = vec![("start", byte.to_string()), ("end", (byte + 1).to_string())];
        let header = Header::Image(ImageHeader { format: Format::Bmp, width: 1, height: 1 });
        let medium = match byte {
            b'!' => Err(MediaError::TooLarge("too long".to_owned())),
            byte => Ok(Medium::known(
                MediaId::from_bytes([byte; 32]),
                header,
                Vec::<u8>::new(),
                Limits::default(),
            )),
        };
        Some(Part { fields, medium })
    }
}

fn of_bytes(opening: &Opening<'_>) -> Result<Box<dyn Parts>, MediaError> {
    let bytes = std::fs::read(opening.path);
    let bytes = bytes.map_err(|_| MediaError::NotFound("there is no such file".to_owned()))?;
    Ok(Box::new(Bytes(bytes.into_iter())))
}

/// The rows of files of the test's kind.
fn rows(paths: Vec<PathBuf>) -> Vec<Record> {
    let files = Pictures::of_kind(&BYTES, paths);
    let (mut rows, note) = PartRows::new(Arc::new(files), &BYTES);
    assert_eq!((note, rows.next_number()), (None, 1));
    let mut all = Vec::new();
    while let Some(row) = rows.next_row().unwrap() {
        all.push(row);
        assert_eq!(rows.next_number(), all.len() as u64 + 1);
    }
    all
}

#[test]
fn parts_of_files_are_rows_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, bytes) in [("a.parts", "!A"), ("empty.parts", ""), ("b.parts", "B")] {
        std::fs::write(path(name), bytes).unwrap();
    }
    let names = ["a.parts", "empty.parts", "none.parts", "b.parts"];
    let mut rows = rows(names.iter().map(|name| path(name)).collect());
    let shown = rows.iter().map(|row| {
        let Content::Sample(sample) = &row.content else { panic!("{row:?}") };
        let text = sample.text.replace(&format!("{}/", folder.path().display()), "");
        (row.line, text, row.error.as_ref().map(|error| error.code))
    });
    let expected = [
        (1, r#"{"file":"a.parts","start":33,"end":34}"#, Some("media_too_large")),
        (2, r#"{"file":"a.parts","start":65,"end":66}"#, None),
        (3, r#"{"file":"none.parts"}"#, Some("media_not_found")),
        (4, r#"{"file":"b.parts","start":66,"end":67}"#, None),
    ];
    let expected = expected.map(|(line, text, code)| (line, text.to_owned(), code));
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    let members = rows[1].take_members();
    let [(name, Member::Made(medium))] = members.as_slice() else { panic!("{members:?}") };
    assert_eq!((name.as_str(), medium.id()), (PART, MediaId::from_bytes([65; 32])));
    assert!(rows[0].take_members().is_empty(), "a part that cannot be made");
}

#[test]
fn files_are_known_by_their_names_and_are_of_one_kind() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["b.PDF", "a.pdf", "c.txt"] {
        std::fs::write(path(name), "a").unwrap();
    }
    let options = PartOptions::default();
    let of = |list: &[PathBuf]| sorted(list.to_vec(), |_| false, &options);
    let [Input::Pictures(files)] = &of(&[folder.path().to_owned()]).unwrap()[..] else { panic!() };
    assert_eq!(files.paths(), [path("a.pdf"), path("b.PDF")]);
    assert_eq!(files.kind().map(|kind| kind.name), Some("PDF"));
    assert!(files.note().unwrap().ends_with("c.txt is no PDF, and passed over"));
    let named = of(&[path("a.pdf"), path("b.PDF")]).unwrap();
    assert_eq!(named.len(), 1, "one input with one count of rows");
    for other in ["c.txt", "d.png"] {
        let error = of(&[path("a.pdf"), path(other)]).unwrap_err();
        assert!(error.message.contains("a.pdf is a PDF, and"), "{}", error.message);
    }
    std::fs::write(path("d.png"), "a").unwrap();
    let error = of(&[folder.path().to_owned()]).unwrap_err();
    assert!(error.message.contains("a.pdf is a PDF, and"), "{}", error.message);
    assert!(of(&["s3://a/b.pdf".into()]).unwrap_err().message.contains("PDF files of a store"));
}

#[test]
#[cfg(unix)]
fn a_link_out_of_the_folder_is_not_followed() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(outside.path().join("secret.pdf"), "a").unwrap();
    let link = folder.path().join("a.pdf");
    std::os::unix::fs::symlink(outside.path().join("secret.pdf"), link).unwrap();
    let found = sorted(vec![folder.path().to_owned()], |_| false, &PartOptions::default());
    let Ok([Input::Pictures(files)]) = found.as_deref() else { panic!("{found:?}") };
    let kind = files.kind().unwrap();
    let mut rows = PartRows::new(Arc::new(files.clone()), kind).0;
    let error = rows.next_row().unwrap().unwrap().error.unwrap();
    assert_eq!(error.code, "media_forbidden");
    assert_eq!(rows.next_row().unwrap(), None);
}

/// The crate that draws is in the identity of a page: journals of another version have other rows.
#[test]
fn pages_are_drawn_by_the_version_that_their_identity_names() {
    let manifest = include_str!("../../../../../Cargo.toml");
    let version = crate::input::pdf::DRAWN_BY.strip_prefix("hayro ").unwrap();
    assert!(manifest.contains(&format!("hayro = \"={version}\"")), "{version}");
}
