//! A run of made-up rows through the ledger, as the threads of a real run drive it, but on one
//! thread and in an order that a seed decides.

use std::path::PathBuf;
use std::sync::Arc;

use vllm_batch::cli::input::shard::Shard;
use vllm_batch::cli::ledger::fingerprint::Fingerprint;
use vllm_batch::cli::ledger::meta::{InputFacts, Meta, NamedFile, RowCounts, TokenCounts};
use vllm_batch::cli::ledger::record::Header;
use vllm_batch::cli::ledger::storage::Storage;
use vllm_batch::cli::ledger::{
    Finished, Ledger, LedgerError, LedgerOptions, LockedOutput, Recovered, RowHash, Totals,
};
use vllm_batch::cli::output::FileFormat;
use vllm_batch::cli::output::parquet::{Table, TableSpec};

use crate::crash::disk::{MemoryDisk, Tree};
use crate::crash::random::Random;

pub const OUT: &str = "/simulated/out.jsonl";
pub const ERRORS: &str = "/simulated/errors.jsonl";

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub num_rows: u64,
    /// Decides the order in which rows finish, and when they are flushed and synced.
    pub seed: u64,
    /// Error rows go to a file of their own.
    pub splits_errors: bool,
    /// The output is a Parquet file.
    pub is_table: bool,
    /// The output may replace one that is there (`--overwrite` of the first run).
    pub replaces: bool,
}

/// How a run went that came to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Rows that were computed.
    pub num_computed: u64,
    /// The output was complete already.
    pub had_nothing_to_do: bool,
}

impl Job {
    fn row(&self, position: u64) -> Vec<u8> {
        let mut random = Random::new(position ^ 0xABCD);
        let length = match random.below(8) {
            0 => 2000 + random.below(2000),
            _ => random.below(200),
        };
        let text: String =
            (0..length).map(|i| char::from(b'a' + ((i ^ position) % 26) as u8)).collect();
        format!("{{\"id\":{position},\"response\":\"{text}\"}}\n").into_bytes()
    }

    fn hash(&self, position: u64) -> RowHash {
        let mut bytes = [7; 16];
        bytes[..8].copy_from_slice(&position.to_le_bytes());
        RowHash(bytes)
    }

    fn is_error(&self, position: u64) -> bool {
        position % 11 == 3
    }

    /// The files of a run that nothing disturbed, without its side file.
    pub fn expected(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let rows = |wanted: &dyn Fn(u64) -> bool| {
            (0..self.num_rows).filter(|p| wanted(*p)).flat_map(|p| self.row(p)).collect::<Vec<u8>>()
        };
        let out = |wanted: &dyn Fn(u64) -> bool| match self.is_table {
            true => self.table_of(&rows(wanted)),
            false => rows(wanted),
        };
        match self.splits_errors {
            false => vec![(OUT.into(), out(&|_| true))],
            true => vec![
                (OUT.into(), out(&|p| !self.is_error(p))),
                (ERRORS.into(), rows(&|p| self.is_error(p))),
            ],
        }
    }

    fn table(&self) -> Table {
        Table::new(Arc::new(TableSpec::default()), Shard::default())
    }

    fn table_of(&self, rows: &[u8]) -> Vec<u8> {
        let mut table = self.table();
        let rows = || rows.split_inclusive(|byte| *byte == b'\n');
        rows().for_each(|row| table.look_at(row));
        let mut writer = table.writer().expect("types that exist");
        rows().for_each(|row| writer.add(row).expect("values of their types"));
        writer.finish().expect("into memory")
    }

    /// Runs on a disk, or continues what is there.
    pub fn run(&self, disk: &MemoryDisk, overwrite: bool) -> Result<Done, LedgerError> {
        self.run_in(Arc::new(disk.clone()), OUT.into(), overwrite)
    }

