//! Matrix products by cuBLASLt whose rows do not depend on each other: for one `GemmKey`, one
//! device and one version of cuBLASLt, a row of the result has the same bits whatever the number of
//! rows and wherever it stands. Algorithms are pinned to those that give the bits of one reference,
//! and chosen by time among them (`tuning`); the choices are kept on disk (`TuningTable`).
//!
//! Knows raw streams and addresses of the current CUDA context, no tensor and no model.

mod adversary;
mod buckets;
mod error;
mod handle;
mod key;
mod operation;
mod table;
#[cfg(test)]
mod tests;
mod trial;
mod tuning;

use std::collections::{BTreeMap, HashMap};

use cudarc::cublaslt::sys::cublasLtGetVersion;
use cudarc::driver::sys::{CUfunction, CUstream};

use handle::Handle;
use operation::{Backend, NO_REDUCTION, Operation, Rows};
pub use table::hash_of_references;
use table::{Algorithm, Choice};
use trial::{REFERENCE_ROWS, Trial};

pub use adversary::Random;
pub use buckets::{launched_rows, padded_rows};
pub use error::GemmError;
pub use key::{GemmKey, GemmType};
pub use table::TuningTable;

/// Bytes of device memory that GEMMs of one stream need beside their operands. What cuBLASLt offers
/// depends on it, so it is no setting.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// Bytes that divide the addresses of all operands, and the rows of x, w and out in bytes.
pub const ALIGNMENT: u32 = 16;

/// Addresses on the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operands {
    /// (padded_rows(m), k)
    pub x: u64,
    /// (n, k)
    pub w: u64,
    /// (n), of the output's type, where the key has a bias.
    pub bias: Option<u64>,
    /// f32 (padded_rows(m)) of x and f32 (n) of w, where the input is FP8.
    pub scales: Option<(u64, u64)>,
    /// (padded_rows(m), n). Rows past m are overwritten.
    pub out: u64,
}

/// Prepared GEMMs of one stream.
pub struct Gemm {
    backend: Backend,
    device: String,
    cublas_version: usize,
    plans: HashMap<GemmKey, Plan>,
}

// SAFETY: cuBLASLt ties nothing to the thread that created it; the thread that calls must have the
// CUDA context current, as for any address of the device. `Gemm` is not `Sync`.
unsafe impl Send for Gemm {}

/// A GEMM's launches, by rows upward.
struct Plan {
    operation: Operation,
    launches: Vec<Launch>,
    /// The hash of the reference's bits.
    reference: String,
}

struct Launch {
    /// Up to this many rows.
    max_rows: usize,
    rows: Rows,
    algorithm: Algorithm,
}

/// The version of cuBLASLt that is loaded, as 130100.
pub fn cublas_version() -> usize {
    // SAFETY: takes nothing and only reads a constant.
    unsafe { cublasLtGetVersion() }
}

impl Gemm {
    /// Takes a stream of the current context, `workspace_bytes` of device memory that nothing else
    /// in the stream uses while a GEMM runs, the device's name, and the kernel of
    /// `kernels/count_mismatches.cu`, which tuning compares results with.
    pub fn new(
        stream: CUstream,
        (workspace, workspace_bytes): (u64, usize),
        device: &str,
        count_mismatches: CUfunction,
    ) -> Result<Self, GemmError> {
        if workspace_bytes < WORKSPACE_BYTES {
            return Err(GemmError::Workspace { bytes: workspace_bytes });
        }
        Ok(Self {
            backend: Backend { handle: Handle::new()?, stream, workspace, count_mismatches },
            device: device.into(),
            cublas_version: cublas_version(),
            plans: HashMap::new(),
        })
    }

    /// Makes `matmul` ready for up to `max_rows` rows of this GEMM. Buckets that the table does not
    /// have are tuned, which waits for the device and allocates x, w and out of its own, and are
    /// added to it.
    pub fn prepare(
        &mut self,
        key: GemmKey,
        max_rows: usize,
        table: &mut TuningTable,
    ) -> Result<(), GemmError> {
        let ready = self.plans.get(&key).and_then(|plan| plan.launches.last());
        if ready.is_some_and(|launch| launch.max_rows >= max_rows) {
            return Ok(());
        }
        table.use_for(&self.device, self.cublas_version);
        let known = self.tabulated(key, max_rows, table);
        let plan = match known.and_then(|known| self.plan(key, max_rows, known)) {
            Ok(plan) => plan,
            // What is missing or refused could be told apart, but tuning takes a second.
            Err(GemmError::NoAlgorithm { .. }) => {
                table.remove(&key);
                let buckets = buckets::buckets(max_rows);
                let last = buckets[buckets.len() - 1];
                let last = buckets::last_compared(last, max_rows);
                let trial = Trial::new(&self.backend, key, last)?;
                let choices = tuning::tune(&trial, &buckets)?;
                let reference = trial.reference_hash()?;
                choices.iter().for_each(|&choice| table.insert(&key, choice));
                table.set_reference(&key, reference.clone());
                self.plan(key, max_rows, (choices, reference))?
            }
            Err(error) => return Err(error),
        };
        self.plans.insert(key, plan);
        Ok(())
    }

