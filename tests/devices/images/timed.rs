//! How long towers of published sizes take on a real GPU, with random weights. A line of JSON for
//! each, which `scripts/gpu-check` sets beside the floor.

use std::time::Instant;

use serde_json::json;
use vllm_batch::engine::base::config::{DType, EngineConfig};
use vllm_batch::engine::checkpoint::hf_config::HfConfig;
use vllm_batch::engine::checkpoint::spec::{ConnectorSpec, GridFit, TowerSpec};
use vllm_batch::engine::checkpoint::tower_spec;
use vllm_batch::engine::checkpoint::weights::Checkpoint;
use vllm_batch::engine::core::execute::model::tower::Tower;
use vllm_batch::engine::device::{Device, open};
use vllm_batch::engine::media::{Layout, PatchOrder, Patches};

use super::testdata;
use crate::gpu;

/// Configs, and the patches of an image's side where the tower takes any: a megapixel.
const TOWERS: [(&str, usize); 5] = [
    ("smolvlm-256m-instruct", 0),
    ("llava-1.5-7b-hf", 0),
    ("internvl3-1b-hf", 0),
    ("qwen2.5-vl-3b-instruct", 72),
    ("qwen3-vl-4b-instruct", 64),
];
/// Images of a call, as a step of many rows has them.
const NUM_IMAGES: [usize; 2] = [1, 16];
const NUM_CALLS: usize = 5;

fn spec(name: &str) -> TowerSpec {
    let file = testdata("published_configs").join(format!("{name}.json"));
    let config = HfConfig::parse(&std::fs::read_to_string(file).unwrap(), name).unwrap();
    tower_spec(&config).unwrap().expect("a tower")
}

/// An image of one tile, whose bytes are any.
fn image(spec: &TowerSpec, side: usize) -> Patches {
    let own = spec.positions.as_ref().filter(|positions| positions.fit != GridFit::Between);
    let side = own.map_or(side, |positions| positions.side);
    let merge_size = spec.merge_size;
    let layout = Layout {
        rows: side,
        columns: side,
        tile_rows: 0,
        tile_columns: 0,
        merge_size,
        middle: None,
        whole: None,
        marks: None,
    };
    let has_windows = spec.windows.is_some() || own.is_none();
    let order = if has_windows { PatchOrder::Merged } else { PatchOrder::Rows };
    let num_bytes = layout.num_patches() * 3 * spec.patch_size * spec.patch_size;
    let samples = (0..num_bytes).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8);
    let (patch_size, num_frames) = (spec.patch_size, spec.num_frames());
    let samples = samples.collect();
    Patches { layout, patch_size, order, num_frames, samples, whole: Vec::new() }
}

/// Operations of an image: two for each weight of its patches or tokens, and four for each pair and
/// column in attention, where no window parts them.
fn flops(spec: &TowerSpec, image: &Patches) -> f64 {
    let (num_patches, num_tokens) = (image.layout.num_patches(), image.layout.num_tokens());
    let merged = (spec.merge_size * spec.merge_size) as f64;
    let of_connectors = spec.connectors().flat_map(ConnectorSpec::linears);
    let of_connectors: usize = of_connectors.map(|linear| linear.n() * linear.k).sum();
    let of_layers = spec.parameters().all as usize - of_connectors;
    let weights = (of_layers * num_patches + of_connectors * num_tokens) as f64;
    let whole = spec.windows.as_ref().map(|windows| &windows.is_whole);
    let seen = |layer: usize| match whole.is_none_or(|whole| whole[layer]) {
        true => num_patches as f64,
        false => merged * spec.windows.as_ref().map_or(0.0, |windows| windows.side.pow(2) as f64),
    };
    let seen: f64 = (0..spec.layers.len()).map(seen).sum();
    2.0 * weights + 4.0 * seen * num_patches as f64 * spec.width() as f64
}

fn timed(device: &Device, name: &str, side: usize) {
    let spec = spec(name);
    let image = image(&spec, side);
    let flops = flops(&spec, &image);
    let mut weights = Checkpoint::dummy(0);
    let mut tower = Tower::load(spec, DType::BFloat16, device, &mut weights).unwrap();
    device.finish_loading().unwrap();
    for num_images in NUM_IMAGES {
        let images = vec![image.clone(); num_images];
        let mut run = || {
            let rows = tower.encode(device, &images, &[[0.5; 256]; 3]).unwrap();
            device.synchronize().unwrap();
            rows.len()
        };
        run();
        let begun = Instant::now();
        let num_encoded: usize = (0..NUM_CALLS).map(|_| run()).sum();
        let seconds = begun.elapsed().as_secs_f64() / num_encoded as f64;
        let line = json!({
            "tower": name,
            "images": num_images,
            "patches": image.layout.num_patches(),
            "gflop": flops / 1e9,
            "ms_per_image": 1e3 * seconds,
            "tflops": flops / seconds / 1e12,
        });
        println!("TOWER {line}");
    }
}

#[test]
fn towers_timed_on_a_gpu() {
    if !gpu::is_real() {
        return println!("SKIP: times are of a real GPU");
    }
    let Some(device) = gpu::device(0) else { return };
    let config = EngineConfig { device, ..EngineConfig::default() };
    let (device, _) = open(&config, DType::BFloat16, None).unwrap();
    TOWERS.iter().for_each(|(name, side)| timed(&device, name, *side));
}
