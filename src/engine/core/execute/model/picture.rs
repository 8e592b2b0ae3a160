//! Tiles of an image as the picture that they are of: its tokens among those of the tiles, mixtures
//! of them, and embeddings between them.

use super::loading::Loader;
use vllm_batch_base::EngineError;
use vllm_batch_checkpoint::spec::{MarksSpec, TowerSpec};
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_media::Layout;
use vllm_batch_ops as ops;
use vllm_batch_ops::MixedRows;

/// The embeddings (num_tokens, hidden_size) of an image, of those of its tiles and of those that
/// stand between tokens.
///
/// # Errors
/// The device has no memory.
pub(super) fn packed(
    device: &Device,
    between: Option<&Tensor>,
    (layout, tiles): (Layout, Tensor),
) -> Result<Tensor, EngineError> {
    let Some(sources) = layout.sources() else { return Ok(tiles) };
    let Some(between) = between else { unreachable!("the grid was checked") };
    assert_eq!(tiles.num_rows(), layout.num_tile_tokens(), "rows that are added later have none");
    let mixtures = mixtures(device, layout, &tiles)?;
    let mut rows = rows_as(device, &tiles, sources.len())?;
    let (behind_all, mut first) = (layout.num_tile_tokens(), 0);
    let first_mixture = behind_all + between.num_rows();
    let is_of_another = |source: usize| [behind_all, first_mixture].contains(&source);
    for run in sources.chunk_by(|a, b| a + 1 == *b && !is_of_another(*b as usize)) {
        let from = match run[0] as usize {
            source if source < behind_all => tiles.rows_from(source),
            source if source < first_mixture => between.rows_from(source - behind_all),
            source => mixtures.rows_from(source - first_mixture),
        };
        ops::replace_rows(device, from, rows.rows_from_mut(first), run.len());
        first += run.len();
    }
    Ok(rows)
}

/// Mixtures of the tokens of tiles that an image has in their place.
fn mixtures(device: &Device, layout: Layout, tiles: &Tensor) -> Result<Tensor, EngineError> {
    let mut mixed = MixedRows::default();
    layout.mixtures().into_iter().for_each(|mixture| mixed.push(mixture));
    if mixed.is_empty() {
        return rows_as(device, tiles, 0);
    }
    mixed.upload(device)?;
    let width = tiles.width();
    let full = |num_rows| {
        let mut rows = device.tensor(num_rows, width, Precision::Full)?;
        rows.set_num_rows(num_rows);
        Ok::<_, EngineError>(rows)
    };
    let (mut from, mut sums) = (full(tiles.num_rows())?, full(mixed.num_rows())?);
    ops::replace_rows(device, tiles.rows_from(0), from.rows_from_mut(0), tiles.num_rows());
    ops::fill_zero(device, &mut sums, mixed.num_rows());
    ops::add_mixed_rows(device, &mixed, &from, &mut sums);
    let mut rows = rows_as(device, tiles, mixed.num_rows())?;
    ops::copy(device, &sums, &mut rows);
    // What is on the device is read before it goes.
    device.check()?;
    Ok(rows)
}

fn rows_as(device: &Device, tiles: &Tensor, num_rows: usize) -> Result<Tensor, EngineError> {
    let mut rows = device.tensor(num_rows, tiles.width(), Precision::Activation)?;
    rows.set_num_rows(num_rows);
    Ok(rows)
}

/// What stands between tokens of an image, in the type of embeddings: the newline behind each of
/// its rows and what is between the whole image and its tiles, or marks of a table; and the row
/// that is added to those of patches.
///
/// # Errors
/// One is missing, or memory does not suffice.
pub(super) fn between_tokens(
    loader: &mut Loader<'_>,
    spec: &TowerSpec,
) -> Result<(Option<Tensor>, Option<Vec<f32>>), EngineError> {
    let (mut rows, added) = match &spec.marks {
        Some(marks) => marks_of_table(loader, marks)?,
        None => (lines(loader, spec)?, None),
    };
    if let (Some(rows), Some(factor)) = (&mut rows, spec.scale) {
        ops::scale(loader.device, rows, factor);
    }
    Ok((rows, added))
}

fn marks_of_table(
    loader: &mut Loader<'_>,
    marks: &MarksSpec,
) -> Result<(Option<Tensor>, Option<Vec<f32>>), EngineError> {
    let (values, num_marks) = (loader.table(&marks.table)?, marks.ids.len());
    let device = loader.device;
    let added = marks.is_added.then(|| device.read(&values)).transpose()?;
    let added = added.map(|rows| rows[num_marks * values.width()..].to_vec());
    let mut rows = device.tensor(num_marks, values.width(), Precision::Activation)?;
    rows.set_num_rows(num_marks);
    ops::copy_rows(device, values.rows_from(0), &mut rows);
    // What is copied from is read before it goes.
    device.check()?;
    Ok((Some(rows), added))
}

fn lines(loader: &mut Loader<'_>, spec: &TowerSpec) -> Result<Option<Tensor>, EngineError> {
    let tensors: Vec<_> = spec.newline.iter().chain(&spec.separator).collect();
    let Some((_, shape)) = tensors.first() else { return Ok(None) };
    let width = shape.iter().product();
    let mut rows = loader.device.tensor(tensors.len(), width, Precision::Activation)?;
    rows.set_num_rows(tensors.len());
    for (index, tensor) in tensors.into_iter().enumerate() {
        let values = loader.row(tensor)?;
        let mut row = loader.device.tensor(1, values.width(), Precision::Activation)?;
        row.set_num_rows(1);
        ops::copy_rows(loader.device, values.rows_from(0), &mut row);
        ops::replace_rows(loader.device, row.rows_from(0), rows.rows_from_mut(index), 1);
        // What is copied from is read before it goes.
        loader.device.check()?;
    }
    Ok(Some(rows))
}
