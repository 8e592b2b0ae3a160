//! Tests of tuning without a device: keys, buckets, and the table on disk.

use std::fs;
use std::path::PathBuf;

use super::table::{Choice, hash_of_references};
use super::{GemmKey, GemmType, TuningTable};

const KEY: GemmKey =
    GemmKey { n: 6144, k: 4096, input: GemmType::Bf16, output: GemmType::Bf16, bias: false };

fn choice(bucket: usize) -> Choice {
    let algorithm = [0x10_0000_0042, u64::MAX, 2, 3, 4, 5, 6, bucket as u64];
    Choice { bucket, launched: bucket.max(64), algorithm, micros: 12.5, compared: 64 }
}

/// A folder of this test, removed with it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(name: &str) -> Self {
        Self(tempfile::Builder::new().prefix(name).tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("below").join("table.json")
    }
}

fn saved(folder: &Folder) -> TuningTable {
    let mut table = TuningTable::default();
    table.use_for("NVIDIA H200", 130_100);
    table.insert(&KEY, choice(16));
    table.insert(&KEY, choice(8));
    table.set_reference(&KEY, "00ff".to_owned());
    table.save(&folder.file()).expect("a new file can be written");
    table
}

#[test]
fn keys_of_different_results_have_different_names() {
    let f32_out = GemmKey { output: GemmType::F32, ..KEY };
    let fp8 = GemmKey { input: GemmType::Fp8E4m3, bias: true, ..KEY };
    assert_eq!(KEY.to_string(), "6144x4096.bf16.bf16");
    assert_eq!(f32_out.to_string(), "6144x4096.bf16.f32");
    assert_eq!(fp8.to_string(), "6144x4096.e4m3.bf16.bias");
}

#[test]
fn a_table_comes_back_from_its_file() {
    let folder = Folder::new("round-trip");
    saved(&folder);
    let mut table = TuningTable::load(&folder.file());
    table.use_for("NVIDIA H200", 130_100);
    assert_eq!(table.get(&KEY, 8), Some(choice(8)));
    assert_eq!(table.get(&KEY, 16), Some(choice(16)));
    assert_eq!(table.get(&KEY, 32), None);
    assert_eq!(table.reference(&KEY), Some("00ff"));
    table.remove(&KEY);
    assert_eq!((table.get(&KEY, 8), table.reference(&KEY)), (None, None));
    assert_eq!(table.get(&GemmKey { bias: true, ..KEY }, 8), None);
    let files = fs::read_dir(folder.0.path().join("below")).expect("the folder is there");
    assert_eq!(files.count(), 1, "no temporary file is left");
}

#[test]
fn another_device_or_version_starts_anew() {
    let folder = Folder::new("other");
    saved(&folder);
    for (device, version) in [("NVIDIA H100", 130_100), ("NVIDIA H200", 130_200)] {
        let mut table = TuningTable::load(&folder.file());
        table.use_for(device, version);
        assert_eq!(table.get(&KEY, 8), None, "{device} {version}");
    }
}

#[test]
fn a_damaged_file_is_ignored() {
    let folder = Folder::new("damaged");
    saved(&folder);
    let text = fs::read_to_string(folder.file()).expect("it was written");
    let damages = [
        text[..text.len() / 2].to_string(),
        text.replace("0000001000000042", "0000001100000042"),
        text.replace("130100", "130200"),
        text.replace("\"rules\":", "\"rules\":9"),
        text.replace("[8,64", "[8,128"),
        text.replace("12.5,64]", "12.5,640]"),
        text.replace("00ff", "00fe"),
        String::new(),
        "[]".into(),
    ];
    for damaged in damages {
        assert_ne!(damaged, text);
        fs::write(folder.file(), &damaged).expect("the file can be written");
        assert_eq!(TuningTable::load(&folder.file()), TuningTable::default(), "{damaged}");
    }
    fs::remove_file(folder.file()).expect("the file is there");
    assert_eq!(TuningTable::load(&folder.file()), TuningTable::default());
}

#[test]
fn an_unchanged_table_is_not_written() {
    let folder = Folder::new("unchanged");
    saved(&folder);
    let mut table = TuningTable::load(&folder.file());
    fs::remove_file(folder.file()).expect("the file is there");
    table.save(&folder.file()).expect("nothing to do");
    assert!(!folder.file().exists());
    table.insert(&KEY, choice(8));
    table.save(&folder.file()).expect("the file can be written");
    assert!(folder.file().exists());
}

#[test]
fn a_choice_serves_as_many_rows_as_it_was_compared_at() {
    assert!(choice(8).serves(8) && choice(64).serves(64));
    assert!(!Choice { compared: 8, ..choice(8) }.serves(8), "launched with 64 rows");
    let large = Choice { compared: 4096, ..choice(4096) };
    assert!(large.serves(4096) && !large.serves(4097));
    assert!(Choice { compared: 8192, ..large }.serves(8100));
    assert!(!Choice { compared: 896, ..choice(1024) }.serves(600));
}

#[test]
fn references_of_other_bits_have_another_hash() {
    let hash = |references: &[(&str, &'static str)]| {
        hash_of_references(references.iter().map(|&(key, hash)| (key.to_owned(), hash)))
    };
    let both = hash(&[("a", "1"), ("b", "2")]);
    assert_eq!(both, hash(&[("b", "2"), ("a", "1")]));
    assert_eq!(both.len(), 8);
    for other in [hash(&[("a", "1"), ("b", "3")]), hash(&[("a", "2"), ("b", "1")]), hash(&[])] {
        assert_ne!(both, other);
    }
}

#[test]
fn a_choice_that_the_bucket_cannot_have_is_not_used() {
    assert!(choice(8).is_possible());
    assert!(!Choice { launched: 4, ..choice(8) }.is_possible());
    assert!(!Choice { launched: 256, ..choice(8) }.is_possible());
    assert!(Choice { launched: 256, ..choice(256) }.is_possible());
}
