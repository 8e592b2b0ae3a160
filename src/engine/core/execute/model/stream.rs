//! `Stream`: the residual stream, and how layers read it and add to it. What decoders and encoders
//! have in common.

use super::branch::Branch;
use super::indexer::IndexerBuffers;
use super::loading::{
    AttentionWeights, BlockNormWeights, FeedForwardWeights, LayerWeights, MlpWeights,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::Weighted;
use vllm_batch_checkpoint::spec::{
    AttentionSpec, Kept, LateExperts, LayerSpec, LinearSpec, MlpForm, NormSpan, PositionScale,
    QkNormOrder, Wiring, num_kept,
};
use vllm_batch_device::{Device, Precision, RowsMut, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{
    AdaptedLinear, ExpertsScratch, ExpertsShape, ExpertsWeight, HeadTransform, RotaryTable,
    RowSlots, Step, StepLoras,
};

/// The stream and the buffers of what runs over it, allocated once for the largest step of T
/// tokens. A block leaves what it adds in `delta`; the next one (or the end) adds it, in the same
/// pass as its norm.
#[derive(Debug)]
pub(super) struct Stream {
    /// (T, hidden_size) what blocks add to.
    pub residual: Tensor,
    /// (T, hidden_size) what a block adds.
    pub delta: Tensor,
    /// `delta` is not added yet.
    pub has_delta: bool,
    /// Which of the step's rows do not only pad.
    slots: RowSlots,
    /// The adapters of the step.
    pub loras: StepLoras,
    /// (rows of a block, hidden_size) what a block reads; (T, hidden_size) with experts.
    pub normed: Tensor,
    /// (rows of a block, 2 * intermediate_size or intermediate_size)
    up: Tensor,
    /// (rows of a block, intermediate_size), only when gated.
    activated: Option<Tensor>,
    /// What experts work in, only in such models.
    experts: Option<ExpertsScratch>,
    /// (T, latent width) what experts read and their sum, only where that is narrower.
    latent: Option<[Tensor; 2]>,
    /// Only where something is beside attention.
    pub branch: Option<Branch>,
    /// (T, hidden_size), only in such models: what a block adds where the next one reads the same,
    /// or what experts apart from the MLP give.
    beside: Option<Tensor>,
    /// `beside` and `delta` have changed places in the step. A step begins with each in its own, so
    /// that a recorded one has the pointers of the next.
    is_swapped: bool,
    /// (T, hidden_size) each: streams of earlier layers, only in models that come back to them.
    kept: Vec<Tensor>,
}

/// What a block lets tokens look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixed {
    /// Tokens of their own sequence.
    Tokens,
    /// States of its source.
    Source,
}

impl Stream {
    /// Buffers for steps of `num_tokens` tokens through these layers, whose weights are of `dtype`.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new(
        (device, dtype): (&Device, DType),
        (num_tokens, hidden_size): (usize, usize),
        layers: &[LayerSpec],
    ) -> Result<Self, EngineError> {
        let mlps = || layers.iter().flat_map(mlp_of);
        let up_width = mlps().map(|(_, up, _)| up.n()).max().unwrap_or(0);
        let gated = mlps().filter(|(form, ..)| *form == MlpForm::Gated);
        let activated = gated.map(|(.., down)| down.k).max();
        let experts = experts_shape(layers);
        let latents = layers.iter().filter_map(LayerSpec::experts).flat_map(|e| &e.latent);
        let latent_width = latents.map(|latent| latent.into.n()).max();
        let experts_width = latent_width.unwrap_or(0).max(hidden_size);
        // A copy of the residual is no input that a norm rounds, and routers read f32.
        let mut norms = layers.iter().flat_map(LayerSpec::block_norms);
        let is_rounded = norms.all(|norms| norms.before.is_some()) && experts.is_none();
        let linear_input = Precision::LinearInput(dtype);
        // Values that are bounded are no inputs yet.
        let is_bounded = layers.iter().any(LayerSpec::is_bounded);
        let of_normed =
            if is_rounded && !is_bounded { linear_input } else { Precision::Activation };
        let of_activated = if is_bounded { Precision::Activation } else { linear_input };
        let has_apart = |layer: &LayerSpec| layer.experts().is_some_and(|e| e.apart.is_some());
        let has_both = |layer: &LayerSpec| layer.attention.is_some() && layer.recurrent.is_some();
        let is_aside = |layer: &LayerSpec| {
            layer.wiring == Wiring::Parallel || has_apart(layer) || has_both(layer)
        };
        let sets_aside = layers.iter().any(is_aside);
        let block_rows = device.block_rows(num_tokens);
        let rows_read = if experts.is_some() { num_tokens } else { block_rows };
        let per_row = |width, precision| device.tensor(block_rows, width, precision);
        let per_token = || device.tensor(num_tokens, hidden_size, Precision::Activation);
        Ok(Self {
            residual: device.tensor(num_tokens, hidden_size, Precision::Full)?,
            delta: per_token()?,
            has_delta: false,
            slots: RowSlots::default(),
            loras: StepLoras::default(),
            normed: device.tensor(rows_read, hidden_size, of_normed)?,
            up: per_row(up_width, Precision::Activation)?,
            activated: activated.map(|width| per_row(width, of_activated)).transpose()?,
            experts: experts
                .map(|shape| {
                    ExpertsScratch::new((device, dtype), (num_tokens, experts_width), shape)
                })
                .transpose()?,
            latent: latent_width
                .map(|width| -> Result<_, EngineError> {
                    let per_token = || device.tensor(num_tokens, width, Precision::Activation);
                    Ok([per_token()?, per_token()?])
                })
                .transpose()?,
            branch: Branch::new(device, (num_tokens, hidden_size), layers)?,
            beside: sets_aside.then(per_token).transpose()?,
            is_swapped: false,
            kept: (0..num_kept(layers)).map(|_| per_token()).collect::<Result<_, _>>()?,
        })
    }

    /// The same with slots for so many kept streams, of which other stages of the model have some.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn with_kept(
        mut self,
        device: &Device,
        (num_tokens, hidden_size): (usize, usize),
        num_kept: usize,
    ) -> Result<Self, EngineError> {
        while self.kept.len() < num_kept {
            self.kept.push(device.tensor(num_tokens, hidden_size, Precision::Activation)?);
        }
        Ok(self)
    }

    /// Begins a step.
    pub(super) fn begin(&mut self, step: Step<'_>) {
        if self.is_swapped {
            self.swap_beside();
        }
        self.residual.set_num_rows(step.num_rows());
        self.delta.set_num_rows(step.num_rows());
        self.has_delta = false;
        self.slots = step.row_slots();
    }

    /// What later stages go on with, once all that blocks add is added.
    pub(super) fn crossing(&mut self) -> impl Iterator<Item = &mut Tensor> {
        [&mut self.residual].into_iter().chain(&mut self.kept)
    }

    /// Runs a layer over the stream. `mix_tokens` puts what its attention, or what it has in the
    /// place of that, adds into `delta`; then the same of its attention to a source.
    pub(super) fn layer(
        &mut self,
        device: &Device,
        (spec, weights): (&LayerSpec, &LayerWeights),
        mut mix_tokens: impl FnMut(&mut Self, Mixed),
    ) {
        self.mix(device, spec);
        let of_attention = weights.attention.as_ref().map(|attention| &attention.norms);
        let norms = of_attention.or(weights.recurrent.as_ref().map(|block| &block.norms));
        if let Some(norms) = norms {
            if let Some(branch) = &weights.branch {
                self.begin_branch(device, branch, norms);
            }
            mix_tokens(self, Mixed::Tokens);
            self.block_output(device, norms, spec.residual_scale);
            if let Some(branch) = &weights.branch {
                self.end_branch(device, branch);
            }
        }
        if let Some(cross) = &weights.cross {
            mix_tokens(self, Mixed::Source);
            self.block_output(device, &cross.norms, spec.residual_scale);
        }
        let is_parallel = spec.wiring == Wiring::Parallel;
        if is_parallel {
            // The MLP reads the stream without what attention adds.
            self.set_aside();
        }
        if let Some(of_mlp) = &weights.feed_forward {
            self.late_experts(device, (spec.late.as_ref(), weights.late.as_ref()), &of_mlp.norms);
        }
        if let Some(weights) = &weights.feed_forward {
            match &weights.experts {
                None => self.mlp(device, weights),
                Some(experts) => self.experts(device, &weights.norms, (weights, experts)),
            }
            self.scale_delta(device, spec.scales.feed_forward);
            self.block_output(device, &weights.norms, spec.residual_scale);
        }
        if let (true, Some(beside)) = (is_parallel, &self.beside) {
            ops::add(device, &mut self.residual, beside);
        }
    }

    /// What a block has left in `delta` waits, so that the next one reads the stream without it.
    pub(super) fn set_aside(&mut self) {
        let num_rows = self.delta.num_rows();
        self.swap_beside();
        self.delta.set_num_rows(num_rows);
        self.has_delta = false;
    }

    fn swap_beside(&mut self) {
        let beside = self.beside.as_mut().expect("a model that sets something aside has room");
        std::mem::swap(beside, &mut self.delta);
        self.is_swapped = !self.is_swapped;
    }

    /// delta += what was set aside.
    pub(super) fn add_what_is_aside(&mut self, device: &Device) {
        if let Some(beside) = &self.beside {
            ops::add(device, &mut self.delta, beside);
        }
    }

    /// What a block adds is multiplied by its factor, if it has one.
    pub(super) fn scale_delta(&mut self, device: &Device, scale: Option<f32>) {
        if let Some(scale) = scale {
            ops::scale(device, &mut self.delta, scale);
        }
    }

    /// Adds what a block has left in `delta`, so that `residual` is the stream.
    pub(super) fn settle(&mut self, device: &Device) {
        if std::mem::take(&mut self.has_delta) {
            ops::add(device, &mut self.residual, &self.delta);
        }
    }

    /// The stream is kept for later layers, or mixed with that of an earlier one.
    fn mix(&mut self, device: &Device, spec: &LayerSpec) {
        if spec.adds.is_some() || !spec.keeps.is_empty() {
            self.settle(device);
        }
        let Self { residual, kept, .. } = self;
        for &Kept { slot, factor } in &spec.keeps {
            ops::copy(device, residual, &mut kept[slot]);
            ops::scale(device, &mut kept[slot], factor);
        }
        if let Some(Kept { slot, factor }) = spec.adds {
            if factor != 1.0 {
                ops::scale(device, residual, factor);
            }
            ops::add(device, residual, &kept[slot]);
        }
    }

    /// qkv = q, k and v of the stream; and what the block's indexer reads goes into `beside`.
    pub(super) fn qkv(
        &mut self,
        device: &Device,
        (spec, weights): (&AttentionSpec, &AttentionWeights),
        qkv: &mut Tensor,
        beside: Option<&mut IndexerBuffers>,
    ) {
        let num_rows = self.residual.num_rows();
        qkv.reshape(num_rows, spec.qkv.n());
        let beside = spec.indexer().zip(weights.indexer.as_ref()).zip(beside);
        let beside = beside.map(|((spec, weights), buffers)| {
            (&weights.inputs, buffers.product(num_rows, &spec.inputs))
        });
        match beside {
            None => self.products(device, &weights.norms, &mut [(&weights.qkv, qkv)]),
            Some(beside) => {
                self.products(device, &weights.norms, &mut [(&weights.qkv, qkv), beside]);
            }
        }
    }

    /// out = a block's first linear layer of what the block reads.
    pub(super) fn first_product(
        &mut self,
        device: &Device,
        norms: &BlockNormWeights,
        (spec, layer): (&LinearSpec, &AdaptedLinear),
        out: &mut Tensor,
    ) {
        out.reshape(self.residual.num_rows(), spec.n());
        self.products(device, norms, &mut [(layer, out)]);
    }

    /// out = linear layers of what a block reads.
    fn products(
        &mut self,
        device: &Device,
        norms: &BlockNormWeights,
        products: &mut [(&AdaptedLinear, &mut Tensor)],
    ) {
        for (start, num_rows) in self.row_blocks(device) {
            self.block_input(device, norms, (start, num_rows));
            for (layer, out) in &mut *products {
                bound_inputs(device, layer, self.normed.rows_from_mut(0), num_rows);
                let x = self.normed.rows_from(0);
                let rows = (&mut self.loras, start, num_rows);
                ops::adapted_linear_rows(device, x, layer, out.rows_from_mut(start), rows);
                bound_outputs(device, layer, out.rows_from_mut(start), num_rows);
            }
        }
    }

    /// delta = a block's last linear layer of all rows, summed over the ranks that share it.
    pub(super) fn last_product(&mut self, device: &Device, x: &mut Tensor, layer: &AdaptedLinear) {
        let Self { delta, loras, .. } = self;
        let num_rows = x.num_rows();
        delta.set_num_rows(num_rows);
        bound_inputs(device, layer, x.rows_from_mut(0), num_rows);
        let (out, rows) = (delta.rows_from_mut(0), (loras, 0, num_rows));
        ops::adapted_linear_rows(device, x.rows_from(0), layer, out, rows);
        bound_outputs(device, layer, delta.rows_from_mut(0), num_rows);
        ops::all_reduce(device, delta);
    }

    /// (first row, rows): a block at a time where the device has a cache to keep its buffers in.
    fn row_blocks(&self, device: &Device) -> impl Iterator<Item = (usize, usize)> + use<> {
        let num_rows = self.residual.num_rows();
        let block_rows = device.block_rows(num_rows);
        (0..num_rows)
            .step_by(block_rows)
            .map(move |start| (start, block_rows.min(num_rows - start)))
    }

    /// normed = what the block reads, for some rows; the delta of the block before is added on the
    /// way.
    fn block_input(
        &mut self,
        device: &Device,
        norms: &BlockNormWeights,
        (start, num_rows): (usize, usize),
    ) {
        let Self { residual, delta, normed, has_delta, .. } = self;
        normed.set_num_rows(num_rows);
        match &norms.before {
            Some(norm) => {
                let delta = has_delta.then_some(&*delta);
                ops::add_norm_rows(device, (residual, delta), start, norm, normed);
            }
            None => {
                // All rows are added with the first ones.
                if *has_delta && start == 0 {
                    ops::add(device, residual, delta);
                }
                ops::copy_rows(device, residual.rows_from(start), normed);
            }
        }
    }

    /// delta = the MLP of the stream, summed over the ranks that share it.
    fn mlp(&mut self, device: &Device, weights: &FeedForwardWeights) {
        let FeedForwardWeights { norms, mlp, .. } = weights;
        for (start, num_rows) in self.row_blocks(device) {
            self.block_input(device, norms, (start, num_rows));
            mlp.iter().for_each(|mlp| self.mlp_rows(device, mlp, (0, start), num_rows));
        }
        ops::all_reduce(device, &mut self.delta);
    }

    /// Keeps what experts beside the layer's MLP give, for a later layer. What the block before
    /// adds is added then.
    fn late_experts(
        &mut self,
        device: &Device,
        (spec, weights): (Option<&LateExperts>, Option<&FeedForwardWeights>),
        norms: &BlockNormWeights,
    ) {
        let (Some(spec), Some(weights)) = (spec, weights) else { return };
        let Some(experts) = &weights.experts else { return };
        self.experts(device, norms, (weights, experts));
        self.has_delta = false;
        ops::copy(device, &self.delta, &mut self.kept[spec.slot]);
    }

    /// delta = the experts of the stream, the one of all tokens first.
    fn experts(
        &mut self,
        device: &Device,
        norms: &BlockNormWeights,
        (weights, experts): (&FeedForwardWeights, &ExpertsWeight),
    ) {
        let num_rows = self.residual.num_rows();
        self.block_input(device, norms, (0, num_rows));
        match &weights.mlp {
            None => ops::fill_zero(device, &mut self.delta, num_rows),
            Some(mlp) => {
                for (start, num_rows) in self.row_blocks(device) {
                    self.mlp_rows(device, mlp, (start, start), num_rows);
                }
            }
        }
        let Self { residual, normed, delta, beside, latent, experts: scratch, slots, .. } = self;
        let Some(scratch) = scratch else { unreachable!("made where there are experts") };
        if let Some(gate) = &weights.gate {
            ops::gate_rows(device, normed, gate, scratch, delta);
        }
        match (&weights.apart, beside) {
            (Some(apart), Some(beside)) => {
                ops::norm_in_place(device, delta, &apart.mlp_after);
                ops::add_norm(device, residual, None, &apart.router, beside);
                ops::choose_experts(device, (beside, *slots), experts, scratch);
                ops::add_norm(device, residual, None, &apart.experts_before, normed);
                ops::fill_zero(device, beside, num_rows);
                ops::add_experts(device, normed, experts, scratch, beside);
                ops::norm_in_place(device, beside, &apart.experts_after);
                ops::add(device, delta, beside);
            }
            _ => {
                ops::choose_experts(device, (normed, *slots), experts, scratch);
                if experts.weighted == Weighted::Inputs {
                    ops::weigh_inputs(device, normed, scratch);
                }
                match (&weights.latent, latent) {
                    (Some(weights), Some([x, sum])) => {
                        x.reshape(num_rows, weights.into.shape().0);
                        sum.reshape(num_rows, weights.back.shape().1);
                        ops::linear(device, normed, &weights.into, x);
                        ops::fill_zero(device, sum, num_rows);
                        ops::add_experts(device, x, experts, scratch, sum);
                        ops::linear(device, sum, &weights.back, normed);
                        ops::add(device, delta, normed);
                    }
                    _ => ops::add_experts(device, normed, experts, scratch, delta),
                }
            }
        }
    }

    /// Rows of delta = the MLP of rows of normed, both from their first ones on.
    fn mlp_rows(
        &mut self,
        device: &Device,
        weights: &MlpWeights,
        (from, to): (usize, usize),
        num_rows: usize,
    ) {
        let activation = weights.activation;
        let Self { normed, delta, up, activated, loras, .. } = self;
        bound_inputs(device, &weights.up, normed.rows_from_mut(from), num_rows);
        let input = normed.rows_from(from);
        up.reshape(num_rows, weights.up.weight.shape().0);
        let inner = match (weights.form, activated) {
            (MlpForm::Gated, Some(activated)) => {
                activated.reshape(num_rows, weights.down.weight.shape().1);
                // What adapters add, bounds and cuts come before the activation.
                let is_changed = weights.up.bounds.is_some() || weights.cutoff.is_some();
                if is_changed || weights.up.is_adapted(loras, to..to + num_rows) {
                    let out = up.rows_from_mut(0);
                    let rows = (&mut *loras, to, num_rows);
                    ops::adapted_linear_rows(device, input, &weights.up, out, rows);
                    bound_outputs(device, &weights.up, up.rows_from_mut(0), num_rows);
                    if let Some(cutoff) = weights.cutoff {
                        ops::keep_largest(device, up, up.width() / 2, cutoff);
                    }
                    ops::activate_and_mul(device, activation, up, activated);
                } else {
                    let weight = (&weights.up.weight, activation);
                    let out = (&mut *up, &mut *activated);
                    ops::linear_activate_and_mul(device, input, weight, out, num_rows);
                }
                activated
            }
            _ => {
                let (out, rows) = (up.rows_from_mut(0), (&mut *loras, to, num_rows));
                ops::adapted_linear_rows(device, input, &weights.up, out, rows);
                bound_outputs(device, &weights.up, up.rows_from_mut(0), num_rows);
                ops::activate(device, activation, up);
                up
            }
        };
        bound_inputs(device, &weights.down, inner.rows_from_mut(0), num_rows);
        let (x, out) = (inner.rows_from(0), delta.rows_from_mut(to));
        let rows = (loras, to, num_rows);
        ops::adapted_linear_rows(device, x, &weights.down, out, rows);
        bound_outputs(device, &weights.down, delta.rows_from_mut(to), num_rows);
    }

    /// Normalizes and scales what a block adds, or normalizes the sum. Without a norm of the sum
    /// the block after adds.
    fn block_output(&mut self, device: &Device, norms: &BlockNormWeights, scale: Option<f32>) {
        let Self { residual, delta, has_delta, .. } = self;
        if let Some(norm) = &norms.after {
            ops::norm_in_place(device, delta, norm);
        }
        if let Some(factors) = &norms.layer_scale {
            ops::scale_columns(device, delta, factors);
        }
        if let Some(scale) = scale {
            ops::scale(device, delta, scale);
        }
        *has_delta = norms.of_sum.is_none();
        if let Some(norm) = &norms.of_sum {
            ops::add(device, residual, delta);
            ops::norm_in_place(device, residual, norm);
        }
    }
}

