//! V heads that are not what a block's first product gives: the same as K heads, or narrower.

use vllm_batch_checkpoint::spec::{AttentionSpec, QkvHeads};
use vllm_batch_device::{Device, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::Columns;

/// q, k and k again of q and k.
pub(super) fn values_of_keys(device: &Device, heads: QkvHeads, qk: &Tensor, out: &mut Tensor) {
    let (q, kv) = (heads.q_width(), heads.kv_width());
    out.reshape(qk.num_rows(), heads.qkv_width());
    let both = Columns::run(0, q + kv);
    ops::copy_columns(device, (qk, both), (out, both));
    ops::copy_columns(device, (qk, Columns::run(q, kv)), (out, Columns::run(q + kv, kv)));
}

/// q, k and v, whose heads have zeros behind their values, of q, k and v.
pub(super) fn with_zeros_behind_values(
    device: &Device,
    spec: &AttentionSpec,
    qkv: &Tensor,
    out: &mut Tensor,
) {
    let QkvHeads { num_kv_heads, head_dim, .. } = spec.heads;
    let (qk, width) = (spec.heads.q_width() + spec.heads.kv_width(), spec.v_width());
    let num_rows = qkv.num_rows();
    out.reshape(num_rows, spec.heads.qkv_width());
    ops::fill_zero(device, out, num_rows);
    ops::copy_columns(device, (qkv, Columns::run(0, qk)), (out, Columns::run(0, qk)));
    let values = |stride| Columns { start: qk, stride, num: num_kv_heads, width };
    ops::copy_columns(device, (qkv, values(width)), (out, values(head_dim)));
}

/// What heads give without the zeros behind it.
pub(super) fn without_zeros(
    device: &Device,
    (heads, width): (QkvHeads, usize),
    attended: &Tensor,
    out: &mut Tensor,
) {
    let QkvHeads { num_heads, head_dim, .. } = heads;
    out.reshape(attended.num_rows(), num_heads * width);
    let values = |stride| Columns { start: 0, stride, num: num_heads, width };
    ops::copy_columns(device, (attended, values(head_dim)), (out, values(width)));
}
