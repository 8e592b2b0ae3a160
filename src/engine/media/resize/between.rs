//! Resizing by the four pixels around a place, whatever the sizes, to the bit as torch 2.15 does it
//! with floats on a CPU with fused products (Molmo 2).

use crate::rgb::Rgb8;

/// Rows and columns, together, up to which torch weighs each of the four pixels by itself. Above
/// that it does so on one thread alone; on several it goes along rows first, and that is what is
/// done here.
const FEW: usize = 128;

/// The two pixels around each place of a new axis, with their shares.
struct Places(Vec<([usize; 2], [f32; 2])>);

impl Places {
    fn new(from: usize, to: usize, are_few: bool) -> Self {
        let scale = from as f32 / to as f32;
        let place = |at: usize| {
            let middle = at as f32 + 0.5;
            let place = match are_few {
                true => scale.mul_add(middle, -0.5),
                false => scale * middle - 0.5,
            };
            let place = place.max(0.0);
            let first = (place as usize).min(from - 1);
            let share = (place - first as f32).clamp(0.0, 1.0);
            ([first, (first + 1).min(from - 1)], [1.0 - share, share])
        };
        Self((0..to).map(place).collect())
    }
}

/// An image of another size: `interpolate(mode="bilinear")` of torch, of floats that are rounded to
/// bytes, half to even.
///
/// # Panics
///
/// If `width` or `height` is 0.
pub(crate) fn resize_between(image: &Rgb8, width: usize, height: usize) -> Rgb8 {
    assert!(width > 0 && height > 0, "an image has pixels");
    let are_few = width + height <= FEW;
    let rows = Places::new(image.height(), height, are_few);
    let columns = Places::new(image.width(), width, are_few);
    let row = |at: usize| &image.pixels()[at * image.width() * 3..][..image.width() * 3];
    let mut pixels = Vec::with_capacity(width * height * 3);
    for ([above, below], of_rows) in &rows.0 {
        let (above, below) = (row(*above), row(*below));
        for ([left, right], of_columns) in &columns.0 {
            for band in 0..3 {
                let around = [above, below]
                    .map(|row| [*left, *right].map(|at| f32::from(row[at * 3 + band])));
                let value = match are_few {
                    true => weighed(around, *of_rows, *of_columns),
                    false => along_rows(around, *of_rows, *of_columns),
                };
                pixels.push(value.round_ties_even().clamp(0.0, 255.0) as u8);
            }
        }
    }
    Rgb8::new(width, height, pixels)
}

/// The sum of four pixels, each with the product of its shares.
fn weighed([above, below]: [[f32; 2]; 2], rows: [f32; 2], columns: [f32; 2]) -> f32 {
    let share = |row: usize, column: usize| rows[row] * columns[column];
    let sum = share(0, 0).mul_add(above[0], share(0, 1) * above[1]);
    let sum = share(1, 0).mul_add(below[0], sum);
    share(1, 1).mul_add(below[1], sum)
}

/// The sum of two sums along rows.
fn along_rows([above, below]: [[f32; 2]; 2], rows: [f32; 2], columns: [f32; 2]) -> f32 {
    let along = |row: [f32; 2]| row[0].mul_add(columns[0], row[1] * columns[1]);
    along(above).mul_add(rows[0], along(below) * rows[1])
}
