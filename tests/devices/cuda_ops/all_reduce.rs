//! all_reduce over ranks that are threads of this process, each with a device.

use std::sync::{Arc, Barrier};
use std::thread;

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::device::gpu::Group;
use vllm_batch::engine::device::{Device, Precision, Tensor};
use vllm_batch::engine::ops::all_reduce;

use crate::cuda_ops::pair::{Pair, rounded, to_bits};

/// (rows, width) of sums that follow each other: less and more than a block's share, aligned and
/// not, and smaller than the grid.
const SHAPES: [(usize, usize); 6] = [(33, 576), (1, 7), (17, 4096), (2, 1000), (1, 8), (129, 48)];
const MAX_VALUES: usize = 17 * 4096;
const ALL: [DType; 3] = [DType::Float32, DType::BFloat16, DType::Float16];

/// The device of a rank, in its place; None: there is none for tests.
fn join(group: &Arc<Group>, rank: usize, dtype: DType) -> Option<Pair> {
    let Some(pair) = Pair::open(dtype, 900 + rank as u64, None) else {
        group.stop();
        return None;
    };
    let Device::Cuda(gpu) = &pair.gpu else { unreachable!("a GPU or its shim") };
    gpu.join(group, rank, MAX_VALUES).expect("every rank joins");
    Some(pair)
}

/// Ends the group of a rank that panics: the others would wait for it.
struct EndsGroup<'a>(&'a Group);

impl Drop for EndsGroup<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

/// What a rank has before sum number `sum`, of `len` values.
fn part(rank: usize, sum: usize, len: usize, dtype: DType) -> Vec<f32> {
    let value = |i: usize| ((i * 31 + rank * 7 + sum * 13) % 101) as f32 * 0.37 - 17.0;
    (0..len).map(|i| rounded(value(i) * 3f32.powi(rank as i32), dtype)).collect()
}

fn upload(device: &Device, values: &[f32], width: usize) -> Tensor {
    device.upload_as(values, width, Precision::Activation).expect("memory")
}

#[test]
fn all_reduce_sums_in_the_order_of_ranks_on_every_rank() {
    for (dtype, num_ranks) in ALL.into_iter().flat_map(|dtype| [(dtype, 2), (dtype, 4)]) {
        let group = Group::new(num_ranks);
        let run = |rank: usize| {
            let _ends = EndsGroup(&group);
            let pair = join(&group, rank, dtype)?;
            let sum = |(sum, (rows, width)): (usize, (usize, usize))| {
                let mut x = upload(&pair.gpu, &part(rank, sum, rows * width, dtype), width);
                all_reduce(&pair.gpu, &mut x);
                to_bits(&pair.gpu.read(&x).expect("the op ran"))
            };
            let shapes = SHAPES.into_iter().chain(SHAPES.into_iter().rev());
            Some((shapes.enumerate().map(sum).collect::<Vec<_>>(), pair.gpu.kernel_set()))
        };
        let of_ranks: Vec<_> = thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> =
                (0..num_ranks).map(|rank| scope.spawn(move || run(rank))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let Some(of_ranks) = of_ranks.into_iter().collect::<Option<Vec<_>>>() else { return };
        let shapes = SHAPES.into_iter().chain(SHAPES.into_iter().rev()).enumerate();
        for (sum, (rows, width)) in shapes {
            let parts: Vec<_> =
                (0..num_ranks).map(|rank| part(rank, sum, rows * width, dtype)).collect();
            let in_order = |i: usize| parts.iter().map(|part| part[i]).reduce(|a, b| a + b);
            let expected: Vec<_> = (0..rows * width)
                .map(|i| rounded(in_order(i).expect("there are ranks"), dtype))
                .collect();
            for (rank, (sums, kernel_set)) in of_ranks.iter().enumerate() {
                let what = format!("sum {sum} of {rows} rows, {num_ranks} ranks, rank {rank}");
                assert!(sums[sum] == to_bits(&expected), "{what}, {}", dtype.name());
                assert!(kernel_set.ends_with(&format!("-tp{num_ranks}")), "{kernel_set}");
            }
        }
    }
}

/// The count of sums is on the device: a replay has the next one.
#[test]
fn all_reduce_is_replayed_with_what_changes_in_buffers() {
    let (dtype, group) = (DType::BFloat16, Group::new(2));
    let run = |rank: usize| {
        let pair = join(&group, rank, dtype)?;
        let gpu = &pair.gpu;
        let mut x = upload(gpu, &vec![1.0 + rank as f32; 80], 40);
        // Once as it is, recorded, replayed and replayed: 1 + 2, then 2 * 3, and so on.
        for _ in 0..4 {
            gpu.record_or_replay(Some(1), &mut || {
                all_reduce(gpu, &mut x);
                all_reduce(gpu, &mut x);
            });
        }
        Some(gpu.read(&x).expect("all ran"))
    };
    let of_ranks = thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        [run(0), other.join().expect("no panic")]
    });
    for values in of_ranks.into_iter().flatten() {
        assert_eq!(values, vec![3.0 * 128.0; 80]);
    }
}

/// A rank that never comes holds nobody up once its group has ended.
#[test]
fn all_reduce_ends_when_a_rank_has_failed() {
    let (group, are_there) = (Group::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let Some(pair) = join(&group, 0, DType::Float32) else { return };
            are_there.wait();
            let mut x = upload(&pair.gpu, &[1.0; 16], 16);
            all_reduce(&pair.gpu, &mut x);
            pair.gpu.read(&x).expect("it ends, whatever it read");
        });
        let fails = scope.spawn(|| {
            let Some(_pair) = join(&group, 1, DType::Float32) else { return };
            are_there.wait();
            group.stop();
        });
        fails.join().expect("no panic");
        waits.join().expect("it does not wait");
    });
    let Some(pair) = Pair::open(DType::Float32, 905, None) else { return };
    let Device::Cuda(gpu) = &pair.gpu else { unreachable!("a GPU or its shim") };
    let ended = Group::new(2);
    ended.stop();
    let error = gpu.join(&ended, 0, 16).unwrap_err().to_string();
    assert!(error.contains("another rank has failed"), "{error}");
}
