//! Weights that stay codes in a GPU's memory, and the launches that multiply by them.

use super::code_defines::CodeDefines;
use super::repack::{BLOCK_INPUTS, CodedRows, STRIP, UNIT_BYTES};
use super::widened::Widened;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::matrix::SourceRows;
use vllm_batch_device::cuda::{Args, DeviceBuffer, DevicePtr, Properties};
use vllm_batch_device::gpu::Defines;
use vllm_batch_device::{Gpu, MatmulShape};

/// Threads of a block.
pub(super) const THREADS: u32 = 128;
const NUM_WARPS: usize = 4;

/// Tile of a block of kernels/linear_codes.cu and kernels/linear_expert_codes.cu, which have the
/// same lists: every tile gives the same bits.
#[derive(Debug)]
pub(super) struct Tile {
    pub entry: &'static str,
    pub rows: usize,
    pub outputs: usize,
    /// Inputs of a stage.
    inputs: usize,
    stages: usize,
}

pub(super) const fn tile(
    entry: &'static str,
    (rows, outputs): (usize, usize),
    (inputs, stages): (usize, usize),
) -> Tile {
    Tile { entry, rows, outputs, inputs, stages }
}

/// From the widest to the narrowest that is tried for a number of rows.
const UP_TO_16_ROWS: [Tile; 2] = [
    tile("linear_codes_16x128", (16, 128), (128, 4)),
    tile("linear_codes_16x32", (16, 32), (128, 8)),
];
const MORE_ROWS: [Tile; 3] = [
    tile("linear_codes_128x128", (128, 128), (64, 3)),
    tile("linear_codes_64x128", (64, 128), (64, 4)),
    tile("linear_codes_64x32", (64, 32), (64, 6)),
];

impl Tile {
    /// The first that gives every multiprocessor a block and whose shared memory a block may have;
    /// else the one with the most blocks.
    fn choose(
        (num_rows, n): (usize, usize),
        properties: &Properties,
        smem: impl Fn(&Self) -> usize,
    ) -> &'static Self {
        let tiles: &[Tile] = match num_rows {
            ..=16 => &UP_TO_16_ROWS,
            17..=64 => &MORE_ROWS[1..],
            _ => &MORE_ROWS,
        };
        let fits = |tile: &&Tile| {
            let [rows, outputs] = tile.grid(num_rows, n);
            rows * outputs >= properties.num_sms
                && smem(tile) <= properties.max_smem_per_block_bytes
        };
        tiles.iter().find(fits).unwrap_or(&tiles[tiles.len() - 1])
    }

    fn grid(&self, num_rows: usize, n: usize) -> [u32; 2] {
        [num_rows.div_ceil(self.rows) as u32, n.div_ceil(self.outputs) as u32]
    }

    /// Bytes of shared memory.
    pub(super) fn smem(&self, defines: CodeDefines, has_offsets: bool) -> usize {
        let groups = (self.inputs / defines.group as usize).max(1);
        let scales = groups * STRIP * defines.scale.size_bytes();
        let codes = self.inputs * STRIP * defines.bits as usize / 8;
        let strip = codes + scales * (1 + usize::from(has_offsets));
        let strips = NUM_WARPS * (self.outputs / (NUM_WARPS * STRIP));
        self.stages * (self.rows * self.inputs * 2 + strips * strip)
    }
}

/// The weights of a layer, as codes.
#[derive(Debug)]
pub(super) struct CodedWeight {
    runs: Vec<Run>,
    widened: Widened,
}

/// Outputs whose codes are of one kind.
#[derive(Debug)]
pub(super) struct Run {
    first: usize,
    n: usize,
    pub defines: CodeDefines,
    pub zero: u8,
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    pub offsets: Option<DeviceBuffer>,
    /// 16 floats.
    table: Option<DeviceBuffer>,
}

/// A product: rows of x, and where those of the layer's outputs go.
pub(super) struct Product {
    /// (num_rows, k) in the model's dtype.
    pub x: DevicePtr,
    /// (num_rows, n)
    pub out: DevicePtr,
    pub output: DType,
    /// (n) in the model's dtype.
    pub bias: Option<DevicePtr>,
    pub num_rows: usize,
    /// (n, k) of the layer.
    pub shape: (usize, usize),
}

