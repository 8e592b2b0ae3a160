//! The output layer of a config that says that it is the embedding table. As in transformers, the
//! weight files decide where they have another matrix.

use super::hf_config::HfConfig;
use super::spec::{BesideTable, DecoderSpec, EncoderSpec, LinearSpec, OutputSpec};
use super::weights::Checkpoint;
use super::{decoder_spec, encoder_spec};
use vllm_batch_base::EngineError;

/// The spec of a decoder with the output layer that its files have.
///
/// `open`: the files, if they can be opened.
///
/// # Errors
/// As `decoder_spec`.
pub fn of_decoder(
    spec: DecoderSpec,
    config: &HfConfig,
    open: impl FnOnce() -> Option<Checkpoint>,
) -> Result<DecoderSpec, EngineError> {
    if !is_table(&spec.output, &spec.embedding.tokens) {
        return Ok(spec);
    }
    let own = decoder_spec(&config.with_own_head())?;
    let beside = beside(&own.output, &spec.embedding.tokens, open);
    let mut chosen = if beside == BesideTable::Head { own } else { spec };
    chosen.output.beside_table = beside;
    Ok(chosen)
}

/// The same of a decoder that makes vectors or classes.
///
/// # Errors
/// As `encoder_spec`.
pub fn of_encoder(
    spec: EncoderSpec,
    config: &HfConfig,
    open: impl FnOnce() -> Option<Checkpoint>,
) -> Result<EncoderSpec, EngineError> {
    let is_tied = |output: &&OutputSpec| is_table(output, &spec.tokens);
    let Some(output) = spec.output.as_ref().filter(is_tied) else {
        return Ok(spec);
    };
    let own = encoder_spec(&config.with_own_head())?.output.unwrap_or_else(|| output.clone());
    let beside = beside(&own, &spec.tokens, open);
    let mut chosen = if beside == BesideTable::Head { own } else { output.clone() };
    chosen.beside_table = beside;
    Ok(EncoderSpec { output: Some(chosen), ..spec })
}

/// Whether the output layer is the table, perhaps with a bias.
fn is_table(output: &OutputSpec, table: &LinearSpec) -> bool {
    let name = |linear: &LinearSpec| linear.parts[0].weight_name();
    output.lm_head.as_ref().is_none_or(|head| name(head) == name(table))
}

fn beside(
    own: &OutputSpec,
    table: &LinearSpec,
    open: impl FnOnce() -> Option<Checkpoint>,
) -> BesideTable {
    let Some(head) = &own.lm_head else { return BesideTable::Nothing };
    open().map_or(BesideTable::Nothing, |files| files.beside_table(head, table))
}
