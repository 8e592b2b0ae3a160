//! The inverse DCT of libjpeg's ISLOW method, over eight columns at a time.

/// Numbers of a block by row, eight beside each other.
type Lanes = [[i32; 8]; 8];

const FIX_0_298631336: i32 = 2446;
const FIX_0_390180644: i32 = 3196;
const FIX_0_541196100: i32 = 4433;
const FIX_0_765366865: i32 = 6270;
const FIX_0_899976223: i32 = 7373;
const FIX_1_175875602: i32 = 9633;
const FIX_1_501321110: i32 = 12299;
const FIX_1_847759065: i32 = 15137;
const FIX_1_961570560: i32 = 16069;
const FIX_2_053119869: i32 = 16819;
const FIX_2_562915447: i32 = 20995;
const FIX_3_072711026: i32 = 25172;

const CONST_BITS: u32 = 13;
const PASS1_BITS: u32 = 2;

/// Samples of a block: `coefficients` in rows, times `quantization`.
pub(super) fn idct(coefficients: &[i16; 64], quantization: &[u16; 64]) -> [u8; 64] {
    let mut lanes: Lanes = [[0; 8]; 8];
    for (row, lane) in lanes.iter_mut().enumerate() {
        for (column, value) in lane.iter_mut().enumerate() {
            let at = row * 8 + column;
            *value = dequantized(coefficients[at], quantization[at]);
        }
    }
    one_dimension::<{ CONST_BITS - PASS1_BITS }>(&mut lanes);
    transpose(&mut lanes);
    one_dimension::<{ CONST_BITS + PASS1_BITS + 3 }>(&mut lanes);
    let mut samples = [0; 64];
    for (column, lane) in lanes.iter().enumerate() {
        for (row, &value) in lane.iter().enumerate() {
            samples[row * 8 + column] = value.saturating_add(128).clamp(0, 255) as u8;
        }
    }
    samples
}

/// Samples of a block that has its first coefficient alone: what `idct` gives.
pub(super) fn idct_flat(coefficient: i16, quantization: u16) -> u8 {
    let value = dequantized(coefficient, quantization) << PASS1_BITS;
    let half = 1 << (PASS1_BITS + 2);
    (((value + half) >> (PASS1_BITS + 3)) + 128).clamp(0, 255) as u8
}

/// 16 bits, as libjpeg-turbo's vectors have them; only damaged blocks wrap.
#[inline(always)]
fn dequantized(coefficient: i16, quantization: u16) -> i32 {
    i32::from(coefficient.wrapping_mul(quantization as i16))
}

fn transpose(lanes: &mut Lanes) {
    let from = *lanes;
    for (row, lane) in lanes.iter_mut().enumerate() {
        for (column, value) in lane.iter_mut().enumerate() {
            *value = from[column][row];
        }
    }
}

/// Along the first axis. Sums of damaged blocks may wrap, as they do in libjpeg.
#[inline]
fn one_dimension<const SHIFT: u32>(lanes: &mut Lanes) {
    #[expect(clippy::needless_range_loop, reason = "lanes are the second axis")]
    for lane in 0..8 {
        let input = [0, 1, 2, 3, 4, 5, 6, 7].map(|row: usize| lanes[row][lane]);
        let (even, odd) = (even_part(&input), odd_part(&input));
        for row in 0..4 {
            let sum = even[row].wrapping_add(odd[3 - row]);
            let difference = even[row].wrapping_sub(odd[3 - row]);
            lanes[row][lane] = sum.wrapping_add(1 << (SHIFT - 1)) >> SHIFT;
            lanes[7 - row][lane] = difference.wrapping_add(1 << (SHIFT - 1)) >> SHIFT;
        }
    }
}

#[inline(always)]
fn times(value: i32, factor: i32) -> i32 {
    value.wrapping_mul(factor)
}

#[inline(always)]
fn even_part(input: &[i32; 8]) -> [i32; 4] {
    let z1 = times(input[2].wrapping_add(input[6]), FIX_0_541196100);
    let tmp2 = z1.wrapping_sub(times(input[6], FIX_1_847759065));
    let tmp3 = z1.wrapping_add(times(input[2], FIX_0_765366865));
    let tmp0 = times(input[0].wrapping_add(input[4]), 1 << CONST_BITS);
    let tmp1 = times(input[0].wrapping_sub(input[4]), 1 << CONST_BITS);
    [
        tmp0.wrapping_add(tmp3),
        tmp1.wrapping_add(tmp2),
        tmp1.wrapping_sub(tmp2),
        tmp0.wrapping_sub(tmp3),
    ]
}

#[inline(always)]
fn odd_part(input: &[i32; 8]) -> [i32; 4] {
    let [tmp0, tmp1, tmp2, tmp3] = [input[7], input[5], input[3], input[1]];
    let z3 = tmp0.wrapping_add(tmp2);
    let z4 = tmp1.wrapping_add(tmp3);
    let z5 = times(z3.wrapping_add(z4), FIX_1_175875602);
    let z1 = times(tmp0.wrapping_add(tmp3), -FIX_0_899976223);
    let z2 = times(tmp1.wrapping_add(tmp2), -FIX_2_562915447);
    let z3 = times(z3, -FIX_1_961570560).wrapping_add(z5);
    let z4 = times(z4, -FIX_0_390180644).wrapping_add(z5);
    [
        times(tmp0, FIX_0_298631336).wrapping_add(z1).wrapping_add(z3),
        times(tmp1, FIX_2_053119869).wrapping_add(z2).wrapping_add(z4),
        times(tmp2, FIX_3_072711026).wrapping_add(z2).wrapping_add(z3),
        times(tmp3, FIX_1_501321110).wrapping_add(z1).wrapping_add(z4),
    ]
}
