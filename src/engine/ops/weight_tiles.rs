//! Launches of products of rows and weights that lie in rows of the model's dtype, on a GPU: by the
//! tiles of kernels/weight_tiles.cuh, or those of kernels/plain_tiles.cuh for exactness.

use vllm_batch_base::config::DType;
use vllm_batch_device::Gpu;
use vllm_batch_device::cuda::Args;

/// Rows and outputs of a block: every tile gives the same bits.
struct Tile {
    rows: usize,
    outputs: usize,
    stages: usize,
    /// Fewest rows of a matrix for the tile.
    from: usize,
}

/// Inputs of a stage.
const STAGE_INPUTS: usize = 64;

const TILES: [Tile; 3] = [
    Tile { rows: 128, outputs: 128, stages: 3, from: 96 },
    Tile { rows: 64, outputs: 128, stages: 3, from: 24 },
    Tile { rows: 16, outputs: 64, stages: 6, from: 0 },
];

/// Rows and outputs of a block without matrix units.
const PLAIN_TILE: usize = 16;

/// The kernels of one kind of product.
pub(super) struct WeightTiles {
    /// Without matrix units: the file and its kernel.
    pub plain: &'static str,
    /// On the matrix units.
    pub file: &'static str,
    /// The file's kernels: of tiles of 128 by 128 rows and outputs, 64 by 128, and 16 by 64.
    pub entries: [&'static str; 3],
}

/// A product whose blocks share the outputs and the rows.
pub(super) struct Product<'a> {
    pub gpu: &'a Gpu,
    /// Outputs of each matrix.
    pub n: usize,
    /// Rows that a matrix gets, on average.
    pub num_rows: usize,
    /// Whether all rows begin at, and have, whole chunks of 16 bytes.
    pub has_whole_chunks: bool,
}

impl WeightTiles {
    /// `row_tiles`: how many tiles of so many rows there may be.
    pub(crate) fn launch(
        &self,
        of: &Product<'_>,
        row_tiles: impl Fn(usize) -> usize,
        args: &mut Args,
    ) {
        let grid =
            |rows: usize, outputs: usize| [row_tiles(rows) as u32, of.n.div_ceil(outputs) as u32];
        if of.gpu.dtype() == DType::Float32 || !of.has_whole_chunks {
            let kernel = (self.plain, self.plain);
            return of.gpu.launch(kernel, grid(PLAIN_TILE, PLAIN_TILE), (256, 0), args);
        }
        let fits = |tile: &Tile| of.num_rows >= tile.from;
        let place = TILES.iter().position(fits).expect("one takes any number");
        let tile = &TILES[place];
        let smem = tile.stages * (tile.rows + tile.outputs) * STAGE_INPUTS * 2;
        let kernel = (self.file, self.entries[place]);
        of.gpu.launch(kernel, grid(tile.rows, tile.outputs), (128, smem), args);
    }
}
