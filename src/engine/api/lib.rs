//! What goes into an engine and what comes out of it, as values. Knows no model and no device.
//!
//! Read first: [`prompt::Prompt`], [`sampling_params::SamplingParams`], [`request::RequestOutput`].

#![warn(missing_docs, unreachable_pub)]

pub mod answer;
pub mod compared;
pub mod likelihood;
pub mod pooling;
pub mod prompt;
pub mod request;
pub mod sampling_params;
