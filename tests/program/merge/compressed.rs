//! Compressed shards, compressed outputs, and both: to the byte what one run writes.

use std::fs;

use serde_json::json;
use vllm_batch::cli::input::compress::Compression;

use crate::merge::{Random, Run, assert_exit, csv, hash};

/// What an output gathers before it compresses, up to the end of a row.
const MEMBER: usize = 1 << 20;

const KINDS: [(&str, Compression); 3] =
    [("", Compression::None), (".gz", Compression::Gzip), (".zst", Compression::Zstd)];

fn encoded(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    compression.encode(bytes, &mut out);
    out
}

impl Run {
    /// What one run writes to an output of this kind.
    fn whole_as(&self, compression: Compression) -> Vec<u8> {
        if compression == Compression::None {
            return self.whole.clone();
        }
        let (mut out, mut member) = (Vec::new(), Vec::new());
        if !self.records.is_empty() {
            member.extend(self.header.as_bytes());
        }
        for record in &self.records {
            member.extend(record.as_bytes());
            if member.len() >= MEMBER {
                compression.encode(&member, &mut out);
                member.clear();
            }
        }
        if out.is_empty() || !member.is_empty() {
            compression.encode(&member, &mut out);
        }
        out
    }

    /// Compresses a shard, in members that end anywhere.
    fn compress(&mut self, index: usize, kind: (&str, Compression), random: &mut Random) {
        let (suffix, compression) = kind;
        let old = self.shards[index].clone();
        let (bytes, meta) = (self.read(&old), self.read_meta(&old));
        let cut = random.below(bytes.len() as u64 + 1);
        let members = [&bytes[..cut], &bytes[cut..]];
        let members = if random.below(2) == 0 { &members[..] } else { &[&bytes[..]] };
        let bytes: Vec<u8> = members.iter().flat_map(|part| encoded(compression, part)).collect();
        let name = format!("{old}{suffix}");
        self.write(&name, &bytes);
        self.write_meta(&name, &meta);
        self.change_rows(&name, &bytes);
        self.change_meta(&name, |meta| meta["compression"] = json!(compression.name()));
        if name != old {
            fs::remove_file(self.path(&old)).unwrap();
        }
        self.shards[index] = name;
    }

    /// All shards to one output, which is compared.
    #[track_caller]
    fn check(&self, flags: &[&str]) {
        let shards: Vec<&str> = self.shards.iter().map(String::as_str).collect();
        for (suffix, compression) in KINDS {
            let out = format!("out{suffix}");
            let flags = [&["--out", &out, "--overwrite"], flags].concat();
            assert_exit(&self.merge_of(&shards, &flags), 0);
            let (found, expected) = (self.read(&out), self.whole_as(compression));
            let (num_found, num_expected) = (found.len(), expected.len());
            assert!(found == expected, "{out}: {num_found} bytes, not {num_expected} as expected");
            let meta = self.read_meta(&out);
            assert_eq!(meta["compression"], compression.name());
            let facts = json!({
                "rows": self.records.len(), "bytes": expected.len(), "blake3": hash(&expected),
            });
            assert_eq!(meta["output"], facts);
        }
    }
}

#[test]
fn shards_and_output_are_compressed_each_as_it_is_named() {
    let mut random = Random(5);
    for case in 0..24 {
        let (rows, count) = (random.below(20), 1 + random.below(5));
        let mut run = match case % 2 {
            0 => Run::jsonl(rows, count),
            _ => csv(rows, count, &mut random),
        };
        for index in 0..count {
            let kind = KINDS[if case < 6 { case % 3 } else { random.below(3) }];
            run.compress(index, kind, &mut random);
        }
        run.check(if random.below(2) == 0 { &["--verify"] } else { &[] });
    }
}

