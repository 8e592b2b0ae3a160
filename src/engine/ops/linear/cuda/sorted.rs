//! Products of rows that are sorted by experts, and the weights of those, which lie one after the
//! other: values in rows, or codes. All kernels have the same bits over the same values.

use super::coded::{Run, Tile, tile};
use super::{Values, Weight};
use crate::weight_tiles::{Product, WeightTiles};
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::{Gpu, Tensor};

/// `struct SortedRows` of kernels/experts.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SortedRows {
    x: DevicePtr,
    order: DevicePtr,
    num_chosen: u32,
    k: u32,
}

impl SortedRows {
    /// Sorted row r is row `order[r] / num_chosen` of x; row r where `order` is null.
    pub(crate) fn of(x: &Tensor, order: DevicePtr, num_chosen: usize) -> Self {
        let (num_chosen, k) = (num_chosen as u32, x.width() as u32);
        Self { x: x.device_ptr(), order, num_chosen, k }
    }
}

/// How rows are shared out to experts.
#[derive(Clone, Copy)]
pub(crate) struct Sorting {
    /// (experts + 1) where the rows of each begin.
    pub starts: DevicePtr,
    pub num_experts: usize,
    /// Sorted rows.
    pub num_pairs: usize,
}

impl Sorting {
    /// Tiles of so many rows, at most: the last of each expert may hold one row.
    fn max_tiles(&self, tile_rows: usize) -> usize {
        self.num_pairs.min(self.num_pairs / tile_rows + self.num_experts)
    }

    /// Rows of an expert, on average.
    fn mean_rows(&self) -> usize {
        self.num_pairs / self.num_experts
    }
}

/// `struct ExpertLayer` of kernels/experts.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
struct ExpertLayer {
    weights: DevicePtr,
    biases: DevicePtr,
    n: u32,
    k: u32,
}

/// `struct ExpertCodes` of kernels/linear_expert_codes.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct ExpertCodes {
    /// Codes, scales, offsets, table.
    pointers: [DevicePtr; 4],
    layer: ExpertLayer,
    zero: f32,
    _filler: u32,
}

const KERNELS: WeightTiles = WeightTiles {
    plain: "linear_experts_plain",
    file: "linear_experts",
    entries: ["linear_experts_128x128", "linear_experts_64x128", "linear_experts_16x64"],
};

/// Tiles over codes, and from how many rows of an expert on.
const CODE_TILES: [(Tile, usize); 3] = [
    (tile("linear_expert_codes_128x128", (128, 128), (64, 3)), 96),
    (tile("linear_expert_codes_64x128", (64, 128), (64, 4)), 24),
    (tile("linear_expert_codes_16x128", (16, 128), (128, 4)), 0),
];

/// The tile of few rows where the others are too few for all multiprocessors, or too large.
const NARROW_TILE: Tile = tile("linear_expert_codes_16x32", (16, 32), (128, 8));

impl Weight {
    /// Queues out (sorted rows, n) = each row times the weights of its expert, plus its bias.
    pub(crate) fn multiply_sorted(
        &self,
        gpu: &Gpu,
        (rows, sorting): (SortedRows, Sorting),
        out: &Tensor,
    ) {
        let (n, k) = (self.n / sorting.num_experts, self.k);
        let biases = self.bias_ptr().unwrap_or(DevicePtr::NULL);
        let mut layer = ExpertLayer { weights: DevicePtr::NULL, biases, n: n as u32, k: k as u32 };
        let mut args = Args::new();
        args.value(rows);
        match &self.values {
            Values::Rows(weights) => {
                layer.weights = weights.rows.ptr();
                args.value(layer);
                args.ptr(sorting.starts).dims([sorting.num_experts]).tensor(out);
                let num_rows = sorting.mean_rows();
                let has_whole_chunks = k.is_multiple_of(8);
                let product = Product { gpu, n, num_rows, has_whole_chunks };
                KERNELS.launch(&product, |rows| sorting.max_tiles(rows), &mut args);
            }
            Values::Codes(codes) => {
                let run = codes.only_run().expect("experts whose codes are of one kind");
                let (pointers, zero) = (run.pointers(), run.zero.into());
                args.value(ExpertCodes { pointers, layer, zero, _filler: 0 });
                args.ptr(sorting.starts).dims([sorting.num_experts]).tensor(out);
                launch_codes(gpu, run, (n, sorting), &mut args);
            }
        }
    }
}

fn launch_codes(gpu: &Gpu, run: &Run, (n, sorting): (usize, Sorting), args: &mut Args) {
    let properties = gpu.properties();
    let smem = |tile: &Tile| tile.smem(run.defines, run.offsets.is_some());
    let grid = |tile: &Tile| [sorting.max_tiles(tile.rows) as u32, n.div_ceil(tile.outputs) as u32];
    let of_rows = CODE_TILES.iter().find(|(_, from)| sorting.mean_rows() >= *from);
    let (tile, _) = of_rows.expect("one takes any number");
    let fills = |[rows, outputs]: [u32; 2]| rows * outputs >= properties.num_sms;
    let fits = smem(tile) <= properties.max_smem_per_block_bytes;
    let tile = if fits && fills(grid(tile)) { tile } else { &NARROW_TILE };
    let kernel = run.defines.kernel_of_experts(tile.entry);
    gpu.launch(kernel, grid(tile), (super::coded::THREADS, smem(tile)), args);
}
