//! Everything that touches users and files; knows no tensors.

pub mod hub;
