//! `Architecture`: a family that the engine has, and who builds its parts.

use serde_json::Value;

use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, SoundTowerSpec, TowerSpec};
use vllm_batch_base::EngineError;

/// From a config to a spec.
pub type BuildSpec = fn(&HfConfig) -> Result<DecoderSpec, EngineError>;

/// From the same config to the spec of its vision tower.
pub type BuildTower = fn(&HfConfig) -> Result<TowerSpec, EngineError>;

/// From the same config to what the configuration of an image processor would be.
pub type BuildProcessor = fn(&HfConfig) -> Result<Value, EngineError>;

/// From the same config to the spec of what makes states of sounds.
pub type BuildSoundTower = fn(&HfConfig) -> Result<SoundTowerSpec, EngineError>;

/// The same where some files have parts that are not computed; None: such a file.
pub type BuildTowerOfSome = fn(&HfConfig) -> Result<Option<TowerSpec>, EngineError>;

/// How the tower of a family is made.
#[derive(Clone, Copy, Debug)]
pub enum Sight {
    /// It has none: the model is run for text alone.
    None,
    /// All files have one.
    All(BuildTower),
    /// Some have one, and others are run for text alone.
    Some(BuildTowerOfSome),
}

/// A family that the engine has.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// Name in `architectures` of config.json.
    pub name: &'static str,
    /// Builder of its spec.
    pub spec: BuildSpec,
    /// Builder of its tower's.
    pub tower: Sight,
    /// Builder of what makes states of sounds; None: it hears nothing.
    pub sound_tower: Option<BuildSoundTower>,
    /// Builder of its image processor's configuration; None: a file of its own has that.
    pub processor: Option<BuildProcessor>,
    /// The chat template where a model's files have none.
    pub chat_template: Option<&'static str>,
    /// Chats begin with BOS, or with EOS where there is none, whatever their template writes.
    pub begins_chats: bool,
    /// The models that people know it by.
    pub models: &'static str,
}

pub(super) const fn family(
    name: &'static str,
    spec: BuildSpec,
    models: &'static str,
) -> Architecture {
    Architecture {
        name,
        spec,
        tower: Sight::None,
        sound_tower: None,
        processor: None,
        chat_template: None,
        begins_chats: false,
        models,
    }
}

pub(super) const fn seeing(
    name: &'static str,
    spec: BuildSpec,
    tower: BuildTower,
    models: &'static str,
) -> Architecture {
    Architecture { tower: Sight::All(tower), ..family(name, spec, models) }
}

/// A family whose config.json says how images are cut.
pub(super) const fn seeing_tiles(
    name: &'static str,
    spec: BuildSpec,
    tower: BuildTower,
    processor: BuildProcessor,
    models: &'static str,
) -> Architecture {
    Architecture { processor: Some(processor), ..seeing(name, spec, tower, models) }
}

/// A family that hears.
pub(super) const fn hearing(
    name: &'static str,
    spec: BuildSpec,
    tower: BuildSoundTower,
    models: &'static str,
) -> Architecture {
    Architecture { sound_tower: Some(tower), ..family(name, spec, models) }
}
