//! embedding: rows of a table by token id or position, and rows in their place; gathering of rows
//! whose logits are wanted.

use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_device::cuda::{Args, DeviceBuffer, DevicePtr, Plain};
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::tensor::{Rows, RowsMut, SharedMut};
use vllm_batch_device::{Cpu, Device, Gpu, Tensor, bytes_of};

use super::{GPU_BLOCK, Ids, LinearWeight, for_row_chunks};

/// out[t] = table[ids[t]] * scale, for all rows that `out` uses. The table is packed as a linear
/// weight, so that one that is tied to the output layer is held once.
///
/// An id behind the table has its first row (Gemma 3n's inputs of layers); requests are checked
/// against the vocabulary before they come here.
pub fn embedding(
    device: &Device,
    ids: Ids<'_>,
    table: &LinearWeight,
    scale: Option<f32>,
    out: &mut Tensor,
) {
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.ptr(ids.device_ptr).ptr(table.device_ptr()).f32(scale.unwrap_or(1.0));
            let num_ids = table.shape().0;
            args.tensor(out).dims([out.width(), num_ids]);
            args.u32(u32::from(out.dtype() == DType::Float32));
            let grid = [out.num_rows() as u32, 1];
            return gpu.launch(("embedding", "embedding"), grid, (GPU_BLOCK, 0), &mut args);
        }
    };
    let row_bytes = table.row_bytes() + 4 * out.width();
    let work = || Work::elementwise(out.num_rows(), row_bytes);
    let _timed = cpu.op_timer.timed(Op::new("embedding"), work);
    for_each_row(cpu, out, &|row, values| {
        let id = ids.host[row] as usize;
        table.copy_row(if id < table.shape().0 { id } else { 0 }, values);
        if let Some(scale) = scale {
            values.iter_mut().for_each(|value| *value *= scale);
        }
    });
}

/// out[t] += table[positions[t] + offset]: learned position embeddings.
pub fn add_rows_of(
    device: &Device,
    positions: Ids<'_>,
    offset: usize,
    table: &Tensor,
    out: &mut Tensor,
) {
    assert_eq!(table.width(), out.width());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.ptr(positions.device_ptr).dims([offset]).tensor(table);
            args.tensor(out).dims([out.width()]);
            let grid = [out.num_rows() as u32, 1];
            return gpu.launch(("embedding", "add_rows"), grid, (GPU_BLOCK, 0), &mut args);
        }
    };
    let work = || Work::elementwise(out.num_rows() * out.width(), 12);
    let _timed = cpu.op_timer.timed(Op::new("add_rows_of"), work);
    for_each_row(cpu, out, &|row, values| {
        let added = table.row(positions.host[row] as usize + offset);
        for (value, added) in values.iter_mut().zip(added) {
            *value += added;
        }
    });
}

/// out[i] = x[indices[i]], for all rows that `out` uses.
pub fn gather_rows(device: &Device, x: &Tensor, indices: Ids<'_>, out: &mut Tensor) {
    assert!(x.width() == out.width() && x.dtype() == out.dtype());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let row_bytes = x.width() * x.dtype().size_bytes();
            let mut args = Args::new();
            args.ptr(indices.device_ptr).tensor(x).tensor(out).dims([row_bytes]);
            let grid = [out.num_rows() as u32, 1];
            return gpu.launch(("gather_rows", "gather_rows"), grid, (GPU_BLOCK, 0), &mut args);
        }
    };
    let work = || Work::elementwise(out.num_rows() * out.width(), 8);
    let _timed = cpu.op_timer.timed(Op::new("gather_rows"), work);
    for_each_row(cpu, out, &|row, values| {
        values.copy_from_slice(x.row(indices.host[row] as usize));
    });
}

/// What the channels of rows are shifted and scaled by.
#[derive(Clone, Debug)]
pub struct Standardization {
    /// Factor of all values, first.
    pub factor: f32,
    /// (width)
    pub shift: Vec<f32>,
    /// (width)
    pub scale: Vec<f32>,
}

/// Each value of `x` = (value * factor - shift) * scale of its channel.
///
/// # Panics
/// Widths differ. Or the device is a GPU, which has no kernel for it.
pub fn standardize(device: &Device, of: &Standardization, x: &mut Tensor) {
    let Standardization { factor, shift, scale } = of;
    assert!(shift.len() == x.width() && scale.len() == x.width());
    let Device::Cpu(cpu) = device else { unreachable!("a GPU reads such models for text alone") };
    let work = || Work::elementwise(x.num_rows() * x.width(), 8);
    let _timed = cpu.op_timer.timed(Op::new("standardize"), work);
    for_each_row(cpu, x, &|_, values| {
        for (value, (shift, scale)) in values.iter_mut().zip(shift.iter().zip(scale)) {
            *value = (*value * factor - shift) * scale;
        }
    });
}