#[test]
fn members_end_where_those_of_one_run_end() {
    let mut random = Random(9);
    let mut record = |row: usize| {
        let length = [40, 3_000, 70_000, MEMBER + 5][random.below(4) / (1 + row % 2)];
        let text: String = (0..length).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
        format!("{row},{text}\n")
    };
    let records: Vec<String> = (0..60).map(&mut record).collect();
    let total: usize = records.iter().map(String::len).sum();
    assert!(total > 4 * MEMBER, "{total} bytes");
    let mut run = Run::new("csv", "id,response\n", &records, 3);
    run.check(&["--verify"]);
    for (index, kind) in KINDS.into_iter().enumerate() {
        run.compress(index, kind, &mut random);
    }
    run.check(&["--verify"]);
}

#[test]
fn a_merged_output_is_the_shard_of_a_run_of_one() {
    let mut run = Run::jsonl(9, 3);
    run.compress(1, KINDS[1], &mut Random(1));
    let shards: Vec<&str> = run.shards.iter().map(String::as_str).collect();
    assert_exit(&run.merge_of(&shards, &["--out", "all.zst", "--verify"]), 0);
    assert_exit(&run.merge_of(&["all.zst"], &["--out", "again", "--verify"]), 0);
    assert_eq!(run.read("again"), run.whole);
}

#[test]
fn every_damaged_byte_of_a_compressed_shard_is_found() {
    for kind in &KINDS[1..] {
        let mut run = Run::jsonl(5, 2);
        run.compress(1, *kind, &mut Random(2));
        let name = run.shards[1].clone();
        let bytes = run.read(&name);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            run.write(&name, &damaged);
            let wanted = format!("error[shard_changed]: {name} ");
            run.assert_refused(&run.merge(&["--verify"]), 6, &[&wanted]);
        }
    }
}

#[test]
fn cut_and_extended_shards_are_found_without_verify() {
    for (suffix, compression) in &KINDS[1..] {
        let mut run = Run::jsonl(9, 3);
        run.compress(2, (suffix, Compression::None), &mut Random(2));
        let name = run.shards[2].clone();
        run.change_meta(&name, |meta| meta["compression"] = json!(compression.name()));
        let plain = run.read(&name);
        let codec = compression.name();
        let refused = |bytes: &[u8], wanted: &str| {
            run.change_rows(&name, bytes);
            let wanted = format!("error[shard_changed]: {name} {wanted}");
            run.assert_refused(&run.merge(&["--verify"]), 6, &[&wanted]);
            run.assert_refused(&run.merge(&[]), 6, &[&wanted]);
        };
        // Side files that were made to fit each.
        refused(&plain, &format!("cannot be decoded (the {codec} data is "));
        refused(b"", &format!("cannot be decoded (the {codec} data is cut off)"));
        let whole = encoded(*compression, &plain);
        let cut = &whole[..whole.len() - 1];
        refused(cut, &format!("cannot be decoded (the {codec} data is cut off)"));
        let rows: Vec<&[u8]> = plain.split_inclusive(|byte| *byte == b'\n').collect();
        refused(&encoded(*compression, &rows[..2].concat()), "has 2 rows, its run left 3");
        let more = [&whole[..], &encoded(*compression, b"{}\n")].concat();
        refused(&more, "has more than the 3 rows of its run");
        refused(&encoded(*compression, &plain[..plain.len() - 1]), "does not end with a line end");
        let garbage = [&whole[..], b"garbage"].concat();
        refused(&garbage, "cannot be decoded (the ");
    }
}

#[test]
fn bytes_that_no_row_needs_count_for_the_checksum() {
    let mut run = Run::jsonl(5, 2);
    run.compress(1, KINDS[1], &mut Random(2));
    let name = run.shards[1].clone();
    let padded = [&run.read(&name)[..], &[0; 200_000]].concat();
    run.write(&name, &padded);
    run.change_meta(&name, |meta| meta["output"]["bytes"] = json!(padded.len()));
    run.assert_refused(&run.merge(&["--verify"]), 6, &["has the checksum "]);
    // Padding, as block devices leave it, holds no row.
    run.assert_whole(&run.merge(&[]));
}
