//! The key of a row's random numbers: stable across releases, machines, shards and orders of rows.
//! Changing it changes every sampled answer.

use vllm_batch_api::request::RowKey;

/// What a row is known by. The kinds never collide by spelling: id "7" and row 7 have different
/// keys.
#[derive(Clone, Copy, Debug)]
pub enum RowName<'a> {
    /// Its own `seed`: nothing else matters.
    Seed(u64),
    /// Its `id` or `custom_id`.
    Id(&'a str),
    /// Its position in the input, from 0.
    Index(u64),
}

impl<'a> RowName<'a> {
    /// What a row says of itself, else where it stands.
    pub fn of(seed: Option<u64>, id: Option<&'a str>, index: u64) -> Self {
        match (seed, id) {
            (Some(seed), _) => RowName::Seed(seed),
            (None, Some(id)) => RowName::Id(id),
            (None, None) => RowName::Index(index),
        }
    }
}

/// FNV-1a over a kind byte and the name, then murmur3's finalizer, since FNV alone leaves the upper
/// bits of short texts alike. Changing this changes every sampled answer.
pub fn row_key(name: RowName<'_>) -> RowKey {
    let hash = match name {
        RowName::Seed(seed) => fnv1a(b's', &seed.to_le_bytes()),
        RowName::Id(id) => fnv1a(b'i', id.as_bytes()),
        RowName::Index(index) => fnv1a(b'n', &index.to_le_bytes()),
    };
    RowKey(finalize(hash))
}

fn fnv1a(kind: u8, bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(step(0xcbf2_9ce4_8422_2325, kind), |hash, byte| step(hash, *byte))
}

fn finalize(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_never_change() {
        // FNV-1a of "a" and "foobar", from the reference implementation.
        assert_eq!(fnv1a(b'a', b""), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b'f', b"oobar"), 0x8594_4171_f739_67e8);
        // murmur3's fmix64.
        assert_eq!(finalize(1), 0xb456_bcfc_34c2_cb2c);
    }

    #[test]
    fn kinds_of_names_are_apart() {
        let seven = 7u64.to_le_bytes();
        let text = std::str::from_utf8(&seven).unwrap();
        let keys = [RowName::Seed(7), RowName::Index(7), RowName::Id(text)].map(row_key);
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    }

    #[test]
    fn a_million_rows_have_a_million_keys() {
        let keys: std::collections::HashSet<u64> =
            (0..1_000_000).map(|index| row_key(RowName::Index(index)).0).collect();
        assert_eq!(keys.len(), 1_000_000);
    }
}
