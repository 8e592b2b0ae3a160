//! Files that are written, fetched and read, without the program: an output on a disk in memory
//! that crashes, models from a hub that misbehaves, objects of a store that does.

mod crash;
mod hub;
mod objects;