/// Clamps what a layer reads, where it has bounds.
fn bound_inputs(device: &Device, layer: &AdaptedLinear, x: RowsMut<'_>, num_rows: usize) {
    if let Some(bounds) = &layer.bounds {
        let of_all = [(x.tensor.width(), bounds.inputs)];
        ops::clamp_columns(device, x, num_rows, &of_all);
    }
}

/// Clamps what a layer gives, where it has bounds.
fn bound_outputs(device: &Device, layer: &AdaptedLinear, out: RowsMut<'_>, num_rows: usize) {
    if let Some(bounds) = &layer.bounds {
        ops::clamp_columns(device, out, num_rows, &bounds.outputs);
    }
}

/// What all tokens go through in a layer's feed-forward block: up and down.
fn mlp_of(layer: &LayerSpec) -> Option<(MlpForm, &LinearSpec, &LinearSpec)> {
    let experts = layer.experts();
    let shared = experts.and_then(|experts| Some((experts.form, experts.shared.as_ref()?)));
    let shared = shared.map(|(form, shared)| (form, &shared.mlp.up, &shared.mlp.down));
    layer.mlp().map(|mlp| (mlp.form, &mlp.up, &mlp.down)).or(shared)
}

/// The largest sizes of experts; None: there are none.
fn experts_shape(layers: &[LayerSpec]) -> Option<ExpertsShape> {
    let shapes = layers.iter().filter_map(LayerSpec::experts).map(|experts| ExpertsShape {
        num_experts: experts.num(),
        num_chosen: experts.routing.num_chosen(),
        inner: experts.experts.iter().map(|expert| expert.down.k).max().unwrap_or(0),
    });
    shapes.reduce(|a, b| ExpertsShape {
        num_experts: a.num_experts.max(b.num_experts),
        num_chosen: a.num_chosen.max(b.num_chosen),
        inner: a.inner.max(b.inner),
    })
}