    /// The same with any files.
    pub fn run_in(
        &self,
        files: Arc<dyn Storage>,
        out: PathBuf,
        overwrite: bool,
    ) -> Result<Done, LedgerError> {
        let options = LedgerOptions {
            out: Some(out),
            errors: self.splits_errors.then(|| ERRORS.into()),
            overwrite,
            ..LedgerOptions::default()
        };
        let locked = LockedOutput::open(files, options)?;
        if locked.complete().is_some() {
            return Ok(Done { num_computed: 0, had_nothing_to_do: true });
        }
        let fields = [("model".to_owned(), "m".to_owned())].into();
        let fingerprint = Fingerprint::new(fields);
        let header = Header { started: 5, replaces: overwrite, keeps: false, fingerprint };
        let (mut ledger, mut recovered) = locked.begin(header)?;
        if self.is_table {
            ledger.begin_table(self.table());
        }
        match self.drive(&mut ledger, recovered.as_mut()) {
            Ok(num_computed) => {
                ledger.finish(|totals| self.side_text(totals))?;
                Ok(Done { num_computed, had_nothing_to_do: false })
            }
            Err(error) => {
                ledger.rescue();
                Err(error)
            }
        }
    }

    /// Lets rows finish in a random order within a window.
    fn drive(
        &self,
        ledger: &mut Ledger,
        mut recovered: Option<&mut Recovered>,
    ) -> Result<u64, LedgerError> {
        let mut random = Random::new(self.seed);
        let (mut next, mut num_computed) = (0, 0);
        let mut flying: Vec<u64> = Vec::new();
        while next < self.num_rows || !flying.is_empty() {
            if next < self.num_rows && flying.len() < 8 {
                let found = recovered.as_mut().map(|r| r.find(next, &self.hash(next)));
                match found.transpose().map_err(|error| LedgerError::of("read", error))? {
                    Some(Some(reused)) => ledger.reuse(next, &reused)?,
                    _ => flying.push(next),
                }
                next += 1;
                continue;
            }
            let position = flying.swap_remove(random.below(flying.len() as u64) as usize);
            num_computed += 1;
            ledger.push(Finished {
                position,
                hash: self.hash(position),
                code: self.is_error(position).then_some("made_up"),
                input_tokens: 3,
                output_tokens: 4,
                row: self.row(position),
                // What is in them does not matter here.
                media: vec![7; if position.is_multiple_of(3) { 40 } else { 0 }],
            })?;
            if random.below(8) > 0 {
                ledger.flush()?;
            }
            if random.below(9) == 0 {
                ledger.sync()?;
            }
        }
        Ok(num_computed)
    }

    fn side_text(&self, totals: &Totals) -> String {
        let errors = totals.errors.clone();
        let meta = Meta {
            schema: 1,
            tool: "vllm-batch".into(),
            version: "0".into(),
            started: "then".into(),
            finished: "now".into(),
            resumes: totals.num_resumes,
            rows: RowCounts { total: self.num_rows, ..RowCounts::default() },
            tokens: TokenCounts::default(),
            input: InputFacts::default(),
            output: totals.output.clone().into(),
            errors: errors.map(|facts| NamedFile { path: ERRORS.into(), facts: facts.into() }),
            format: FileFormat::Jsonl,
            compression: "none".into(),
            model: None,
            fingerprint: Fingerprint::default(),
            shard: Shard::default(),
            limit: None,
            sample: None,
        };
        serde_json::to_string(&meta).expect("plain values")
    }

    /// Fails unless a disk holds exactly what a run leaves that nothing disturbed.
    #[track_caller]
    pub fn assert_complete(&self, tree: &Tree, what: &dyn Fn() -> String) {
        let expected = self.expected();
        for (path, bytes) in &expected {
            let found = tree.get(path).unwrap_or_else(|| panic!("{}: no {path:?}", what()));
            assert!(found == bytes, "{}: {path:?} differs", what());
        }
        let side_file = PathBuf::from(format!("{OUT}.meta.json"));
        let text = tree.get(&side_file).unwrap_or_else(|| panic!("{}: no side file", what()));
        let meta: Meta = serde_json::from_slice(text).unwrap_or_else(|e| panic!("{}: {e}", what()));
        assert_eq!(meta.output.bytes, expected[0].1.len() as u64, "{}", what());
        assert_eq!(tree.len(), expected.len() + 1, "{}: {:?}", what(), tree.keys());
    }
}
