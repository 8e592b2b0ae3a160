//! `serve` as clients meet it, over its socket.

mod answers;
mod batches;
mod client;
mod faults;
mod streams;

pub(super) const DEMO: &str = "testdata/demo";
