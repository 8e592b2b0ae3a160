//! Objects of stores that speak as Amazon's S3 does: inputs that are read in ranges, outputs that
//! appear whole. Requests are signed here, and carried by the client that models are fetched with.

mod client;
mod credentials;
mod environment;
mod error;
mod listing;
mod name;
mod object;
mod profile;
mod signature;
mod upload;
mod xml;

pub use client::Store;
pub use environment::StoreEnvironment;
pub use error::{ErrorKind, StoreError};
pub use listing::{Listed, expand};
pub use name::{ObjectName, is_object};
pub use object::{Facts, Object, ObjectReader};
pub use upload::Place;
