//! An adapter that becomes part of a model's weights at load: W + scale * B A.

use std::collections::HashMap;

use super::{AdapterFiles, AdapterMatrices, BaseCopy, LoraPlace, LoraPlaces, PlacedAdapter};
use crate::spec::{Layout, LinearSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{LoraModule, OnLostFile};
use vllm_batch_base::files::quoted;

/// Changes of an adapter, by the names of a model's tensors.
#[derive(Debug)]
pub struct MergedAdapter {
    files: AdapterFiles,
    changes: HashMap<String, Change>,
}

/// A change of a tensor; each is of the adapter's module of this index.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// scale * B A is added to a matrix as it is stored, or its transpose. The adapter may have a
    /// copy of what the matrix was.
    Product { module: usize, is_transposed: bool },
    /// The weight is another.
    Weight { module: usize },
    /// The bias is another.
    Bias { module: usize },
}

impl MergedAdapter {
    /// Reads what an adapter changes in a model.
    ///
    /// # Errors
    /// It is corrupt, or of another model; or it changes a table that is the output layer too.
    pub fn open(
        module: &LoraModule,
        max_rank: usize,
        places: &LoraPlaces,
        on_lost_file: Option<OnLostFile>,
    ) -> Result<Self, EngineError> {
        let files = AdapterFiles::open(&module.dir, max_rank, on_lost_file)?;
        let PlacedAdapter { modules, heads } = places.place(&files)?;
        let mut changes = HashMap::new();
        for placed in modules {
            let is_table = placed.place == LoraPlace::Tokens;
            let name = &files.modules()[placed.module].name;
            if places.is_tied() && (is_table || placed.place == LoraPlace::LmHead) {
                return Err(files.error(format!(
                    "{}: the model's output layer is its table of tokens, so merging would change \
                     both; use `settings.lora_modules` in place of `settings.lora_merge`",
                    quoted(name)
                )));
            }
            let LinearSpec { parts, layout, .. } = places.spec(placed.place);
            let is_transposed = is_table != (*layout == Layout::Transposed);
            let change = Change::Product { module: placed.module, is_transposed };
            changes.insert(parts[placed.part].weight_name(), change);
        }
        let has_module = |copy: &&BaseCopy| files.modules().iter().any(|m| m.name == copy.name);
        if let Some(copy) = files.copies().iter().find(|copy| !has_module(copy)) {
            let name = quoted(&copy.name);
            return Err(files.error(format!("it has a copy of {name}, and adds nothing to it")));
        }
        for placed in heads {
            let (module, part) = (placed.module, &places.head_layer(placed.layer).parts[0]);
            changes.insert(part.weight_name(), Change::Weight { module });
            changes.insert(part.bias().0, Change::Bias { module });
        }
        Ok(Self { files, changes })
    }

    /// Largest rank of the adapter.
    pub fn rank(&self) -> usize {
        self.files.modules().iter().map(|module| module.rank).max().unwrap_or(0)
    }

    /// The tensors that it changes.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.changes.keys().map(String::as_str)
    }

    /// New values of a tensor; `None`: unchanged.
    ///
    /// `stored`: gives its values, row-major.
    ///
    /// # Errors
    /// The adapter's file has changed since it was opened.
    pub fn merged(
        &self,
        tensor: &str,
        stored: impl FnOnce() -> Vec<f32>,
    ) -> Result<Option<Vec<f32>>, EngineError> {
        let Some(change) = self.changes.get(tensor) else { return Ok(None) };
        let modules = self.files.modules();
        match *change {
            Change::Weight { module } => Ok(Some(self.files.read_saved(&modules[module])?.weight)),
            Change::Bias { module } => Ok(self.files.read_saved(&modules[module])?.bias),
            Change::Product { module, is_transposed } => {
                let module = &modules[module];
                let AdapterMatrices { a, b } = self.files.read(module)?;
                let (inputs, outputs, rank) = (module.num_inputs, module.num_outputs, module.rank);
                // (rows, rank) and (rank, columns) of the stored matrix.
                let (left, right, columns) = match is_transposed {
                    false => (b, a, inputs),
                    true => (transposed(&a, inputs), transposed(&b, rank), outputs),
                };
                let mut values = stored();
                if let Some(copy) = self.files.copies().iter().find(|c| c.name == module.name)
                    && self.files.read_copy(copy)? != values
                {
                    return Err(self.files.error(format!(
                        "{}: its copy is not that of the model; the adapter was trained with \
                         another model, or changed the table",
                        quoted(&copy.name)
                    )));
                }
                add_product(&mut values, (&left, &right), (rank, columns), module.scale);
                Ok(Some(values))
            }
        }
    }
}

/// Transpose of a matrix, given its number of columns.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let column = |index: usize| values[index..].iter().step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}

/// values (rows, columns) += scale * left (rows, rank) right (rank, columns). Each sum goes over
/// the rank upward, from 0, in f32; it is added once.
fn add_product(
    values: &mut [f32],
    (left, right): (&[f32], &[f32]),
    (rank, columns): (usize, usize),
    scale: f32,
) {
    let mut sums = vec![0.0; columns];
    for (row, left) in values.chunks_exact_mut(columns).zip(left.chunks_exact(rank)) {
        sums.fill(0.0);
        for (factor, right) in left.iter().zip(right.chunks_exact(columns)) {
            for (sum, value) in sums.iter_mut().zip(right) {
                *sum += factor * value;
            }
        }
        for (value, sum) in row.iter_mut().zip(&sums) {
            *value += scale * sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_added_as_a_naive_loop_adds_them() {
        let (rows, columns, rank) = (3, 4, 2);
        let number = |index: usize| ((index * 37 + 11) % 17) as f32 - 8.0;
        let left: Vec<f32> = (0..rows * rank).map(number).collect();
        let right: Vec<f32> = (0..rank * columns).map(|index| number(index + 5)).collect();
        let mut values: Vec<f32> = (0..rows * columns).map(|index| number(index + 9)).collect();
        let stored = values.clone();
        add_product(&mut values, (&left, &right), (rank, columns), 0.5);
        for row in 0..rows {
            for column in 0..columns {
                let products =
                    (0..rank).map(|r| left[row * rank + r] * right[r * columns + column]);
                let expected = stored[row * columns + column] + 0.5 * products.sum::<f32>();
                assert_eq!(values[row * columns + column], expected, "row {row}, column {column}");
            }
        }
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
