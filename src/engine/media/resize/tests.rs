//! Against torchvision and Pillow, to the bit.

use super::*;
use crate::goldens::{hash, lines, noise, number};

#[test]
fn sizes_and_filters_are_those_of_torchvision_and_pillow() {
    let mut differing = Vec::new();
    for line in lines("resized.jsonl") {
        let (width, height) = (number(&line["to"][0]), number(&line["to"][1]));
        let filter = match line["filter"].as_str() {
            Some("bilinear") => Filter::Bilinear,
            Some("bicubic") => Filter::Bicubic,
            _ => Filter::Lanczos,
        };
        let backend = match line["backend"].as_str() {
            Some("pillow") => Backend::Pillow,
            _ => Backend::Torchvision,
        };
        let resized = resize(&noise(&line), width, height, filter, backend);
        if line["blake3"] != hash(resized.pixels()) {
            differing.push(line.to_string());
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn a_tall_image_that_becomes_a_wide_one_is_held_in_few_rows() {
    // Rows first, this has 60,000 rows of 60,000 pixels between the axes: ten gigabytes.
    let image = Rgb8::new(1, 60_000, vec![7; 180_000]);
    let resized = resize(&image, 60_000, 2, Filter::Bilinear, Backend::Pillow);
    assert!(resized.pixels().iter().all(|&sample| sample == 7));
    let image = Rgb8::new(1, 2_000, vec![9; 6_000]);
    let resized = resize(&image, 4_000, 20, Filter::Bicubic, Backend::Torchvision);
    assert!(resized.pixels().iter().all(|&sample| sample == 9));
}
