//! Experts: the same choices and sums as on the CPU, for every way to choose, and bits that do not
//! depend on other rows. Steps of fewer than 256 rows are routed by choose_experts_1, others by
//! choose_experts_4; then come sort_by_expert, products and add_experts. Products are those of
//! linear_experts_16x64, linear_experts_64x128 or linear_experts_128x128, by the rows of an expert;
//! in float32, and for odd widths, of linear_experts_plain.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::layers::{
    Activation, ExpertGroups, ExpertWeight, GroupScore, MlpForm, Routing, Score, TopK, Weighted,
};
use vllm_batch::engine::base::matrix::{SourceMatrix, SourceValues};
use vllm_batch::engine::device::{Device, Precision};
use vllm_batch::engine::ops::linear::LinearWeight;
use vllm_batch::engine::ops::{
    ExpertWeights, Experts, ExpertsScratch, ExpertsShape, ExpertsWeight, RowSlots, add_experts,
    choose_experts, gate_rows, weigh_inputs,
};

use crate::cuda_ops::pair::{CLOSE, Pair, in_every_dtype, output};

struct Case {
    name: &'static str,
    routing: Routing,
    /// Experts, width of rows, inner width.
    sizes: (usize, usize, usize),
    has_biases: bool,
    form: MlpForm,
    activation: Activation,
    /// The last of the experts, which give what they read.
    num_identities: usize,
}

fn top_k(num: usize, score: Score, weight: ExpertWeight) -> TopK {
    TopK { num, score, groups: None, weight, scale: 1.0 }
}

fn cases() -> Vec<Case> {
    let grouped = |num, num_kept, score| {
        let groups = Some(ExpertGroups { num, num_kept, score });
        let share = ExpertWeight::Share { added: 1e-20, at_least: 0.0 };
        TopK { groups, scale: 2.5, ..top_k(3, Score::Sigmoid, share) }
    };
    let case = |name, routing, sizes, has_biases| Case {
        name,
        routing,
        sizes,
        has_biases,
        form: MlpForm::Gated,
        activation: Activation::Silu,
        num_identities: 0,
    };
    let softmax = top_k(4, Score::Softmax, ExpertWeight::SHARE);
    let logits = top_k(2, Score::Logits, ExpertWeight::Softmax);
    vec![
        case("softmax", Routing::TopK(softmax.clone()), (40, 72, 40), false),
        case(
            "groups by two",
            Routing::TopK(grouped(4, 2, GroupScore::BestTwo)),
            (16, 64, 16),
            true,
        ),
        case("groups by one", Routing::TopK(grouped(3, 1, GroupScore::Best)), (12, 24, 136), false),
        case("sparse mixer", Routing::SparseMixer { jitter: 0.1 }, (6, 40, 24), false),
        Case {
            activation: Activation::ClampedSwiGlu { alpha: 1.702, limit: 0.5 },
            ..case("softmax of the chosen", Routing::TopK(logits), (5, 48, 32), true)
        },
        Case {
            form: MlpForm::Plain,
            activation: Activation::Relu2,
            ..case("no gates", Routing::TopK(softmax.clone()), (8, 40, 24), true)
        },
        Case {
            activation: Activation::BoundedSilu(0.2),
            ..case("bounded", Routing::TopK(softmax.clone()), (6, 40, 24), false)
        },
        Case {
            num_identities: 3,
            ..case("identities", Routing::TopK(softmax.clone()), (9, 48, 32), true)
        },
        // Widths that the matrix units do not take.
        Case { num_identities: 2, ..case("odd widths", Routing::TopK(softmax), (7, 22, 13), true) },
    ]
}

