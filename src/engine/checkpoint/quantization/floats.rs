//! Floats of 4 and 8 bits, as f32. Each is exact.

/// E4M3 without infinities (`float8_e4m3fn`), by its byte.
pub(super) fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * 2f32.powi(-9),
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if byte < 128 { magnitude } else { -magnitude }
}

/// E8M0: 2^(byte - 127); 255 is NaN, as the Microscaling standard has it.
pub(super) fn e8m0(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// E2M1, by its four bits.
pub(super) fn e2m1(code: u8) -> f32 {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = MAGNITUDES[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_few_bits_are_exact() {
        for (byte, value) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x7e, 448.0),
            (0xbc, -1.5),
        ] {
            assert_eq!(e4m3(byte), value, "{byte:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert_eq!(e4m3(0x80).to_bits(), (-0.0f32).to_bits());
        assert_eq!([e8m0(127), e8m0(128), e8m0(120)], [1.0, 2.0, 0.007_812_5]);
        assert_eq!(e8m0(0), 2f32.powi(-126) / 2.0);
        assert_eq!(e8m0(254), 2f32.powi(127));
        assert!(e8m0(255).is_nan());
        assert_eq!([e2m1(1), e2m1(7), e2m1(9), e2m1(14)], [0.5, 6.0, -0.5, -4.0]);
    }
}