/// Bounds q and k, and normalizes them where it takes all heads together or comes after the
/// rotation. Gives what is left to be done to the heads.
pub(super) fn begin_heads<'a>(
    device: &Device,
    (spec, weights): (&AttentionSpec, &'a AttentionWeights),
    rotary: Option<&'a RotaryTable>,
    step: Step<'_>,
    qkv: &mut Tensor,
) -> HeadTransform<'a> {
    let heads = spec.own_heads();
    if let Some(limit) = spec.clip_qkv {
        ops::clamp(device, qkv, limit);
    }
    let mut left = HeadTransform { norms: [None, None, weights.v_norm.as_ref()], rotary };
    let Some((spec, (q, k))) = spec.qk_norm.as_ref().zip(weights.qk_norm.as_ref()) else {
        return left;
    };
    if let Some(rotary) = left.rotary.take_if(|_| spec.order == QkNormOrder::AfterRotation) {
        ops::rotate(device, qkv, heads, rotary, step);
    }
    match spec.span {
        NormSpan::Head => (left.norms[0], left.norms[1]) = (Some(q), k.as_ref()),
        NormSpan::AllHeads => {
            for (heads, norm) in [(heads.q(), Some(q)), (heads.k(), k.as_ref())] {
                let head_dim = heads.num_heads * heads.head_dim;
                let all = ops::Heads { num_heads: 1, head_dim, ..heads };
                norm.into_iter().for_each(|norm| ops::norm_heads(device, qkv, all, norm));
            }
        }
    }
    left
}

/// Lets q grow with the position, in models where it does.
pub(super) fn scale_q(device: &Device, spec: &AttentionSpec, step: Step<'_>, qkv: &mut Tensor) {
    let Some(PositionScale { beta, offset, original_max_position_embeddings: original }) =
        spec.position_scale
    else {
        return;
    };
    let (positions, original) = (step.positions(), (offset, original));
    ops::scale_by_position(device, qkv, spec.heads.q(), positions, beta, original);
}