impl CodedWeight {
    /// Copies the codes, where all rows have some that kernels take.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub(super) fn load(gpu: &Gpu, source: &SourceRows<'_>) -> Result<Option<Self>, EngineError> {
        let Some(runs) = CodedRows::runs(source) else { return Ok(None) };
        let runs = runs.iter().map(|rows| Run::load(gpu, rows)).collect::<Result<_, _>>()?;
        gpu.compute_with_codes();
        Ok(Some(Self { runs, widened: Widened::default() }))
    }

    /// Rows of E4M3 (n, k) and their scales (n), in the order of kernels. n is of whole strips.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub(super) fn of_e4m3(
        gpu: &Gpu,
        (rows, row_scales): (&DeviceBuffer, &DeviceBuffer),
        (n, k): (usize, usize),
    ) -> Result<Self, EngineError> {
        let (levels, bits, scale, group) = ("FLOAT8", 8, DType::Float32, 128);
        let defines = CodeDefines { levels, bits, scale, group };
        let num_groups = k.div_ceil(BLOCK_INPUTS);
        let codes = gpu.alloc(n * num_groups * BLOCK_INPUTS)?;
        let scales = gpu.alloc(n * num_groups * size_of::<f32>())?;
        let mut args = Args::new();
        args.ptr(rows.ptr()).ptr(row_scales.ptr()).ptr(codes.ptr()).ptr(scales.ptr()).dims([k]);
        let threads_of_strip = STRIP * num_groups * BLOCK_INPUTS / 8;
        let grid = [(n / STRIP) as u32, threads_of_strip.div_ceil(256) as u32];
        gpu.launch(("quantize_rows", "strips_of_rows"), grid, (256, 0), &mut args);
        gpu.compute_with_codes();
        let (offsets, table) = (None, None);
        let run = Run { first: 0, n, defines, zero: 0, codes, scales, offsets, table };
        Ok(Self { runs: vec![run], widened: Widened::default() })
    }

    /// The codes, where all are of one kind.
    pub(super) fn only_run(&self) -> Option<&Run> {
        self.runs.first().filter(|_| self.runs.len() == 1)
    }

    /// Decides how many rows are multiplied, of up to so many.
    ///
    /// # Errors
    /// The GPU failed.
    pub(super) fn prepare(
        &self,
        gpu: &Gpu,
        product: (MatmulShape, Option<DevicePtr>),
        max_rows: usize,
    ) -> Result<(), EngineError> {
        self.widened.prepare(gpu, self, product, max_rows)
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.runs.iter().map(Run::num_bytes).sum()
    }

    /// Kinds of codes, from the first output on.
    pub(super) fn kinds(&self) -> Vec<Defines> {
        self.runs.iter().map(|run| run.defines.defines()).collect()
    }

    /// Queues the product.
    pub(super) fn multiply(&self, gpu: &Gpu, product: &Product) {
        if !self.widened.multiply(gpu, self, product) {
            self.multiply_codes(gpu, product);
        }
    }

    /// As `multiply`, by kernels over codes.
    pub(super) fn multiply_codes(&self, gpu: &Gpu, product: &Product) {
        self.runs.iter().for_each(|run| run.multiply(gpu, product));
    }

    /// Queues the weights' way to `to`, (n, k) in the model's dtype.
    pub(super) fn widen(&self, gpu: &Gpu, to: DevicePtr, k: usize) {
        self.runs.iter().for_each(|run| run.widen(gpu, to, k));
    }
}

impl Run {
    fn load(gpu: &Gpu, rows: &CodedRows<'_>) -> Result<Self, EngineError> {
        let defines = rows.defines();
        let codes = gpu.alloc(rows.code_bytes())?;
        gpu.upload_weights(codes.ptr(), rows.code_bytes(), |offset, out| {
            rows.write_codes(offset, out);
        })?;
        let size = defines.scale.size_bytes();
        let upload = |of_offsets: bool| -> Result<DeviceBuffer, EngineError> {
            let buffer = gpu.alloc(rows.num_scales() * size)?;
            gpu.upload_weights(buffer.ptr(), rows.num_scales() * size, |offset, out| {
                rows.write_scales(of_offsets, offset / size, out);
            })?;
            Ok(buffer)
        };
        let scales = upload(false)?;
        let offsets = rows.has_offsets().then(|| upload(true)).transpose()?;
        let table = match rows.table() {
            None => None,
            Some(levels) => {
                let buffer = gpu.alloc(size_of_val(&levels))?;
                gpu.upload_weights(buffer.ptr(), size_of_val(&levels), |_, out| {
                    for (level, bytes) in levels.iter().zip(out.chunks_exact_mut(4)) {
                        bytes.copy_from_slice(&level.to_le_bytes());
                    }
                })?;
                Some(buffer)
            }
        };
        let (first, n, zero) = (rows.first, rows.n, rows.zero());
        Ok(Self { first, n, defines, zero, codes, scales, offsets, table })
    }

