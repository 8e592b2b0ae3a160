//! `serve` as clients meet it, over its socket.

mod answers;
mod batches;
mod browsers;
mod client;
mod connections;
mod counted;
mod crowds;
mod faults;
mod hearing;
mod hostile;
mod recordings;
mod streams;

pub(super) const DEMO: &str = "testdata/demo";
