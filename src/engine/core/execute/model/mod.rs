//! A model on a device: layers of a spec with their weights, and what they compute.

mod attend;
mod branch;
mod connector;
pub mod decoder;
mod delta_net;
pub mod encoder;
pub mod head;
mod indexer;
mod inner_buffers;
mod latent;
mod layer_inputs;
mod loading;
mod loading_feed_forward;
mod memory;
mod picture;
mod recurrent;
pub mod resident_loras;
mod selective;
pub mod stage_rows;
mod stream;
mod streams;
mod text_layers;
pub mod tower;
mod tower_pass;
mod value_columns;
mod windows;
mod word_maxima;
