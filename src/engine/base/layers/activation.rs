//! Activation functions, by their names in a config, and where an MLP applies one.

/// Form of an MLP's inner values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpForm {
    /// down(act(gate(x)) * up(x))
    Gated,
    /// down(act(up(x)))
    Plain,
}

/// Activation functions, by Hugging Face's names in `hidden_act`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu`: x / (1 + e^-x).
    Silu,
    /// `silu` of x times this (Falcon-H1).
    ScaledSilu(f32),
    /// `gelu_pytorch_tanh`, `gelu_new`: the tanh approximation.
    GeluTanh,
    /// `gelu`: x Φ(x), with the error function.
    Gelu,
    /// `quick_gelu`: x / (1 + e^(-1.702 x)).
    QuickGelu,
    /// `relu`.
    Relu,
    /// `relu2`: the square of `relu`.
    Relu2,
    /// `xielu` (Huang and Schlag, 2024), which learns its parameters: alpha_p x² + beta x where
    /// x > 0, elsewhere alpha_n (e^min(x, eps) - 1 - x) + beta x. [`Activation::xielu`] makes one.
    XIelu {
        /// Alpha of the positive side.
        alpha_p: f32,
        /// Alpha of the negative side.
        alpha_n: f32,
        /// Slope at 0.
        beta: f32,
        /// Where the exponential stops, a little below 0.
        eps: f32,
    },
    /// gpt-oss's: min(x, limit) / (1 + e^(-alpha min(x, limit))). What it gates is bounded to
    /// [-limit, limit], and 1 is added.
    ClampedSwiGlu {
        /// Steepness of the gate.
        alpha: f32,
        /// The bound.
        limit: f32,
    },
    /// Step 3.5's: the smaller of `silu` and this. What it gates is bounded to it on both sides.
    BoundedSilu(f32),
}

impl Activation {
    /// It is one of gates, whose other values it bounds.
    pub fn is_of_gates(self) -> bool {
        matches!(self, Self::ClampedSwiGlu { .. } | Self::BoundedSilu(_))
    }

    /// `xielu` of the parameters as a checkpoint has them: the alphas pass through softplus, and
    /// beta is added to the negative side's (transformers' `XIELUActivation`).
    pub fn xielu(stored_alpha_p: f32, stored_alpha_n: f32, beta: f32, eps: f32) -> Self {
        let softplus = |x: f32| match x > 20.0 {
            true => x,
            false => f64::from(x).exp().ln_1p() as f32,
        };
        let (alpha_p, alpha_n) = (softplus(stored_alpha_p), beta + softplus(stored_alpha_n));
        Activation::XIelu { alpha_p, alpha_n, beta, eps }
    }
}