    fn num_bytes(&self) -> usize {
        let others = [&self.offsets, &self.table].into_iter().flatten();
        let others: usize = others.map(DeviceBuffer::bytes).sum();
        self.codes.bytes() + self.scales.bytes() + others
    }

    /// Where codes, scales, offsets and the table are.
    pub(super) fn pointers(&self) -> [DevicePtr; 4] {
        let pointer = |buffer: &Option<DeviceBuffer>| {
            buffer.as_ref().map_or(DevicePtr::NULL, DeviceBuffer::ptr)
        };
        let (offsets, table) = (pointer(&self.offsets), pointer(&self.table));
        [self.codes.ptr(), self.scales.ptr(), offsets, table]
    }

    fn widen(&self, gpu: &Gpu, to: DevicePtr, k: usize) {
        let mut args = Args::new();
        for pointer in self.pointers() {
            args.ptr(pointer);
        }
        args.ptr(to.offset(self.first * k * gpu.dtype().size_bytes()));
        args.dims([self.n, k]).f32(self.zero.into());
        let num_strips = self.n.div_ceil(STRIP);
        let num_units = self.codes.bytes() / UNIT_BYTES / num_strips;
        let grid = [num_units.div_ceil(NUM_WARPS) as u32, num_strips as u32];
        let kernel = self.defines.kernel("widen_codes");
        gpu.launch(kernel, grid, (THREADS, 0), &mut args);
    }

    fn multiply(&self, gpu: &Gpu, product: &Product) {
        let Product { x, out, output, bias, num_rows, shape: (stride, k) } = *product;
        let dtype = gpu.dtype();
        let mut args = Args::new();
        args.ptr(x);
        for pointer in self.pointers() {
            args.ptr(pointer);
        }
        let bias = bias.map(|bias| bias.offset(self.first * dtype.size_bytes()));
        args.ptr(bias.unwrap_or(DevicePtr::NULL));
        args.ptr(out.offset(self.first * output.size_bytes()));
        args.dims([num_rows, self.n, k, stride]).f32(self.zero.into());
        args.u32((output == DType::Float32).into());
        let smem = |tile: &Tile| tile.smem(self.defines, self.offsets.is_some());
        let tile = Tile::choose((num_rows, self.n), gpu.properties(), smem);
        let kernel = self.defines.kernel(tile.entry);
        gpu.launch(kernel, tile.grid(num_rows, self.n), (THREADS, smem(tile)), &mut args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_tile_that_fills_the_device_and_its_memory_is_chosen() {
        let properties = |num_sms, smem_kb: usize| Properties {
            name: String::new(),
            compute_capability: (9, 0),
            num_sms,
            max_smem_per_block_bytes: smem_kb << 10,
            max_launch_positions: None,
        };
        let of_group =
            |group| CodeDefines { levels: "MINIMA", bits: 8, scale: DType::Float32, group };
        let entry = |shape, properties: Properties, group| {
            Tile::choose(shape, &properties, |tile| tile.smem(of_group(group), true)).entry
        };
        let chosen = [(1, 4096), (16, 28672), (17, 4096), (64, 28672), (65, 4096), (2048, 4096)]
            .map(|shape| entry(shape, properties(132, 227), 128));
        let expected = ["16x32", "16x128", "64x32", "64x128", "64x32", "128x128"];
        assert_eq!(chosen.map(|name| name.trim_start_matches("linear_codes_")), expected);
        // Groups of 16 with minima in f32 take more than a block of sm_89 may have.
        assert_eq!(entry((16, 28672), properties(132, 99), 16), "linear_codes_16x32");
        for tile in UP_TO_16_ROWS.iter().chain(&MORE_ROWS) {
            let is_last = tile.outputs == 32;
            assert!(!is_last || tile.smem(of_group(16), true) <= 99 << 10, "{}", tile.entry);
        }
    }
}