/// Each row of `out` = the mean of as many rows of `x` as there are for it, added upward. All are
/// f32.
///
/// # Panics
/// Rows cannot be shared evenly, or widths differ.
pub fn mean_rows(device: &Device, x: &Tensor, out: &mut Tensor) {
    assert!(x.width() == out.width() && x.num_rows().is_multiple_of(out.num_rows()));
    assert!(x.dtype() == DType::Float32 && out.dtype() == DType::Float32);
    let num = x.num_rows() / out.num_rows();
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let mut args = Args::new();
            args.tensor(x).tensor(out).dims([num, out.width()]);
            let grid = [out.num_rows() as u32, 1];
            return gpu.launch(("rows", "mean_rows"), grid, (GPU_BLOCK, 0), &mut args);
        }
    };
    let work = || Work::elementwise(x.num_rows() * x.width(), 4);
    let _timed = cpu.op_timer.timed(Op::new("mean_rows"), work);
    for_each_row(cpu, out, &|row, values| {
        values.copy_from_slice(x.row(row * num));
        for added in (row * num + 1..(row + 1) * num).map(|row| x.row(row)) {
            for (value, added) in values.iter_mut().zip(added) {
                *value += added;
            }
        }
        values.iter_mut().for_each(|value| *value /= num as f32);
    });
}

/// `num_rows` rows of `out` = those of `from`: embeddings that no table has. They are of one type,
/// or those of `out` are f32.
///
/// # Panics
/// Widths differ, or there are not so many rows.
pub fn replace_rows(device: &Device, from: Rows<'_>, out: RowsMut<'_>, num_rows: usize) {
    match device {
        Device::Cpu(cpu) => {
            with_rows(cpu, ("replace_rows", 8), (from, out), num_rows, &|values, given| {
                values.copy_from_slice(given);
            });
        }
        Device::Cuda(gpu) if from.tensor.dtype() == out.tensor.dtype() => {
            let bytes = num_rows * out.tensor.row_bytes();
            let (from, to) = row_ptrs((from, out), num_rows);
            gpu.copy(from, to, bytes);
        }
        Device::Cuda(gpu) => on_f32_rows(gpu, "widen", (from, out), num_rows),
    }
}

/// `num_rows` rows of `out` += those of `from`; on a GPU f32 and activations.
///
/// # Panics
/// As [`replace_rows`].
pub fn add_rows(device: &Device, from: Rows<'_>, out: RowsMut<'_>, num_rows: usize) {
    match device {
        Device::Cpu(cpu) => {
            with_rows(cpu, ("add_rows", 12), (from, out), num_rows, &|values, added| {
                values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
            });
        }
        Device::Cuda(gpu) => on_f32_rows(gpu, "add", (from, out), num_rows),
    }
}

/// Launches a kernel that has f32 of `out` and activations of `from`.
fn on_f32_rows(
    gpu: &Gpu,
    entry: &'static str,
    (from, out): (Rows<'_>, RowsMut<'_>),
    num_rows: usize,
) {
    assert!(from.tensor.dtype() == gpu.dtype() && out.tensor.dtype() == DType::Float32);
    let num_values = num_rows * out.tensor.width();
    let (from, to) = row_ptrs((from, out), num_rows);
    let mut args = Args::new();
    args.ptr(to).ptr(from).u64(num_values as u64);
    gpu.launch_over(num_values, ("elementwise", entry), &mut args);
}

/// Where as many rows of both begin.
fn row_ptrs((from, out): (Rows<'_>, RowsMut<'_>), num_rows: usize) -> (DevicePtr, DevicePtr) {
    let (x, to) = (from.tensor, out.tensor);
    assert_eq!(x.width(), to.width());
    assert!(from.first + num_rows <= x.num_rows() && out.first + num_rows <= to.num_rows());
    let at = |tensor: &Tensor, row: usize| tensor.device_ptr().offset(row * tensor.row_bytes());
    (at(x, from.first), at(to, out.first))
}