    /// The table's choices for every bucket, and the hash of the reference's bits.
    fn tabulated(
        &self,
        key: GemmKey,
        max_rows: usize,
        table: &TuningTable,
    ) -> Result<(Vec<Choice>, String), GemmError> {
        let choice = |bucket| table.get(&key, bucket).filter(|choice| choice.serves(max_rows));
        let choices = buckets::buckets(max_rows)
            .into_iter()
            .map(|bucket| choice(bucket).ok_or(GemmError::NoAlgorithm { key, rows: bucket }))
            .collect::<Result<_, _>>()?;
        let missing = GemmError::NoAlgorithm { key, rows: REFERENCE_ROWS };
        Ok((choices, table.reference(&key).ok_or(missing)?.to_owned()))
    }

    /// The GEMM, ready to be asked about algorithms. Without vectors to point at, cuBLASLt refuses
    /// what it would accept with them; nothing is read from where it points now.
    fn operation(&self, key: GemmKey) -> Result<Operation, GemmError> {
        let operation = Operation::new(key)?;
        let placeholder = self.backend.workspace;
        let scales = Some((placeholder, placeholder));
        operation.bind(&Operands { bias: Some(placeholder), scales, ..Operands::default() })?;
        Ok(operation)
    }

    /// Whether cuBLASLt has an algorithm for this GEMM on this device.
    pub fn has(&self, key: GemmKey) -> bool {
        let offered = || {
            let operation = self.operation(key)?;
            operation.heuristic(&self.backend, &operation.rows(REFERENCE_ROWS)?, NO_REDUCTION)
        };
        offered().is_ok_and(|algorithms| !algorithms.is_empty())
    }

    /// The bits of the references of all GEMMs that are prepared, by their shapes.
    pub fn references(&self) -> BTreeMap<String, String> {
        let plans = self.plans.iter();
        plans.map(|(key, plan)| (key.to_string(), plan.reference.clone())).collect()
    }

    fn plan(
        &self,
        key: GemmKey,
        max_rows: usize,
        (choices, reference): (Vec<Choice>, String),
    ) -> Result<Plan, GemmError> {
        let operation = self.operation(key)?;
        let mut launches = Vec::new();
        for max_rows in buckets::all_launched_rows(max_rows) {
            let bucket = buckets::bucket(max_rows);
            let missing = GemmError::NoAlgorithm { key, rows: max_rows };
            let choice = choices.iter().find(|choice| choice.bucket == bucket);
            let choice = choice.ok_or_else(|| missing.clone())?;
            let is_small = buckets::is_small(bucket);
            let rows = operation.rows(if is_small { choice.launched } else { max_rows })?;
            if !operation.accepts(&self.backend, &rows, &choice.algorithm) {
                return Err(missing);
            }
            launches.push(Launch { max_rows, rows, algorithm: choice.algorithm });
        }
        Ok(Plan { operation, launches, reference })
    }

    /// Puts out = x w^T (+ bias) of `m` rows into the stream. Allocates nothing, so that it can be
    /// captured into a CUDA graph; a GEMM that was never launched before may load its kernel, so
    /// each is to be launched once outside of a capture.
    ///
    /// # Safety
    /// The operands are addresses of the device with room for the shapes of `Operands`, and stay
    /// valid until the stream has come past the launch, in each replay of a graph too.
    pub unsafe fn matmul(
        &self,
        key: &GemmKey,
        m: usize,
        operands: &Operands,
    ) -> Result<(), GemmError> {
        if m == 0 {
            return Ok(());
        }
        let missing = || GemmError::NotPrepared { key: *key, rows: m };
        let plan = self.plans.get(key).ok_or_else(missing)?;
        let index = plan.launches.partition_point(|launch| launch.max_rows < m);
        let Launch { rows, algorithm, .. } = plan.launches.get(index).ok_or_else(missing)?;
        plan.operation.bind(operands)?;
        // SAFETY: bound just now; the caller vouches for the operands, and no launch has more rows
        // than `padded_rows`.
        unsafe { plan.operation.launch(&self.backend, rows, operands, algorithm) }
    }
}
