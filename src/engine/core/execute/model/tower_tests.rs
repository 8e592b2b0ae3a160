//! Tests of towers without files: which patches become which rows, whatever is encoded at once.

use super::*;
use vllm_batch_base::layers::Activation;
use vllm_batch_checkpoint::spec::{
    ActivationSpec, BlockNorms, ConnectorSpec, GridFit, GridPositions, ImageText, LayerSpec,
    LinearSpec, MlpForm, MlpSpec, NormSpec, TokenId,
};

/// A tower whose layers have no attention, so that each patch is computed by itself: a token each.
fn tower(device: &Device) -> Tower {
    let (patch_size, width) = (2, 8);
    let mlp = MlpSpec {
        norms: BlockNorms::before(NormSpec::layer("norm", width, 1e-6)),
        form: MlpForm::Plain,
        activation: ActivationSpec::Known(Activation::GeluTanh),
        up: LinearSpec::new("up", 16, width).with_bias(true),
        down: LinearSpec::new("down", width, 16).with_bias(true),
    };
    let patches = LinearSpec::of_patches("patches", width, patch_size).with_bias(true);
    let layers = vec![LayerSpec { feed_forward: Some(mlp.into()), ..LayerSpec::default() }];
    let last = LinearSpec::new("connector", 5, width);
    let connector = ConnectorSpec { steps: Vec::new(), last };
    let (image_token_id, text) = (TokenId::Known(0), ImageText::Tiles);
    let table = LinearSpec::new("positions", 1, width);
    let spec = TowerSpec {
        positions: Some(GridPositions { table, side: 1, fit: GridFit::SameShare }),
        final_norm: Some(NormSpec::layer("last", width, 1e-6)),
        ..TowerSpec::new(image_token_id, text, patch_size, patches, layers, connector)
    };
    Tower::load(spec, DType::Float32, device, &mut Checkpoint::dummy(3)).unwrap()
}

/// Tiles of rows and columns of patches, and bytes that no two patches share.
fn image((rows, columns): (usize, usize), (tile_rows, tile_columns): (usize, usize)) -> Patches {
    let layout = Layout {
        rows,
        columns,
        tile_rows,
        tile_columns,
        merge_size: 1,
        middle: None,
        whole: None,
        marks: None,
    };
    let samples = (0..layout.num_patches() * 12).map(|index| {
        let (patch, sample) = (index / 12, index % 12);
        (patch.wrapping_mul(40_503) >> (sample % 3 * 5)) as u8 ^ (sample * 19) as u8
    });
    let samples = samples.collect();
    let (order, whole) = (PatchOrder::Rows, Vec::new());
    Patches { layout, patch_size: 2, order, num_frames: 1, samples, whole }
}

#[test]
fn rows_are_those_of_their_patches_in_however_many_steps() {
    let device = Device::cpu(Some(2));
    let mut tables = [[0.0; 256]; 3];
    for (band, table) in tables.iter_mut().enumerate() {
        for (byte, number) in table.iter_mut().enumerate() {
            *number = byte as f32 / 128.0 - 1.0 + band as f32 * 0.1;
        }
    }
    // A tile that is more than a step; tiles of which two are one; and small ones.
    let images = [image((65, 66), (0, 0)), image((40, 41), (2, 2)), image((1, 3), (1, 2))];
    let mut tower = tower(&device);
    let rows = tower.encode(&device, &images, &tables).unwrap();
    for (image, rows) in images.iter().zip(&rows) {
        assert_eq!((rows.num_rows(), rows.width()), (image.layout.num_patches(), 5));
        for patch in (0..rows.num_rows()).step_by(97).chain([rows.num_rows() - 1]) {
            let layout = Layout {
                rows: 1,
                columns: 1,
                tile_rows: 0,
                tile_columns: 0,
                merge_size: 1,
                middle: None,
                whole: None,
                marks: None,
            };
            let samples = image.samples[patch * 12..][..12].to_vec();
            let alone = [Patches { layout, samples, ..image.clone() }];
            let alone = tower.encode(&device, &alone, &tables).unwrap();
            assert_eq!(rows.row(patch), alone[0].values(), "patch {patch}");
        }
    }
    assert_ne!(rows[0].row(0), rows[0].row(1));
}
