//! Rotary embeddings in config.json: `rope_parameters` of transformers 5, nested by the type of
//! layer or not; `rope_theta` and `rope_scaling` of transformers 4.

use super::{HfConfig, LayerType, Section};
use crate::engine::EngineError;
use crate::engine::files::quoted;
use crate::engine::model::spec::{LongRope, RopeScaling, RopeSpec, Yarn};

impl HfConfig {
    /// The rotary embedding of a kind of layers, of heads of `head_dim`.
    ///
    /// # Errors
    /// A kind that is not known, or a value out of range; so for all below.
    pub fn rope(&self, layer_type: LayerType) -> Result<RopeSpec, EngineError> {
        self.rope_of(layer_type, 10_000.0)
    }

    /// The same with the family's default base.
    pub fn rope_of(&self, layer_type: LayerType, base: f64) -> Result<RopeSpec, EngineError> {
        let root = self.root();
        let base = root.number("rope_theta")?.unwrap_or(base);
        let local = root.number("rope_local_base_freq")?;
        let section = match root.section("rope_parameters")? {
            Some(parameters) => Some(parameters.section(layer_type.name())?.unwrap_or(parameters)),
            // Gemma 3's local layers have a base of their own and no scaling.
            None if layer_type == LayerType::Sliding && local.is_some() => None,
            None => root.section("rope_scaling")?,
        };
        let Some(section) = section else {
            let theta = local.filter(|_| layer_type == LayerType::Sliding).unwrap_or(base);
            let rotary_dim = self.rotary_dim(&root)?;
            return Ok(RopeSpec { theta, rotary_dim, scaling: RopeScaling::None });
        };
        let theta = section.number("rope_theta")?.unwrap_or(base);
        let rotary_dim = match section.number("partial_rotary_factor")? {
            Some(_) => self.rotary_dim(&section)?,
            None => self.rotary_dim(&root)?,
        };
        self.scaled(&section, RopeSpec { theta, rotary_dim, scaling: RopeScaling::None })
    }

    /// Refuses a file that says nothing of the rotary embedding, where the family's code then has
    /// a stretched one of its own.
    pub fn expect_rope_scaling(&self) -> Result<(), EngineError> {
        let keys = ["rope_parameters", "rope_scaling"];
        match keys.iter().any(|key| self.root().value(key).is_some()) {
            true => Ok(()),
            false => Err(self.error("`rope_scaling` is missing")),
        }
    }