/// Applies `each` to whole rows of `out` and those of `from` beside them. The op has a name, and
/// moves so many bytes for each value.
fn with_rows(
    cpu: &Cpu,
    (name, num_bytes): (&'static str, usize),
    (from, out): (Rows<'_>, RowsMut<'_>),
    num_rows: usize,
    each: &(dyn Fn(&mut [f32], &[f32]) + Sync),
) {
    let (width, x) = (out.tensor.width(), from.tensor);
    assert_eq!(x.width(), width);
    let work = || Work::elementwise(num_rows * width, num_bytes);
    let _timed = cpu.op_timer.timed(Op::new(name), work);
    let part = |first: usize| first * width..(first + num_rows) * width;
    let from = &x.values()[part(from.first)];
    let shared = SharedMut::new(&mut out.tensor.values_mut()[part(out.first)]);
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        let from = &from[start * width..end * width];
        // SAFETY: each row belongs to one item.
        each(unsafe { shared.slice(start * width, from.len()) }, from);
    });
}

/// A row of a table with its share in a sum. `struct Share` of kernels/mixed_rows.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct RowShare {
    id: u32,
    share: f32,
}

// SAFETY: two numbers of 32 bits without padding.
unsafe impl Plain for RowShare {}

/// Rows of a step that are sums of rows of a table.
#[derive(Debug, Default)]
pub struct MixedRows {
    /// How many shares there are up to each of the first rows of the step, itself included.
    ends: Vec<u32>,
    /// Of all rows, one after the other.
    shares: Vec<RowShare>,
    /// The same on a GPU; made when they are first needed.
    on_gpu: Option<[DeviceBuffer; 2]>,
}

impl MixedRows {
    /// Begins again.
    pub fn clear(&mut self) {
        self.ends.clear();
        self.shares.clear();
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many there are.
    pub fn num_rows(&self) -> usize {
        self.ends.len()
    }

    /// Adds a row.
    pub fn push(&mut self, shares: impl IntoIterator<Item = (u32, f32)>) {
        self.shares.extend(shares.into_iter().map(|(id, share)| RowShare { id, share }));
        self.ends.push(self.shares.len() as u32);
    }

    /// What a row is the sum of.
    fn of_row(&self, row: usize) -> &[RowShare] {
        let first = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.shares[first as usize..self.ends[row] as usize]
    }

    /// The rows of a table that a row is of.
    pub(super) fn ids(&self, row: usize) -> impl Iterator<Item = usize> + Clone + '_ {
        self.of_row(row).iter().map(|share| share.id as usize)
    }

    /// How many rows of a table each row is of.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.num_rows()).map(|row| self.of_row(row).len())
    }

    /// Ends and shares on a GPU, where they were brought.
    pub(super) fn on_gpu(&self) -> [DevicePtr; 2] {
        let buffers = self.on_gpu.as_ref().expect("rows of a GPU are uploaded");
        [buffers[0].ptr(), buffers[1].ptr()]
    }

    /// Brings them to where the op runs.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn upload(&mut self, device: &Device) -> Result<(), EngineError> {
        let Device::Cuda(gpu) = device else { return Ok(()) };
        let bytes = [bytes_of(&self.ends), bytes_of(&self.shares)];
        let fit = |buffers: &[DeviceBuffer; 2]| {
            buffers.iter().zip(bytes).all(|(buffer, bytes)| buffer.bytes() >= bytes.len())
        };
        if !self.on_gpu.as_ref().is_some_and(fit) {
            let [ends, shares] = bytes.map(|bytes| gpu.alloc(bytes.len().next_power_of_two()));
            self.on_gpu = Some([ends?, shares?]);
        }
        for (buffer, bytes) in self.on_gpu.iter().flatten().zip(bytes) {
            gpu.upload(buffer, bytes);
        }
        Ok(())
    }
}

/// out[t] += the sum of rows of the table, added in their order: learned positions of what is
/// between those that it has.
///
/// # Panics
/// Widths differ, or `out` has fewer rows.
pub fn add_mixed_rows(device: &Device, rows: &MixedRows, table: &Tensor, out: &mut Tensor) {
    assert!(table.width() == out.width() && rows.ends.len() <= out.num_rows());
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            let [ends, shares] = rows.on_gpu.as_ref().expect("rows of a GPU are uploaded");
            let mut args = Args::new();
            args.ptr(ends.ptr()).ptr(shares.ptr()).tensor(table).tensor(out).dims([out.width()]);
            let grid = [rows.ends.len() as u32, 1];
            return gpu.launch(("rows", "add_mixed_rows"), grid, (GPU_BLOCK, 0), &mut args);
        }
    };
    let work = || Work::elementwise(rows.shares.len() * out.width(), 8);
    let _timed = cpu.op_timer.timed(Op::new("add_mixed_rows"), work);
    for_each_row(cpu, out, &|row, values| {
        const CHUNK: usize = 64;
        for (chunk, values) in values.chunks_mut(CHUNK).enumerate() {
            let mut sums = [0.0; CHUNK];
            for RowShare { id, share } in rows.of_row(row) {
                let added = &table.row(*id as usize)[CHUNK * chunk..];
                for (sum, added) in sums.iter_mut().zip(added) {
                    *sum += added * share;
                }
            }
            values.iter_mut().zip(sums).for_each(|(value, sum)| *value += sum);
        }
    });
}

