//! One engine, asked over HTTP: the endpoints of OpenAI's API and of Anthropic's messages.
//!
//! It owns connections, what may be asked over them, and the order in which answers go out. It
//! must not know how a model is found and loaded, nor what a row of a data set is: a request is a
//! line of a batch API, which [`Served::ask`] reads, so that it is answered as `run` answers that
//! line. The async runtime is here and nowhere else; the engine stays on its own thread, behind
//! the two channels of [`EngineThread`].
//!
//! Read first: [`Served`], [`EngineThread`], [`Server`].

#![warn(missing_docs, unreachable_pub)]

mod batches;
mod body;
mod connections;
mod engine_thread;
mod errors;
mod guard;
mod metrics;
mod recordings;
mod request;
mod routes;
mod served;
mod sse;
mod streams;
mod texts;
mod timed_writes;

pub use batches::{BatchRun, Batches, Job, RunBatches, Store, Unfinished};
pub use connections::{Server, ServerConfig, Serving};
pub use engine_thread::{Ended, EngineThread};
pub use served::{Ask, AskedRow, Refused, RequestLine, Served};
