//! Rotary embeddings in config.json: `rope_parameters` of transformers 5, nested by the type of
//! layer or not; `rope_theta` and `rope_scaling` of transformers 4.

use super::{HfConfig, LayerType, Section};
use crate::spec::{AxisFrequency, LongRope, RopeScaling, RopeSpec, Yarn};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// Names of the part of a head that turns: transformers', GPT-NeoX's, StableLM's, Nemotron's.
const ROTARY_PART_KEYS: &[&str] =
    &["partial_rotary_factor", "rotary_pct", "rope_pct", "rope_percent", "rope_percentage"];

/// What a family's rotary embedding is where the file does not say.
#[derive(Clone, Copy, Debug)]
pub struct RopeDefaults {
    /// Base of the frequencies.
    pub base: f64,
    /// Part of a head that turns.
    pub part: f64,
    /// Width of the heads; None: the file's one of all layers.
    pub head_dim: Option<usize>,
}

impl RopeDefaults {
    /// Of heads as wide as the file says.
    pub fn new(base: f64, part: f64) -> Self {
        Self { base, part, head_dim: None }
    }
}

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
        self.rope_with(layer_type, RopeDefaults::new(base, 1.0))
    }

    /// The same with all of the family's defaults.
    pub fn rope_with(
        &self,
        layer_type: LayerType,
        defaults: RopeDefaults,
    ) -> Result<RopeSpec, EngineError> {
        let root = self.root();
        let base = root.number("rope_theta")?.unwrap_or(defaults.base);
        let local = root.number("rope_local_base_freq")?;
        let section = match root.section("rope_parameters")? {
            Some(parameters) => Some(parameters.section(layer_type.name())?.unwrap_or(parameters)),
            // Gemma 3's local layers have a base of their own and no scaling.
            None if layer_type == LayerType::Sliding && local.is_some() => None,
            None => root.section("rope_scaling")?,
        };
        let Some(section) = section else {
            let theta = local.filter(|_| layer_type == LayerType::Sliding).unwrap_or(base);
            let rotary_dim = self.rotary_dim(&[&root], defaults)?;
            return Ok(RopeSpec {
                theta,
                rotary_dim,
                scaling: RopeScaling::None,
                axes: Vec::new(),
            });
        };
        let theta = section.number("rope_theta")?.unwrap_or(base);
        let rotary_dim = self.rotary_dim(&[&section, &root], defaults)?;
        let axes = self.axes(&section, rotary_dim)?;
        let rope = RopeSpec { theta, rotary_dim, scaling: RopeScaling::None, axes };
        self.scaled(&section, rope, defaults)
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

    /// Width of what a rotary embedding is of: a head, or what latent attention has beside latents.
    fn turning_dim(&self, defaults: RopeDefaults) -> Result<usize, EngineError> {
        match self.turning_of_latents()? {
            None => defaults.head_dim.map_or_else(|| self.head_dim(), Ok),
            Some(width) => Ok(width),
        }
    }

    /// Width of what turns beside latents; None: there are none.
    fn turning_of_latents(&self) -> Result<Option<usize>, EngineError> {
        Ok(self.root().optional_size("qk_rope_head_dim")?.filter(|width| *width > 0))
    }

    /// Factor of attention scores in latent attention with YaRN: the square of its factor of sine
    /// and cosine, by another number (DeepSeek's `mscale_all_dim`).
    pub fn yarn_score_factor(&self) -> Result<f64, EngineError> {
        let root = self.root();
        let section = root.section("rope_parameters")?.or(root.section("rope_scaling")?);
        let Some(section) = section else { return Ok(1.0) };
        let name = section.text("rope_type")?.or(section.text("type")?).unwrap_or("default");
        if name == "default" {
            return Ok(1.0);
        }
        let of_all = section.number("mscale_all_dim")?.unwrap_or(0.0);
        let factor = section.number("factor")?.unwrap_or(1.0);
        Ok(match of_all != 0.0 && factor > 1.0 {
            true => (0.1 * of_all * factor.ln() + 1.0).powi(2),
            false => 1.0,
        })
    }

    /// Values of a head that turn: the part that these sections give, under any of its names.
    fn rotary_dim(
        &self,
        sections: &[&Section<'_>],
        defaults: RopeDefaults,
    ) -> Result<usize, EngineError> {
        let latent = self.turning_of_latents()?;
        let head_dim = match latent {
            None => self.turning_dim(defaults)?,
            // Where files have a width of heads, it is this, or that of all of q or of all of k.
            Some(width) => self.root().size_or("head_dim", width)?,
        };
        let mut parts = Vec::new();
        for section in sections {
            parts.push(section.number_of(ROTARY_PART_KEYS)?);
        }
        let mut parts = parts.into_iter().flatten();
        let given = parts.next();
        let part = given.unwrap_or(defaults.part);
        if parts.any(|other| other != part) {
            return Err(self.error("the part of a head that turns is given twice, differently"));
        }
        let rotary_dim = match (given, latent) {
            (None, Some(width)) => width,
            _ => (head_dim as f64 * part) as usize,
        };
        let is_odd = rotary_dim == 0 || !rotary_dim.is_multiple_of(2);
        match is_odd || rotary_dim > head_dim || latent.is_some_and(|width| width != rotary_dim) {
            true => Err(self.error(format!(
                "a rotary embedding of {part} of a head_dim of {head_dim} is not supported"
            ))),
            false => Ok(rotary_dim),
        }
    }

    /// The axes of positions that tokens of images have: in text they are equal.
    fn axes(
        &self,
        section: &Section<'_>,
        rotary_dim: usize,
    ) -> Result<Vec<AxisFrequency>, EngineError> {
        let is_interleaved = section.flag("mrope_interleaved")?.unwrap_or(false);
        let Some(sections) = section.numbers("mrope_section")? else { return Ok(Vec::new()) };
        let is_one = |&number: &f64| number >= 0.0 && number.fract() == 0.0;
        let sum: f64 = sections.iter().sum();
        match <[f64; 3]>::try_from(sections) {
            Ok(sections) if sections.iter().all(is_one) && sum == (rotary_dim / 2) as f64 => {
                let sections = sections.map(|number| number as usize);
                Ok(AxisFrequency::sections(sections, is_interleaved))
            }
            _ => Err(section.error(format!(
                "`mrope_section` should be three counts, {} together",
                rotary_dim / 2
            ))),
        }
    }

    /// This rotary embedding, stretched as a section says.
    pub(crate) fn scaled(
        &self,
        section: &Section<'_>,
        rope: RopeSpec,
        defaults: RopeDefaults,
    ) -> Result<RopeSpec, EngineError> {
        let name = match section.text("rope_type")? {
            Some(name) => {
                // Its name before, which files have beside it.
                section.ignore(&["type"]);
                name
            }
            None => section.text("type")?.unwrap_or("default"),
        };
        let scaling = match name {
            "default" | "mrope" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: section.positive("factor")? },
            "llama3" => RopeScaling::Llama3 {
                factor: section.positive("factor")?,
                low_freq_factor: section.positive("low_freq_factor")?,
                high_freq_factor: section.positive("high_freq_factor")?,
                original_max_position_embeddings: section
                    .positive("original_max_position_embeddings")?,
            },
            // Sarvam's name of it.
            "yarn" | "deepseek_yarn" => RopeScaling::Yarn(self.yarn(section, 0.1)?),
            // TeleChat 3: vLLM's `telechat3_scaling_rope.py`.
            "telechat3-yarn" => RopeScaling::Yarn(self.yarn(section, 0.07)?),
            "longrope" | "su" => RopeScaling::LongRope(self.longrope(section, rope.rotary_dim)?),
            "dynamic" => return self.dynamic(section, rope),
            "proportional" => {
                // The part that turns is of the frequencies of the whole head.
                let factor = section.number("factor")?.unwrap_or(1.0);
                let scaling =
                    RopeScaling::Proportional { num_turning: rope.rotary_dim / 2, factor };
                return Ok(RopeSpec { rotary_dim: self.turning_dim(defaults)?, scaling, ..rope });
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

    /// `growth`: of sine and cosine with the logarithm of the factor.
    fn yarn(&self, section: &Section<'_>, growth: f64) -> Result<Yarn, EngineError> {
        // That the weights were trained with it (Yarn-Llama-2).
        section.ignore(&["finetuned"]);
        let original = self.original_len(section)?;
        let factor = match section.number("factor")? {
            Some(_) => section.positive("factor")?,
            None => self.max_position_embeddings()? as f64 / original,
        };
        // As in the paper, section 3.4, where growth is 0.1.
        let mscale = |mscale: f64| match factor > 1.0 {
            true => growth * mscale * factor.ln() + 1.0,
            false => 1.0,
        };
        let is_set = |number: &f64| *number != 0.0;
        let of_all = section.number("mscale_all_dim")?.filter(is_set);
        let of_one = section.number("mscale")?.filter(is_set);
        // vLLM's name of another factor, which transformers passes over (DeepSeek-R1-0528-Qwen3).
        let more = section.number("attn_factor")?.unwrap_or(1.0);
        let attention_factor = match (section.number("attention_factor")?, of_one.zip(of_all)) {
            (Some(factor), _) => factor,
            (None, Some((one, all))) => more * mscale(one) / mscale(all),
            (None, None) => more * mscale(1.0),
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
        // Phi-3.5-MoE has it for both lists, by names of its own.
        let of_moe = section.number("short_mscale")?;
        if section.number("long_mscale")? != of_moe {
            return Err(self.error("`short_mscale` and `long_mscale` differ: not supported"));
        }
        let attention_factor = match section.number("attention_factor")?.or(of_moe) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rotary_dim(keys: &str) -> Result<usize, String> {
        let text = format!("{{\"head_dim\": 16, {keys}}}");
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let defaults = RopeDefaults::new(10_000.0, 0.25);
        let rope = config.rope_with(LayerType::Full, defaults).map_err(|e| e.to_string())?;
        config.refuse_unread().map_err(|error| error.to_string())?;
        Ok(rope.rotary_dim)
    }

    #[test]
    fn the_part_that_turns_has_many_names_and_one_value() {
        assert_eq!(rotary_dim(r#""rope_theta": 1e4"#), Ok(4));
        assert_eq!(rotary_dim(r#""rope_percent": 0.5"#), Ok(8));
        let nested = r#""rope_parameters": {"partial_rotary_factor": 0.5}"#;
        assert_eq!(rotary_dim(nested), Ok(8));
        assert_eq!(rotary_dim(&format!(r#"{nested}, "rotary_pct": 0.5"#)), Ok(8));
        for twice in
            [r#""rope_pct": 0.5, "rotary_pct": 1.0"#, &format!(r#"{nested}, "rope_pct": 1"#)]
        {
            let error = rotary_dim(twice).unwrap_err();
            assert!(error.contains("disagree") || error.contains("differently"), "{error}");
        }
        assert!(rotary_dim(r#""rope_pct": 0.2"#).unwrap_err().contains("not supported"));
    }

    #[test]
    fn yarn_has_its_factor_under_two_names() {
        let factor = |keys: &str| {
            let text = format!(
                r#"{{"head_dim": 16, "rope_scaling": {{
                    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16
                    {keys}}}}}"#
            );
            let config = HfConfig::parse(&text, "config.json").unwrap();
            let rope = config.rope(LayerType::Full).unwrap();
            config.refuse_unread().unwrap();
            let RopeScaling::Yarn(yarn) = rope.scaling else { panic!("{:?}", rope.scaling) };
            yarn.attention_factor
        };
        let usual = 0.1 * 4f64.ln() + 1.0;
        assert_eq!(factor(""), usual);
        assert_eq!(factor(r#", "attn_factor": 0.5"#), 0.5 * usual);
        assert_eq!(factor(r#", "attention_factor": 0.5"#), 0.5);
    }

    #[test]
    fn telechat_has_a_yarn_of_its_own() {
        let scaling = |kind: &str| {
            let text = format!(
                r#"{{"head_dim": 64, "rope_scaling": {{"rope_type": "{kind}", "type": "{kind}",
                    "beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0,
                    "original_max_position_embeddings": 8192}}}}"#
            );
            let config = HfConfig::parse(&text, "config.json").unwrap();
            match config.rope(LayerType::Full).unwrap().scaling {
                RopeScaling::Yarn(yarn) => yarn,
                other => panic!("{other:?}"),
            }
        };
        let (usual, own) = (scaling("yarn"), scaling("telechat3-yarn"));
        assert_eq!(usual.attention_factor, 0.1 * 4f64.ln() + 1.0);
        let attention_factor = 0.07 * 4f64.ln() + 1.0;
        assert_eq!(own, Yarn { attention_factor, ..usual });
    }
}