fn weight(pair: &Pair, device: &Device, case: &Case) -> ExpertsWeight {
    let (num_experts, width, inner) = case.sizes;
    let layer = |rows: usize, columns: usize, seed: u64| {
        let values = pair.values(rows, columns, seed, 0.4).values;
        let bias = case.has_biases.then(|| pair.values(1, rows, seed + 1000, 0.2).values);
        (SourceMatrix::new(rows, columns, SourceValues::Owned(values.into())), bias)
    };
    // The CPU computes with the same values in f32.
    let full = |(matrix, bias): (SourceMatrix<'static>, _)| {
        LinearWeight::load(device, DType::Float32, &[matrix].into(), bias).expect("memory")
    };
    let up_rows = if case.form == MlpForm::Gated { 2 * inner } else { inner };
    let up = |expert: u64| layer(up_rows, width, 10 * expert + 3);
    let down = |expert: u64| layer(width, inner, 10 * expert + 4);
    let num_with_weights = num_experts - case.num_identities;
    let all = 0..num_with_weights as u64;
    let experts = match device {
        Device::Cpu(_) => {
            let expert =
                |expert: u64| ExpertWeights { up: full(up(expert)), down: full(down(expert)) };
            Experts::Apart(all.map(expert).collect())
        }
        Device::Cuda(_) => {
            let stack = |of: &dyn Fn(u64) -> (SourceMatrix<'static>, Option<Vec<f32>>)| {
                let (layers, biases): (Vec<_>, Vec<_>) = all.clone().map(of).unzip();
                let biases = biases.into_iter().collect::<Option<Vec<_>>>();
                let biases = (biases.map(|biases| biases.concat()), num_with_weights);
                LinearWeight::load_experts(&pair.gpu, pair.dtype, &layers.into(), biases)
            };
            let (up, down) = (stack(&up).expect("memory"), stack(&down).expect("memory"));
            Experts::Stacked(Box::new(ExpertWeights { up, down }))
        }
    };
    let factors = |seed: u64| pair.values(1, num_experts, seed, 0.3).values;
    let weight = ExpertsWeight {
        router: full(layer(num_experts, width, 1)),
        choice_bias: case.has_biases.then(|| factors(2)),
        weight_factors: case.has_biases.then(|| factors(5)),
        weighted: Weighted::Outputs,
        routing: case.routing.clone(),
        form: case.form,
        activation: case.activation,
        experts,
        num_identities: case.num_identities,
        on_gpu: None,
    };
    weight.prepared(device).expect("memory")
}

fn shape(case: &Case) -> ExpertsShape {
    let (num_experts, _, inner) = case.sizes;
    ExpertsShape { num_experts, num_chosen: case.routing.num_chosen(), inner }
}

#[test]
fn choose_experts_1_sort_by_expert_linear_experts_plain_and_add_experts_agree_with_the_cpu() {
    in_every_dtype(70, |pair| {
        // Inner values are rounded on the way.
        let slack = match pair.dtype {
            DType::Float32 => 2.0 * CLOSE,
            DType::BFloat16 => 2e-2,
            DType::Float16 => 3e-3,
        };
        for case in cases() {
            let width = case.sizes.1;
            let weights = pair.on_both(|device| weight(pair, device, &case));
            for num_rows in [1, 5, 70] {
                let x = pair.values(num_rows, width, 6, 1.0);
                let before = pair.values(num_rows, width, 7, 1.0);
                pair.check(case.name, num_rows, slack, &|device, rows| {
                    let size = (rows.len(), width);
                    let of = (device, DType::Float32);
                    let mut scratch = ExpertsScratch::new(of, size, shape(&case)).unwrap();
                    let (x, weight) = (x.activations(device, rows), weights.of(device));
                    let mut out = before.activations(device, rows);
                    let routed = (&x, RowSlots::default());
                    choose_experts(device, routed, weight, &mut scratch);
                    add_experts(device, &x, weight, &mut scratch, &mut out);
                    vec![out]
                });
            }
        }
    });
}

