//! Buffers for the inputs of linear layers that compute in less than f32.

/// Inputs that a product reads in place of its f32 inputs. They live between steps, so that a step
/// allocates nothing.
#[derive(Debug, Default)]
pub struct NarrowInputs {
    /// (num_rows, words) of four int8 or two bf16.
    pub words: Vec<u32>,
    /// (num_rows, groups) scales of int8.
    pub scales: Vec<f32>,
    /// (num_rows, groups) what sums of int8 products begin with.
    pub starts: Vec<i32>,
}
