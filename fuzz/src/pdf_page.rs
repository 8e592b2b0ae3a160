//! Files as the process that draws pages of PDFs reads them: each is refused by a word, or has
//! pages that are drawn at the size that was asked for, with the same pixels each time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use vllm_batch::cli::input::pdf::{OpenPdf, PageSize};

const MAX_INPUT: usize = 64 << 10;

/// The bytes are a file.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let size = PageSize { width: 30, height: 20, scale: 0.1 };
    // As the process does it: a panic is a fault of the file.
    let drawn = || catch_unwind(AssertUnwindSafe(|| pages(data, size))).unwrap_or_default();
    let pages = drawn();
    assert!(pages.iter().all(|rows| rows.len() == 92 * 20));
    assert_eq!(drawn(), pages);
}

/// The first two pages.
fn pages(data: &[u8], size: PageSize) -> Vec<Vec<u8>> {
    let Ok(mut pdf) = OpenPdf::new(data.to_vec()) else { return Vec::new() };
    let num_pages = pdf.sizes().count() as u32;
    assert!(num_pages > 0);
    assert!(pdf.rows(0, size).is_err() && pdf.rows(num_pages + 1, size).is_err());
    (1..=num_pages.min(2)).filter_map(|page| pdf.rows(page, size).ok()).collect()
}