/// All tiles of the matrix units, and the rows that a block routes at a time.
#[test]
fn choose_experts_4_linear_experts_16x64_linear_experts_64x128_and_linear_experts_128x128_agree() {
    let Some(pair) = Pair::open(DType::BFloat16, 71, None) else { return };
    let routing = Routing::TopK(top_k(2, Score::Softmax, ExpertWeight::SHARE));
    let sizes = (3, 64, 72);
    let (form, activation) = (MlpForm::Gated, Activation::Silu);
    let (name, has_biases, num_identities) = ("many rows", false, 0);
    let case = Case { name, routing, sizes, has_biases, form, activation, num_identities };
    let weight = weight(&pair, &pair.gpu, &case);
    let x = pair.values(400, 64, 8, 1.0);
    let run = |rows: &[usize]| {
        let mut scratch =
            ExpertsScratch::new((&pair.gpu, pair.dtype), (rows.len(), 64), shape(&case))
                .expect("memory");
        let x = x.activations(&pair.gpu, rows);
        let mut out = output(&pair.gpu, rows.len(), 64, Precision::Activation);
        choose_experts(&pair.gpu, (&x, RowSlots::default()), &weight, &mut scratch);
        add_experts(&pair.gpu, &x, &weight, &mut scratch, &mut out);
        pair.gpu.read(&out).expect("the op ran")
    };
    let alone: Vec<Vec<f32>> = (0..400).step_by(57).map(|row| run(&[row])).collect();
    for num_rows in [60, 100, 400] {
        let all = run(&(0..num_rows).collect::<Vec<_>>());
        for (row, alone) in (0..num_rows).step_by(57).zip(&alone) {
            assert!(all[row * 64..(row + 1) * 64] == alone[..], "row {row} of {num_rows}");
        }
    }
}

#[test]
fn weigh_inputs_takes_the_weights_of_one_expert_each() {
    in_every_dtype(74, |pair| {
        // What it reads is rounded once more.
        let slack = match pair.dtype {
            DType::Float32 => 2.0 * CLOSE,
            DType::BFloat16 => 3e-2,
            DType::Float16 => 4e-3,
        };
        let case = Case {
            name: "inputs",
            routing: Routing::TopK(top_k(1, Score::Logits, ExpertWeight::Sigmoid)),
            sizes: (5, 40, 24),
            has_biases: false,
            form: MlpForm::Gated,
            activation: Activation::Silu,
            num_identities: 0,
        };
        let weights = pair.on_both(|device| weight(pair, device, &case));
        for num_rows in [1, 9, 70] {
            let (x, before) =
                (pair.values(num_rows, 40, 6, 1.0), pair.values(num_rows, 40, 7, 1.0));
            pair.check(case.name, num_rows, slack, &|device, rows| {
                let of = (device, DType::Float32);
                let size = (rows.len(), 40);
                let mut scratch = ExpertsScratch::new(of, size, shape(&case)).unwrap();
                let (mut x, weight) = (x.activations(device, rows), weights.of(device));
                let mut out = before.activations(device, rows);
                choose_experts(device, (&x, RowSlots::default()), weight, &mut scratch);
                weigh_inputs(device, &mut x, &mut scratch);
                add_experts(device, &x, weight, &mut scratch, &mut out);
                vec![out]
            });
        }
    });
}

#[test]
fn gate_rows_takes_a_sigmoid() {
    in_every_dtype(73, |pair| {
        let (x, before) = (pair.values(9, 40, 3, 1.0), pair.values(9, 24, 4, 1.0));
        let gates = pair.on_both(|device| {
            let values = pair.values(1, 40, 5, 0.5).values;
            let rows = [SourceMatrix::new(1, 40, SourceValues::Slice(&values))].into();
            LinearWeight::load(device, DType::Float32, &rows, None).expect("memory")
        });
        pair.check("gate_rows", 9, CLOSE, &|device, rows| {
            let one = ExpertsShape { num_experts: 1, num_chosen: 1, inner: 1 };
            let of = (device, DType::Float32);
            let mut scratch = ExpertsScratch::new(of, (rows.len(), 40), one).unwrap();
            let x = x.activations(device, rows);
            let mut out = before.activations(device, rows);
            gate_rows(device, &x, gates.of(device), &mut scratch, &mut out);
            vec![out]
        });
    });
}
