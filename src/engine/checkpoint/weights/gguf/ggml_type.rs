//! Types of ggml: by id, and the sizes of their blocks.

use std::fmt;

/// A type of tensors that is read. A row is whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(non_camel_case_types, reason = "ggml's names")]
pub enum GgmlType {
    /// f32.
    F32,
    /// f16.
    F16,
    /// 4 bits, a scale.
    Q4_0,
    /// 4 bits, a scale and a minimum.
    Q4_1,
    /// 5 bits, a scale.
    Q5_0,
    /// 5 bits, a scale and a minimum.
    Q5_1,
    /// 8 bits, a scale.
    Q8_0,
    /// 2 bits, scales and minimums of 4 bits for each 16.
    Q2_K,
    /// 3 bits, scales of 6 bits for each 16.
    Q3_K,
    /// 4 bits, scales and minimums of 6 bits for each 32.
    Q4_K,
    /// 5 bits, scales and minimums of 6 bits for each 32.
    Q5_K,
    /// 6 bits, scales of 8 bits for each 16.
    Q6_K,
    /// 16 levels that are not evenly spaced, a scale.
    IQ4_NL,
    /// The same levels, scales of 6 bits for each 32.
    IQ4_XS,
    /// f64.
    F64,
    /// bf16.
    BF16,
    /// Three levels in 1.6 bits, a scale.
    TQ1_0,
    /// Three levels in 2 bits, a scale.
    TQ2_0,
    /// e2m1 with an exponent.
    MXFP4,
    /// e2m1 with an e4m3 scale for each 16.
    NVFP4,
}

/// A type's id in files, its name, values of a block and bytes of a block.
struct Row(GgmlType, u32, &'static str, usize, usize);

/// `ggml/include/ggml.h`, `enum ggml_type`, and `ggml/src/ggml-common.h`. In the order of the enum.
const TYPES: [Row; 20] = [
    Row(GgmlType::F32, 0, "F32", 1, 4),
    Row(GgmlType::F16, 1, "F16", 1, 2),
    Row(GgmlType::Q4_0, 2, "Q4_0", 32, 18),
    Row(GgmlType::Q4_1, 3, "Q4_1", 32, 20),
    Row(GgmlType::Q5_0, 6, "Q5_0", 32, 22),
    Row(GgmlType::Q5_1, 7, "Q5_1", 32, 24),
    Row(GgmlType::Q8_0, 8, "Q8_0", 32, 34),
    Row(GgmlType::Q2_K, 10, "Q2_K", 256, 84),
    Row(GgmlType::Q3_K, 11, "Q3_K", 256, 110),
    Row(GgmlType::Q4_K, 12, "Q4_K", 256, 144),
    Row(GgmlType::Q5_K, 13, "Q5_K", 256, 176),
    Row(GgmlType::Q6_K, 14, "Q6_K", 256, 210),
    Row(GgmlType::IQ4_NL, 20, "IQ4_NL", 32, 18),
    Row(GgmlType::IQ4_XS, 23, "IQ4_XS", 256, 136),
    Row(GgmlType::F64, 28, "F64", 1, 8),
    Row(GgmlType::BF16, 30, "BF16", 1, 2),
    Row(GgmlType::TQ1_0, 34, "TQ1_0", 256, 54),
    Row(GgmlType::TQ2_0, 35, "TQ2_0", 256, 66),
    Row(GgmlType::MXFP4, 39, "MXFP4", 32, 17),
    Row(GgmlType::NVFP4, 40, "NVFP4", 64, 36),
];

/// Types that ggml has, or had once, and that are not read.
const REFUSED: [(u32, &str); 22] = [
    (4, "Q4_2, which ggml has removed"),
    (5, "Q4_3, which ggml has removed"),
    (9, "Q8_1, which ggml uses for activations only"),
    (15, "Q8_K, which ggml uses for activations only"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8, no weights"),
    (25, "I16, no weights"),
    (26, "I32, no weights"),
    (27, "I64, no weights"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4, which ggml has removed"),
    (32, "Q4_0_4_8, which ggml has removed"),
    (33, "Q4_0_8_8, which ggml has removed"),
    (36, "IQ4_NL_4_4, which ggml has removed"),
    (37, "IQ4_NL_4_8, which ggml has removed"),
    (38, "IQ4_NL_8_8, which ggml has removed"),
    (41, "Q1_0"),
];

impl GgmlType {
    /// Every type that is read.
    pub fn all() -> impl Iterator<Item = Self> {
        TYPES.iter().map(|row| row.0)
    }

    /// A type by its id in files.
    ///
    /// # Errors
    /// It is not read; the text names it.
    pub fn from_id(id: u32) -> Result<Self, String> {
        if let Some(Row(ty, ..)) = TYPES.iter().find(|row| row.1 == id) {
            return Ok(*ty);
        }
        Err(match REFUSED.iter().find(|refused| refused.0 == id) {
            Some((_, name)) => format!("it is of type {name}; that is not read"),
            None => format!("its type {id} is none that is known"),
        })
    }

    fn row(self) -> &'static Row {
        &TYPES[self as usize]
    }

    /// Id of the type in files.
    pub fn id(self) -> u32 {
        self.row().1
    }

    /// ggml's name.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Values of a block, which lie along a row.
    pub fn block_len(self) -> usize {
        self.row().3
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().4
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_read_or_refused_by_name() {
        for ty in GgmlType::all() {
            assert_eq!(ty.row().0, ty, "the order of the table");
            assert_eq!(GgmlType::from_id(ty.id()), Ok(ty));
        }
        for id in (0..42).filter(|id| !TYPES.iter().any(|row| row.1 == *id)) {
            assert!(GgmlType::from_id(id).unwrap_err().contains("not read"), "{id}");
        }
        assert!(GgmlType::from_id(31).unwrap_err().contains("Q4_0_4_4"));
        assert!(GgmlType::from_id(42).unwrap_err().contains("type 42"));
    }
}
