//! What tests of families that see or hear share.

use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, NamedShape, SoundTowerSpec, TowerSpec};
use crate::{decoder_spec, sound_tower_spec, tower_spec};

/// The specs of a config.json with a text part and a tower, or why one of them is refused.
pub(super) fn specs_of(text: &str) -> Result<(DecoderSpec, TowerSpec), String> {
    let config = HfConfig::parse(text, "config.json").unwrap();
    let decoder = decoder_spec(&config).map_err(|error| error.to_string())?;
    let tower = tower_spec(&config).map_err(|error| error.to_string())?;
    Ok((decoder, tower.expect("a tower")))
}

/// The spec of the tower of a config.json for sounds, or why the config is refused.
pub(super) fn sound_tower_of(text: &str) -> Result<SoundTowerSpec, String> {
    let config = HfConfig::parse(text, "config.json").unwrap();
    decoder_spec(&config).map_err(|error| error.to_string())?;
    let tower = sound_tower_spec(&config).map_err(|error| error.to_string())?;
    Ok(tower.expect("a tower"))
}

/// The shape of a tensor that a spec has.
pub(super) fn shape_of(tensors: &[NamedShape], name: &str) -> Vec<usize> {
    let found = tensors.iter().find(|(found, _)| found == name);
    found.unwrap_or_else(|| panic!("{name}")).1.clone()
}