    /// Values of a head that turn.
    fn rotary_dim(&self, section: &Section<'_>) -> Result<usize, EngineError> {
        let head_dim = self.head_dim()?;
        for key in ["partial_rotary_factor", "rotary_pct", "rope_pct"] {
            let Some(factor) = section.number(key)? else { continue };
            let rotary_dim = (head_dim as f64 * factor) as usize;
            if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
                return Err(self.error(format!(
                    "`{key}` {factor} of a head_dim of {head_dim} is not supported"
                )));
            }
            return Ok(rotary_dim);
        }
        Ok(head_dim)
    }

    fn scaled(&self, section: &Section<'_>, rope: RopeSpec) -> Result<RopeSpec, EngineError> {
        let name = section.text("rope_type")?.or(section.text("type")?).unwrap_or("default");
        let scaling = match name {
            // Three equal axes of positions in text: a plain rotary embedding.
            "default" | "mrope" => {
                section.ignore(&["mrope_section", "mrope_interleaved"]);
                RopeScaling::None
            }
            "linear" => RopeScaling::Linear { factor: section.positive("factor")? },
            "llama3" => RopeScaling::Llama3 {
                factor: section.positive("factor")?,
                low_freq_factor: section.positive("low_freq_factor")?,
                high_freq_factor: section.positive("high_freq_factor")?,
                original_max_position_embeddings: section
                    .positive("original_max_position_embeddings")?,
            },
            "yarn" => RopeScaling::Yarn(self.yarn(section)?),
            "longrope" | "su" => RopeScaling::LongRope(self.longrope(section, rope.rotary_dim)?),
            "dynamic" => return self.dynamic(section, rope),
            "proportional" => {
                // The part that turns is of the frequencies of the whole head.
                let factor = section.number("factor")?.unwrap_or(1.0);
                let scaling =
                    RopeScaling::Proportional { num_turning: rope.rotary_dim / 2, factor };
                return Ok(RopeSpec { rotary_dim: self.head_dim()?, scaling, ..rope });
            }
            other => {
                return Err(self.error(format!(
                    "rope scaling {} is not supported; default, linear, dynamic, llama3, yarn, \
                     longrope, proportional and mrope are",
                    quoted(other)
                )));
            }
        };
        Ok(RopeSpec { scaling, ..rope })
    }

    fn original_len(&self, section: &Section<'_>) -> Result<f64, EngineError> {
        let key = "original_max_position_embeddings";
        match section.number(key)?.or(self.root().number(key)?) {
            Some(len) if len > 0.0 => Ok(len),
            Some(_) => Err(self.error(format!("`{key}` should be positive"))),
            None => Ok(self.max_position_embeddings()? as f64),
        }
    }

    fn yarn(&self, section: &Section<'_>) -> Result<Yarn, EngineError> {
        let original = self.original_len(section)?;
        let factor = match section.number("factor")? {
            Some(_) => section.positive("factor")?,
            None => self.max_position_embeddings()? as f64 / original,
        };
        // As in the paper, section 3.4.
        let mscale = |mscale: f64| match factor > 1.0 {
            true => 0.1 * mscale * factor.ln() + 1.0,
            false => 1.0,
        };
        let is_set = |number: &f64| *number != 0.0;
        let of_all = section.number("mscale_all_dim")?.filter(is_set);
        let of_one = section.number("mscale")?.filter(is_set);
        let attention_factor = match (section.number("attention_factor")?, of_one.zip(of_all)) {
            (Some(factor), _) => factor,
            (None, Some((one, all))) => mscale(one) / mscale(all),
            (None, None) => mscale(1.0),
        };
        Ok(Yarn {
            factor,
            beta_fast: section.number("beta_fast")?.filter(is_set).unwrap_or(32.0),
            beta_slow: section.number("beta_slow")?.filter(is_set).unwrap_or(1.0),
            truncate: section.flag("truncate")?.unwrap_or(true),
            original_max_position_embeddings: original,
            attention_factor,
        })
    }

    fn longrope(&self, section: &Section<'_>, rotary_dim: usize) -> Result<LongRope, EngineError> {
        let factors = |key: &str| {
            let factors = section.numbers(key)?.unwrap_or_default();
            match factors.len() == rotary_dim / 2 && factors.iter().all(|factor| *factor > 0.0) {
                true => Ok(factors),
                false => Err(self.error(format!(
                    "`{key}` of longrope should be {} positive numbers",
                    rotary_dim / 2
                ))),
            }
        };
        let original = self.original_len(section)?;
        let stretch = self.max_position_embeddings()? as f64 / original;
        let factor = match stretch {
            1.0 => section.number("factor")?.unwrap_or(1.0),
            stretch => {
                section.ignore(&["factor"]);
                stretch
            }
        };
        let attention_factor = match section.number("attention_factor")? {
            Some(factor) => factor,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / original.ln()).sqrt(),
        };
        Ok(LongRope {
            short_factor: factors("short_factor")?,
            long_factor: factors("long_factor")?,
            original_max_position_embeddings: original,
            attention_factor,
        })
    }

    fn dynamic(&self, section: &Section<'_>, rope: RopeSpec) -> Result<RopeSpec, EngineError> {
        let max_position_embeddings = self.max_position_embeddings()? as f64;
        // Hunyuan: a fixed stretch of the base.
        if let Some(alpha) = section.number("alpha")?.filter(|alpha| *alpha != 0.0) {
            section.ignore(&["factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"]);
            let dim = rope.rotary_dim as f64;
            let theta = rope.theta * alpha.powf(dim / (dim - 2.0));
            return Ok(RopeSpec { theta, ..rope });
        }
        section.ignore(&["original_max_position_embeddings"]);
        let factor = section.positive("factor")?;
        let scaling = RopeScaling::Dynamic { factor, max_position_embeddings };
        Ok(RopeSpec { scaling, ..rope })
    }
}