fn for_each_row(cpu: &Cpu, out: &mut Tensor, row: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let (num_rows, width) = (out.num_rows(), out.width());
    let shared = SharedMut::new(out.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for index in start..end {
            // SAFETY: each row belongs to one item.
            row(index, unsafe { shared.slice(index * width, width) });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_base::config::DType;
    use vllm_batch_base::matrix::SourceMatrix;

    #[test]
    fn rows_are_looked_up_scaled_shifted_and_gathered() {
        let device = Device::cpu(Some(2));
        let source = SourceMatrix::random(50, 6, 7, 1.0);
        let table =
            LinearWeight::load(&device, DType::Float32, &[source.clone()].into(), None).unwrap();
        let mut out = Tensor::zeros(3, 6);
        embedding(&device, [49, 0, 3][..].into(), &table, Some(2.0), &mut out);
        let values = source.to_vec();
        let row = |id: usize| values[6 * id..][..6].iter().map(|v| v * 2.0).collect::<Vec<_>>();
        assert_eq!(out.values(), [row(49), row(0), row(3)].concat());
        let positions = Tensor::from_vec((0..60).map(|i| i as f32).collect(), 6);
        add_rows_of(&device, [0, 1, 7][..].into(), 2, &positions, &mut out);
        assert_eq!(out.row(2)[1], row(3)[1] + 55.0);
        let mut gathered = Tensor::zeros(2, 6);
        gather_rows(&device, &out, [2, 0][..].into(), &mut gathered);
        assert_eq!(gathered.values(), [out.row(2), out.row(0)].concat());
    }

    #[test]
    fn means_are_of_the_rows_beside_each_other() {
        let device = Device::cpu(Some(2));
        let x = Tensor::from_vec((0..300).map(|i| (i * i % 97) as f32).collect(), 5);
        let mut out = Tensor::zeros(15, 5);
        mean_rows(&device, &x, &mut out);
        for row in 0..15 {
            for column in 0..5 {
                let sum: f32 = (4 * row..4 * row + 4).map(|row| x.row(row)[column]).sum();
                assert_eq!(out.row(row)[column], sum / 4.0);
            }
        }
    }

    #[test]
    fn rows_are_replaced_and_no_others() {
        let device = Device::cpu(Some(2));
        let from = Tensor::from_vec((0..5000).map(|i| i as f32).collect(), 5);
        for (first, at, num_rows) in [(0, 0, 1000), (7, 2, 900), (999, 999, 1), (3, 4, 0)] {
            let mut out = Tensor::from_vec(vec![-1.0; 5000], 5);
            replace_rows(&device, from.rows_from(first), out.rows_from_mut(at), num_rows);
            for row in 0..1000 {
                match (at..at + num_rows).contains(&row) {
                    true => assert_eq!(out.row(row), from.row(row - at + first)),
                    false => assert_eq!(out.row(row), [-1.0; 5]),
                }
            }
        }
    }

    #[test]
    fn channels_are_standardized() {
        let device = Device::cpu(Some(2));
        let mut x = Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], 2);
        let of = Standardization { factor: 2.0, shift: vec![1.0, -1.0], scale: vec![0.5, 3.0] };
        standardize(&device, &of, &mut x);
        assert_eq!((x.row(0), x.row(1)), (&[0.5, 15.0][..], &[2.5, 27.0][..]));
    }

    #[test]
    fn rows_are_added_and_mixed() {
        let device = Device::cpu(Some(2));
        let table = Tensor::from_vec((0..12).map(|value| value as f32).collect(), 3);
        let mut out = Tensor::zeros(4, 3);
        add_rows(&device, table.rows_from(1), out.rows_from_mut(2), 2);
        assert_eq!(out.values()[..6], [0.0; 6]);
        assert_eq!(out.values()[6..], [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let mut mixed = MixedRows::default();
        (0..3).for_each(|_| mixed.push([(0, 0.25), (1, 0.25), (2, 0.5), (3, 0.0)]));
        mixed.push([(3, -1.0)]);
        add_mixed_rows(&device, &mixed, &table, &mut out);
        assert_eq!(out.row(0), [3.75, 4.75, 5.75]);
        assert_eq!(out.row(2), [6.75, 8.75, 10.75]);
        assert_eq!(out.row(3), [-3.0, -3.0, -3.0]);
    }
}
