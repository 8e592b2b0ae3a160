//! Resizing of numbers by the sixteen pixels around a place, whatever the sizes, to the bit as
//! torch 2.15 does it with floats on a CPU with fused products (Phi-4-multimodal's whole picture).

use crate::rgb::Rgb8;

/// The four pixels around a place of a new axis, with their shares.
struct Place {
    around: [usize; 4],
    shares: [f32; 4],
}

fn places(from: usize, to: usize) -> Vec<Place> {
    let scale = from as f32 / to as f32;
    let place = |at: usize| {
        let place = scale * (at as f32 + 0.5) - 0.5;
        let low = place.floor();
        let around = [-1, 0, 1, 2].map(|by| (low as i64 + by).clamp(0, from as i64 - 1) as usize);
        Place { around, shares: shares((place - low).clamp(0.0, 1.0)) }
    };
    (0..to).map(place).collect()
}

/// Of cubic convolution with a = -0.75.
fn shares(at: f32) -> [f32; 4] {
    let near = |x: f32| 1.25f32.mul_add(x, -2.25) * x * x + 1.0;
    let far = |x: f32| (-0.75f32).mul_add(x, 3.75).mul_add(x, -6.0) * x + 3.0;
    let behind = 1.0 - at;
    [far(at + 1.0), near(at), near(behind), far(behind + 1.0)]
}

/// The numbers of an image's bytes in a square of this side: `[3, side, side]`.
/// `interpolate(mode="bicubic")` of torch, without antialiasing.
pub(crate) fn cubic_numbers(image: &Rgb8, tables: &[[f32; 256]; 3], side: usize) -> Vec<f32> {
    let columns = places(image.width(), side);
    let along = |row: usize| {
        let row = &image.pixels()[row * image.width() * 3..][..image.width() * 3];
        let of_band = |band: usize| {
            let number = move |at: usize| tables[band][usize::from(row[at * 3 + band])];
            columns.iter().map(move |place| weighed(place.around.map(number), place.shares))
        };
        (0..3).flat_map(of_band).collect::<Vec<f32>>()
    };
    let mut numbers = vec![0.0; 3 * side * side];
    // Rows (3, side) that the place before had too are not made again.
    let mut held: Vec<(usize, Vec<f32>)> = Vec::new();
    for (y, place) in places(image.height(), side).into_iter().enumerate() {
        held.retain(|(row, _)| place.around.contains(row));
        for row in place.around {
            if !held.iter().any(|(other, _)| *other == row) {
                held.push((row, along(row)));
            }
        }
        let rows = place.around.map(|row| {
            let found = held.iter().find(|(other, _)| *other == row);
            &found.expect("it was made").1[..]
        });
        for at in 0..3 * side {
            let (band, x) = (at / side, at % side);
            numbers[(band * side + y) * side + x] = weighed(rows.map(|row| row[at]), place.shares);
        }
    }
    numbers
}

fn weighed(numbers: [f32; 4], shares: [f32; 4]) -> f32 {
    let sum = numbers[0].mul_add(shares[0], numbers[1] * shares[1]);
    let sum = numbers[2].mul_add(shares[2], sum);
    numbers[3].mul_add(shares[3], sum)
}
