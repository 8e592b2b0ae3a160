//! `ShardSet`: the outputs of one run, each shard once, in order. What their side files say is
//! compared here; their bytes are not read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::shard_meta::read_meta;
use crate::ledger::fingerprint::Fingerprint;
use crate::ledger::meta::Meta;
use crate::ledger::plain_values;
use vllm_batch_dataset::input::compress::Compression;
use vllm_batch_dataset::input::reader::Codec;
use vllm_batch_dataset::input::sample::Sampled;
use vllm_batch_dataset::input::shard::Shard;
use vllm_batch_dataset::output::FileFormat;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// Characters shown of a value that differs.
const SHOWN_OF_VALUE: usize = 80;
/// Names shown of a long list.
const SHOWN_OF_LIST: usize = 10;

/// One output with its side file.
#[derive(Clone, Debug)]
pub struct ShardFile {
    /// As it was named.
    pub path: PathBuf,
    /// What its run left.
    pub meta: Meta,
    /// How its rows are compressed, if they are.
    pub codec: Option<Codec>,
}

impl ShardFile {
    /// Reads the side file of an output that is there.
    ///
    /// # Errors
    /// One of them is missing or no such file.
    pub fn read(path: &Path) -> Result<Self, CliError> {
        let unreadable = |what: String| {
            let message = format!("cannot read {}: {what}", path.display());
            CliError::refused("input", message).help_of_file("check the names of the shards")
        };
        let found = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        if !found.is_file() {
            return Err(unreadable(
                if found.is_dir() { "it is a folder" } else { "it is no file" }.to_owned(),
            ));
        }
        let meta = read_meta(path)?;
        let codec = codec_of(path, &meta.compression)?;
        let shard = Self { path: path.to_owned(), meta, codec };
        shard.check_kind()?;
        shard.check_length(found.len())?;
        Ok(shard)
    }

    /// The file of errors of a shard; `meta` says of it what the shard's says of the shard.
    ///
    /// # Errors
    /// It is not there, or not as its run left it.
    pub fn of_errors(path: PathBuf, meta: Meta) -> Result<Self, CliError> {
        let codec = codec_of(&path, Compression::from_path(&path).name())?;
        let found = std::fs::metadata(&path).map_err(|error| {
            let message = format!("cannot read {}: {error}", path.display());
            CliError::refused("input", message)
                .help_of_file("it has the error rows of a matrix; put it beside the shard")
        })?;
        let file = Self { path, meta, codec };
        file.check_length(found.len())?;
        Ok(file)
    }

    /// As messages name it.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Refuses outputs whose rows are not all in it.
    fn check_kind(&self) -> Result<(), CliError> {
        let Meta { errors, rows, output, .. } = &self.meta;
        let name = self.name();
        if let Some(errors) = errors.as_ref().filter(|_| self.meta.format != FileFormat::Npy) {
            let message = format!(
                "{name} was made with --errors: its {} error rows are in {}, not in their places",
                errors.facts.rows, errors.path
            );
            return Err(CliError::refused("shard_errors", message)
                .help("run the shards without --errors; then error rows are among the others"));
        }
        if rows.total != output.rows {
            let (total, written) = (rows.total, output.rows);
            let message = format!("{name}: {total} rows were done and {written} written");
            return Err(CliError::refused("bad_meta", message).help("run the shard again"));
        }
        Ok(())
    }

    fn check_length(&self, length: u64) -> Result<(), CliError> {
        let left = self.meta.output.bytes;
        match length == left {
            true => Ok(()),
            false => Err(self.changed(&format!("has {length} bytes, its run left {left}"))),
        }
    }

    /// Compares the hash of its bytes with that of what its run left.
    ///
    /// # Errors
    /// They differ.
    pub fn check_hash(&self, hash: &str) -> Result<(), CliError> {
        let left = &self.meta.output.blake3;
        match hash.eq_ignore_ascii_case(left) {
            true => Ok(()),
            false => Err(self.changed(&format!("has the checksum {hash}, its run left {left}"))),
        }
    }

    /// The error of a shard whose bytes are not what its run left.
    pub fn changed(&self, how: &str) -> CliError {
        let message = format!("{} {how}: it was edited or cut", self.name());
        let help = format!("run shard {} again, or copy it again", self.meta.shard);
        CliError::new(Exit::OutputExists, "shard_changed", message).help(help)
    }
}

/// What the side file's word for it means.
fn codec_of(path: &Path, word: &str) -> Result<Option<Codec>, CliError> {
    if word == "none" {
        return Ok(None);
    }
    let known = [Codec::Gzip, Codec::Zstd].into_iter().find(|codec| codec.name() == word);
    known.map(Some).ok_or_else(|| {
        let message = format!("{}: this program does not know {word}", path.display());
        CliError::refused("shard_compressed", message)
            .help("use the version of vllm-batch that wrote it")
    })
}

/// The outputs of one run, each shard once, by index.
#[derive(Debug)]
pub struct ShardSet {
    /// At least one.
    pub files: Vec<ShardFile>,
    /// Rows of all of them.
    pub num_rows: u64,
}

