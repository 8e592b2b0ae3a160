//! Small pictures of the images of rows, for the page: it loads nothing, so they are in it. The
//! input is read once more for them, and no image is fetched.

use serde_json::{Value, json};

use super::super::Origin;
use super::super::input_again::{Records, records_of};
use vllm_batch_dataset::input::base64;
use vllm_batch_dataset::input::row::Picture;

/// Pixels of the longer side.
const LONGEST: usize = 96;

/// Images of a row that are shown.
const MAX_OF_ROW: usize = 4;

/// Rows whose images are shown.
const MAX_ROWS: usize = 1000;

/// Characters of all pictures of a page.
const MAX_BYTES: usize = 8 << 20;

/// Pixels of the largest image that is made smaller: a page is to be there soon.
const MAX_PIXELS: u64 = 40_000_000;

/// The images of an input's rows, one row after the other.
pub struct Thumbnails {
    records: Records,
    /// Records that were read.
    num_read: u64,
    /// Rows of the output that these were.
    num_rows: u64,
    num_shown: usize,
    num_bytes: usize,
}

impl Thumbnails {
    /// None where the input cannot be read again.
    pub fn of(origin: &Origin) -> Option<Self> {
        let records = records_of(origin)?;
        Some(Self { records, num_read: 0, num_rows: 0, num_shown: 0, num_bytes: 0 })
    }

    /// The images of a row, by its number in the output from 1. Rows come in their order.
    pub fn of_row(&mut self, number: u64) -> Vec<Value> {
        while self.num_rows < number {
            let Ok(Some(record)) = self.records.files.next_record() else { return Vec::new() };
            let is_own = self.records.shard.owns(self.num_read);
            self.num_read += 1;
            self.num_rows += u64::from(is_own);
            if self.num_rows == number {
                let pictures = self.records.files.parser().pictures(record);
                return self.shown(pictures);
            }
        }
        Vec::new()
    }

    fn shown(&mut self, pictures: Vec<Picture>) -> Vec<Value> {
        let has_room = self.num_shown < MAX_ROWS;
        self.num_shown += usize::from(!pictures.is_empty());
        let shown = pictures.into_iter().enumerate().map(|(index, picture)| {
            let png = match has_room && index < MAX_OF_ROW && self.num_bytes < MAX_BYTES {
                true => picture.png(LONGEST, MAX_PIXELS),
                false => Err("not shown"),
            };
            match png.map(|png| base64::encode(&png)) {
                Ok(png) => {
                    self.num_bytes += png.len();
                    json!({"name": picture.name, "png": png})
                }
                Err(why) => json!({"name": picture.name, "why": why}),
            }
        });
        shown.collect()
    }
}
