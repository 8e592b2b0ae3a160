//! The algorithms that tuning chose, kept on disk. A cache: whatever is odd about a file, it is
//! ignored and tuned anew.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::buckets;
use super::key::GemmKey;
use crate::cuda::disk_cache::{Hasher, write_whole};

/// Changes with the choice of the reference algorithm, and so with the bits of the results.
const RULES: u32 = 2;

/// cuBLASLt's description of an algorithm. Opaque, and of one version of cuBLASLt.
pub(super) type Algorithm = [u64; 8];

/// Launch of the GEMMs of one bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The bucket, as `buckets::bucket` gives it.
    pub bucket: usize,
    /// A small bucket is launched with this many rows, of which the first `bucket` matter.
    pub launched: usize,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Time of a launch when it was tuned.
    pub micros: f64,
    /// It was compared with the reference at every launch of the bucket up to this many rows.
    pub compared: usize,
}

impl Choice {
    /// Whether callers have room for the rows that it launches.
    pub fn is_possible(&self) -> bool {
        self.launched == self.bucket
            || (self.bucket..=buckets::MAX_PADDING).contains(&self.launched)
    }

    /// Whether every launch of it, in GEMMs of up to `max_rows` rows, was compared.
    pub fn serves(&self, max_rows: usize) -> bool {
        let last = match buckets::is_small(self.bucket) {
            true => self.launched,
            false => buckets::last_compared(self.bucket, max_rows),
        };
        self.is_possible() && self.compared >= last
    }
}

/// A `Choice` in the file: bucket, launched, the algorithm in hexadecimal, microseconds, rows up to
/// which it was compared.
type Record = (usize, usize, String, f64, usize);

/// Choices by GEMM, for one device and one version of cuBLASLt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TuningTable {
    rules: u32,
    device: String,
    cublas_version: usize,
    entries: BTreeMap<String, Vec<Record>>,
    /// Hashes of the bits of each GEMM's reference.
    references: BTreeMap<String, String>,
    /// Over everything above: an edited file could name an algorithm that gives other bits.
    checksum: String,
    #[serde(skip)]
    is_changed: bool,
}

impl TuningTable {
    /// The table in a file. Empty where there is none, or it is damaged.
    pub fn load(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let table: Self = serde_json::from_str(&text).unwrap_or_default();
        let is_sound = table.rules == RULES && table.checksum == table.compute_checksum();
        if is_sound { table } else { Self::default() }
    }

    /// Writes the table to a file, which is never seen half written. Nothing is done for a table
    /// that holds what was loaded.
    pub fn save(&mut self, path: &Path) -> io::Result<()> {
        if !self.is_changed {
            return Ok(());
        }
        self.checksum = self.compute_checksum();
        let written = write_whole(path, &serde_json::to_vec(self)?);
        self.is_changed = written.is_err();
        written
    }

    /// Drops everything that another device or another cuBLASLt chose.
    pub fn use_for(&mut self, device: &str, cublas_version: usize) {
        if self.device != device || self.cublas_version != cublas_version {
            *self = Self { rules: RULES, device: device.into(), cublas_version, ..Self::default() };
        }
    }

    /// The choice for a bucket.
    pub fn get(&self, key: &GemmKey, bucket: usize) -> Option<Choice> {
        let records = self.entries.get(&key.to_string())?;
        let record = records.iter().find(|record| record.0 == bucket)?;
        let &(bucket, launched, ref hex, micros, compared) = record;
        let algorithm = parse_hex(hex)?;
        Some(Choice { bucket, launched, algorithm, micros, compared })
    }

    /// The hash of the reference's bits.
    pub fn reference(&self, key: &GemmKey) -> Option<&str> {
        self.references.get(&key.to_string()).map(String::as_str)
    }

    /// Notes the hash of the reference's bits.
    pub fn set_reference(&mut self, key: &GemmKey, hash: String) {
        self.references.insert(key.to_string(), hash);
        self.is_changed = true;
    }

    /// Adds or replaces the choice for a bucket.
    pub fn insert(&mut self, key: &GemmKey, choice: Choice) {
        let Choice { bucket, launched, algorithm, micros, compared } = choice;
        let hex = algorithm.iter().map(|word| format!("{word:016x}")).collect();
        let records = self.entries.entry(key.to_string()).or_default();
        records.retain(|record| record.0 != bucket);
        records.push((bucket, launched, hex, micros, compared));
        records.sort_by_key(|record| record.0);
        self.is_changed = true;
    }

    /// Forgets a GEMM.
    pub fn remove(&mut self, key: &GemmKey) {
        self.is_changed |= self.entries.remove(&key.to_string()).is_some();
        self.is_changed |= self.references.remove(&key.to_string()).is_some();
    }

    fn compute_checksum(&self) -> String {
        let mut hasher = Hasher::default();
        hasher.field(format!("{} {}", self.rules, self.cublas_version).as_bytes());
        hasher.field(self.device.as_bytes());
        for (key, records) in &self.entries {
            hasher.field(key.as_bytes());
            for (bucket, launched, hex, _, compared) in records {
                hasher.field(format!("{bucket} {launched} {hex} {compared}").as_bytes());
            }
        }
        for (key, hash) in &self.references {
            hasher.field(key.as_bytes()).field(hash.as_bytes());
        }
        format!("{:032x}", hasher.finish())
    }
}

/// One hash of the references of some GEMMs, in whatever order they come: eight digits that tell
/// apart devices and libraries that do not give the same bits.
pub fn hash_of_references<'a>(references: impl Iterator<Item = (String, &'a str)>) -> String {
    let mut hasher = Hasher::default();
    for (key, hash) in references.collect::<BTreeMap<_, _>>() {
        hasher.field(key.as_bytes()).field(hash.as_bytes());
    }
    format!("{:08x}", hasher.finish() as u32)
}

fn parse_hex(hex: &str) -> Option<Algorithm> {
    let mut algorithm = Algorithm::default();
    if hex.len() != 16 * algorithm.len() {
        return None;
    }
    for (index, word) in algorithm.iter_mut().enumerate() {
        *word = u64::from_str_radix(hex.get(16 * index..16 * (index + 1))?, 16).ok()?;
    }
    Some(algorithm)
}
