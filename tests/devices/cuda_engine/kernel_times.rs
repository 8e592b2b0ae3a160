//! Kernels are timed where it is asked for, and the answers are the same.

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::SamplingParams;
use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::stats::GivenLimits;

use super::{config, run};
use crate::gpu;

#[test]
fn every_kernel_and_product_of_a_step_is_timed() {
    let Some(device) = gpu::device(640) else { return };
    let mut engine = Engine::load(&config("qwen3", DType::BFloat16, &device)).expect("a model");
    let rows = || {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(6),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        vec![(Prompt::TokenIds(vec![5, 6, 7]), params)]
    };
    let tokens = |engine: &mut Engine| run(engine, rows())[0].outputs[0].token_ids.clone();
    let before = tokens(&mut engine);
    assert!(engine.queues_ops());
    assert_eq!(engine.finish_op_times(GivenLimits::default()).expect("no failure"), None);

    let given = GivenLimits { flops: Some(1e12), bandwidth: None };
    engine.start_op_times(given);
    assert_eq!(tokens(&mut engine), before, "recorded steps and plain ones have the same tokens");
    let times = engine.finish_op_times(given).expect("no failure").expect("it was on");
    let calls = |name: &str| {
        let ops = times.ops.iter().filter(|op| op.op.name == name);
        ops.map(|op| op.num_calls).sum::<u64>()
    };
    // The prompt is one step, each later token another one.
    let num_steps = 6;
    let per_step = |name: &str| {
        let num_calls = calls(name);
        assert_eq!(num_calls % num_steps, 0, "{name}: {num_calls} calls");
        num_calls / num_steps
    };
    let num_layers = per_step("norm_rotary_and_cache");
    assert!(num_layers > 0, "{times:?}");
    assert_eq!(per_step("activate_and_mul"), num_layers);
    // After the prompt too, for tokens that a V that is not finite could have reached.
    assert_eq!(calls("paged_attention_decode"), num_steps * num_layers);
    assert_eq!(calls("unseen_values"), num_layers);
    assert_eq!(calls("norm_heads"), 0, "q and k are normalized on the way");
    // q, k and v; out; gate and up; down; and the output layer.
    assert_eq!(per_step("linear"), 4 * num_layers + 1);
    let products = times.ops.iter().filter(|op| op.op.name == "linear");
    assert!(products.clone().all(|op| op.work.flops > 0.0 && op.time.as_nanos() > 0), "{times:?}");
    let floor: f64 = products.map(|op| op.floor_seconds(&times.limits)).sum();
    assert!(floor > 0.0 && floor < 1.0, "{floor}");
    assert_eq!(tokens(&mut engine), before, "and recorded ones go on");
}
