//! What a crash leaves of a disk: of the operations before it, those that were made durable, and
//! some of the others.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::crash::disk::{Op, Tree, apply_write};
use crate::crash::random::Random;

/// What becomes of operations that were not made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// All are kept: the process was killed, the machine was not.
    Killed,
    /// All are kept, and of the write under way the first bytes.
    Torn(Tear),
    /// All are lost.
    Lost,
    /// Contents are kept, names are lost.
    LostNames,
    /// Names are kept, contents are lost.
    LostContents,
    /// Names and lengths are kept, contents are zeros.
    Zeroed,
    /// Some are kept and some are lost, the earlier ones no more likely than the later.
    Reordered(u64),
}

/// Where a write is torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tear {
    AfterFirstByte,
    Half,
    BeforeLastByte,
    AtSector(u64),
}

impl Tear {
    fn kept(self, length: usize) -> usize {
        match self {
            Tear::AfterFirstByte => 1.min(length),
            Tear::Half => length / 2,
            Tear::BeforeLastByte => length.saturating_sub(1),
            Tear::AtSector(seed) => (seed as usize % (length / 512 + 1)) * 512,
        }
    }
}

/// Every model, for one place in a log.
pub fn models(seed: u64) -> Vec<Model> {
    let tears = [Tear::AfterFirstByte, Tear::Half, Tear::BeforeLastByte, Tear::AtSector(seed)];
    let mut models = vec![
        Model::Killed,
        Model::Lost,
        Model::LostNames,
        Model::LostContents,
        Model::Zeroed,
        Model::Reordered(seed),
        Model::Reordered(seed ^ 0x5555),
        Model::Reordered(seed.wrapping_mul(3)),
    ];
    models.extend(tears.map(Model::Torn));
    models
}

/// What the next process finds after a crash before `log[at]` was done, on a disk that held `tree`
/// durably in the beginning.
pub fn after_crash(tree: &Tree, log: &[Op], at: usize, model: Model) -> Tree {
    let mut disk = Durable::new(tree);
    let mut random = Random::new(match model {
        Model::Reordered(seed) => seed ^ at as u64,
        _ => 0,
    });
    let durable = durable_ops(&log[..at]);
    for (op, is_durable) in log[..at].iter().zip(durable) {
        match op {
            _ if is_durable => disk.apply(op, true),
            Op::Create { .. } | Op::Rename { .. } | Op::Remove { .. } => {
                let is_kept = match model {
                    Model::Lost | Model::LostNames => false,
                    Model::Reordered(_) => random.below(2) == 0,
                    _ => true,
                };
                disk.apply(op, is_kept);
            }
            Op::Write { file, offset, bytes } => match model {
                Model::Lost | Model::LostContents => {}
                Model::Zeroed => disk.write(*file, *offset, &vec![0; bytes.len()]),
                Model::Reordered(_) if random.below(2) == 0 => {}
                _ => disk.write(*file, *offset, bytes),
            },
            Op::SetLength { .. } => match model {
                Model::Lost | Model::LostContents => {}
                Model::Reordered(_) if random.below(2) == 0 => {}
                _ => disk.apply(op, true),
            },
            Op::Sync { .. } | Op::SyncFolder => {}
        }
    }
    if let (Model::Torn(tear), Some(Op::Write { file, offset, bytes })) = (model, log.get(at)) {
        disk.write(*file, *offset, &bytes[..tear.kept(bytes.len())]);
    }
    disk.tree()
}

/// Which operations a later sync made durable.
fn durable_ops(log: &[Op]) -> Vec<bool> {
    let mut durable = vec![false; log.len()];
    let mut synced: BTreeMap<usize, ()> = BTreeMap::new();
    let mut names = false;
    for (index, op) in log.iter().enumerate().rev() {
        durable[index] = match op {
            Op::Sync { file } => {
                synced.insert(*file, ());
                true
            }
            Op::SyncFolder => {
                names = true;
                true
            }
            Op::Write { file, .. } | Op::SetLength { file, .. } => synced.contains_key(file),
            Op::Create { .. } | Op::Rename { .. } | Op::Remove { .. } => names,
        };
    }
    durable
}

/// Names and contents that survive.
struct Durable {
    names: BTreeMap<PathBuf, usize>,
    files: BTreeMap<usize, Vec<u8>>,
}

impl Durable {
    fn new(tree: &Tree) -> Self {
        // As `MemoryDisk::holding` numbers them.
        let names = tree.keys().cloned().zip(0..).collect();
        let files = tree.values().cloned().enumerate().collect();
        Self { names, files }
    }

    fn apply(&mut self, op: &Op, is_kept: bool) {
        match op {
            Op::Create { path, file } => {
                self.files.entry(*file).or_default();
                if is_kept {
                    self.names.insert(path.clone(), *file);
                }
            }
            Op::Write { file, offset, bytes } => self.write(*file, *offset, bytes),
            Op::SetLength { file, length } => {
                self.files.entry(*file).or_default().resize(*length as usize, 0);
            }
            Op::Rename { from, to } if is_kept => {
                if let Some(file) = self.names.remove(from) {
                    self.names.insert(to.clone(), file);
                }
            }
            Op::Remove { path } if is_kept => drop(self.names.remove(path)),
            Op::Rename { .. } | Op::Remove { .. } | Op::Sync { .. } | Op::SyncFolder => {}
        }
    }

    fn write(&mut self, file: usize, offset: u64, bytes: &[u8]) {
        apply_write(self.files.entry(file).or_default(), offset, bytes);
    }

    fn tree(self) -> Tree {
        let Self { names, files } = self;
        names
            .into_iter()
            .map(|(path, file)| (path, files.get(&file).cloned().unwrap_or_default()))
            .collect()
    }
}