impl ShardSet {
    /// Orders the shards and compares what their side files say.
    ///
    /// # Errors
    /// A shard is missing or twice there; they are not of one run, or not whole.
    pub fn new(mut files: Vec<ShardFile>) -> Result<Self, CliError> {
        files.sort_by_key(|file| file.meta.shard.index);
        check_indexes(&files)?;
        let first = &files[0];
        for other in &files[1..] {
            let differences = differences(&first.meta, &other.meta);
            if !differences.is_empty() {
                return Err(other_run(first, other, &differences));
            }
        }
        let limit = first.meta.limit.unwrap_or(u64::MAX);
        let num_rows = first.meta.input.rows.min(limit);
        for file in &files {
            let (shard, found) = (file.meta.shard, file.meta.output.rows);
            let wanted = shard.num_rows(num_rows);
            if found != wanted {
                let name = file.name();
                let message = format!(
                    "{name} has {found} rows, shard {shard} of {num_rows} rows has {wanted}"
                );
                return Err(CliError::new(Exit::OutputExists, "shard_rows", message)
                    .help("run the shard again"));
            }
        }
        Ok(Self { files, num_rows })
    }

    /// What the first shard's side file says, and with it all of them.
    pub fn meta(&self) -> &Meta {
        &self.files[0].meta
    }
}

/// Each index of one count exactly once. `files` are in order of their indexes.
fn check_indexes(files: &[ShardFile]) -> Result<(), CliError> {
    let Some(first) = files.first() else {
        return Err(CliError::refused("shard_missing", "no shards"));
    };
    let count = first.meta.shard.count;
    if let Some(other) = files.iter().find(|file| file.meta.shard.count != count) {
        let message = format!(
            "{} is shard {}, {} is shard {}",
            first.name(),
            first.meta.shard,
            other.name(),
            other.meta.shard
        );
        return Err(CliError::new(Exit::OutputExists, "other_run", message)
            .help("give the shards of one run, made with the same N of --shard I/N"));
    }
    let twice = files.windows(2).find(|pair| pair[0].meta.shard == pair[1].meta.shard);
    if let Some([one, other]) = twice {
        let message =
            format!("{} and {} are both shard {}", one.name(), other.name(), one.meta.shard);
        return Err(CliError::refused("shard_twice", message).help("leave one of them out"));
    }
    if files.len() as u64 == count {
        return Ok(());
    }
    let present: BTreeSet<u64> = files.iter().map(|file| file.meta.shard.index).collect();
    let absent = (0..count).filter(|index| !present.contains(index)).take(SHOWN_OF_LIST);
    let mut names: Vec<_> = absent.map(|index| Shard { index, count }.to_string()).collect();
    let more = count - present.len() as u64 - names.len() as u64;
    if more > 0 {
        names.push(format!("{more} more"));
    }
    let message = format!("missing: shard {}", names.join(", "));
    Err(CliError::refused("shard_missing", message).help("give the outputs of all shards"))
}

fn other_run(first: &ShardFile, other: &ShardFile, differences: &[String]) -> CliError {
    let (first, other) = (first.name(), other.name());
    let list = differences.join("\n  ");
    let message = format!("{first} and {other} are not of one run:\n  {list}");
    CliError::new(Exit::OutputExists, "other_run", message)
        .help("run all shards over the same input with the same model and flags")
}

/// What shards of one run have in common and these do not.
fn differences(one: &Meta, other: &Meta) -> Vec<String> {
    let mut found = fingerprint_differences(&one.fingerprint, &other.fingerprint);
    let mut differ = |name: &str, one: String, other: String| {
        if one != other {
            found.push(format!("{name}: {one} and {other}"));
        }
    };
    let (input, others) = (&one.input, &other.input);
    differ("rows of the input", input.rows.to_string(), others.rows.to_string());
    let content =
        |input: &crate::ledger::meta::InputFacts| format!("{} ({})", input.digest, input.path);
    if input.digest != others.digest {
        differ("content of the input", content(input), content(others));
    }
    let limit = |limit: Option<u64>| limit.map_or("none".to_owned(), |limit| limit.to_string());
    differ("--limit", limit(one.limit), limit(other.limit));
    let sample = |meta: &Meta| match meta.sample {
        None => "none".to_owned(),
        Some(Sampled { rows, seed, of }) => format!("{rows} of {of} rows, seed {seed}"),
    };
    differ("--sample", sample(one), sample(other));
    let format = |meta: &Meta| meta.format.name().to_owned();
    differ("format", format(one), format(other));
    found
}

fn fingerprint_differences(one: &Fingerprint, other: &Fingerprint) -> Vec<String> {
    let shown = |name: &str, text: Option<&String>| {
        let Some(text) = text else { return "nothing".to_owned() };
        let text = match plain_values::value(name, text) {
            Value::String(text) => text,
            value => value.to_string(),
        };
        match text.char_indices().nth(SHOWN_OF_VALUE) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        }
    };
    let names: BTreeSet<&String> = one.fields.keys().chain(other.fields.keys()).collect();
    let values = names.into_iter().map(|name| (name, one.fields.get(name), other.fields.get(name)));
    let mut found: Vec<String> = values
        .filter(|(name, one, other)| {
            let value = |text: &String| plain_values::value(name, text);
            one.map(value) != other.map(value)
        })
        .map(|(name, one, other)| {
            format!("{name}: {} and {}", shown(name, one), shown(name, other))
        })
        .collect();
    if found.is_empty() && one.id != other.id {
        found.push(format!("fingerprint: {} and {}", one.id, other.id));
    }
    found
}
