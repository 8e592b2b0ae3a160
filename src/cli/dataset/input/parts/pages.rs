//! Pages of PDF files. A page is known by its size until its pixels are needed; then a process of
//! its own draws it.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use super::{Drawing, Opening, PageNumbers, Part, PartKind, Parts};
use crate::input::pdf::{DRAWN_BY, Origin, PageSize, PdfFile, Renderers};
use crate::input::row_error::code;
use vllm_batch_media::{
    Encoded, Format, Header, ImageHeader, Limits, MediaError, MediaId, MediaKind, Medium,
};

/// The kind.
pub(super) const KIND: PartKind = PartKind {
    name: "PDF",
    extensions: &["pdf"],
    medium: MediaKind::Image,
    is_asked: |_| true,
    open,
};

/// Pixels of the longest side where no flag says another, as olmOCR has it.
const LONGEST_SIDE: u32 = 1288;

/// The most pixels of a page.
const MAX_PIXELS: u64 = 1 << 26;

/// Pixels of a longest side that are not drawn.
const MAX_SIDE: f64 = 65_000.0;

/// How large a page is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageScale {
    /// Pixels of its longer side.
    LongestSide(u32),
    /// Pixels of 72 of its units.
    Dpi(u32),
}

impl Default for PageScale {
    fn default() -> Self {
        PageScale::LongestSide(LONGEST_SIDE)
    }
}

impl PageScale {
    /// The size of a page of so many units. A pixel that it begins counts, as by pdftoppm.
    ///
    /// # Errors
    /// It has no size, or too many pixels.
    fn size(self, (width, height): (f32, f32)) -> Result<PageSize, MediaError> {
        let (width, height) = (f64::from(width), f64::from(height));
        let longest = width.max(height);
        if !(width > 0.0 && height > 0.0 && longest.is_finite()) {
            return Err(MediaError::Decode("the page has no size".to_owned()));
        }
        let scale = match self {
            PageScale::LongestSide(pixels) => f64::from(pixels) / longest,
            PageScale::Dpi(dpi) => f64::from(dpi) / 72.0,
        };
        // Less than a thousandth of a pixel is of rounding.
        let side = |units: f64| (units * scale - 1e-3).ceil().max(1.0);
        let (width, height) = (side(width), side(height));
        if width.max(height) > MAX_SIDE || width * height > MAX_PIXELS as f64 {
            return Err(MediaError::TooLarge(format!(
                "the page would be {width} by {height} pixels, and {MAX_PIXELS} are the most; \
                 help: give a smaller --dpi, or --longest-side"
            )));
        }
        Ok(PageSize { width: width as u32, height: height as u32, scale })
    }
}

/// A page that is drawn when its bytes are read.
#[derive(Debug)]
struct Page {
    renderers: Arc<Renderers>,
    file: Arc<PdfFile>,
    number: u32,
    size: PageSize,
    /// Its share of the file's bytes, where those are in memory.
    num_bytes_held: usize,
    /// Why it could not be drawn. It is not tried again: that may take as long as the first time.
    failed: OnceLock<MediaError>,
}

impl Page {
    /// The identity: who draws it, of which bytes, which page, and how large.
    fn id(&self) -> MediaId {
        let mut hasher = blake3::Hasher::new();
        let (number, size) = (self.number.to_le_bytes(), &self.size);
        let (width, height) = (size.width.to_le_bytes(), size.height.to_le_bytes());
        let scale = size.scale.to_bits().to_le_bytes();
        let drawn_by = DRAWN_BY.as_bytes();
        let parts: [&[u8]; 7] =
            [b"vllm-batch page", drawn_by, self.file.hash(), &number, &width, &height, &scale];
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        MediaId::from_bytes(*hasher.finalize().as_bytes())
    }
}

impl Encoded for Page {
    fn read(&self, _: &Limits) -> Result<Cow<'_, [u8]>, MediaError> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        let drawn = self.renderers.draw(&self.file, self.number, self.size);
        drawn.map(Cow::Owned).inspect_err(|error| {
            self.failed.get_or_init(|| error.clone());
        })
    }

    fn is_of(&self, _: MediaKind, _: MediaId, _: &[u8]) -> bool {
        // The file's bytes were looked at when they were read to be drawn.
        true
    }

    fn num_bytes_held(&self) -> usize {
        self.num_bytes_held
    }
}

/// A page as a medium.
fn medium(page: Page) -> Medium {
    let PageSize { width, height, .. } = page.size;
    let header = Header::Image(ImageHeader { format: Format::Bmp, width, height });
    Medium::known(page.id(), header, page, Limits::default())
}

/// All pages of a document, of which there may be `most`. What is wrong with one is wrong with all.
///
/// # Errors
/// It is none, has more pages, or one that cannot be drawn so large.
pub(in crate::input) fn pages_of(
    renderers: &Arc<Renderers>,
    origin: Origin,
    drawing: Drawing,
    most: usize,
) -> Result<Vec<Medium>, MediaError> {
    let num_bytes = origin.num_bytes_held();
    let (file, sizes) = renderers.open(origin)?;
    if sizes.len() > most {
        let what = format!(
            "the document has {} pages, and {most} images are the most; \
             help: --limit-mm-per-prompt '{{\"image\": N}}' allows more",
            sizes.len()
        );
        return Err(MediaError::Unfetched(code::MEDIA_COUNT, what));
    }
    let num_bytes_held = num_bytes.div_ceil(sizes.len().max(1));
    let page = |(at, size): (usize, &(f32, f32))| {
        let (renderers, file) = (Arc::clone(renderers), Arc::clone(&file));
        let (number, size) = (at as u32 + 1, drawing.scale.size(*size)?);
        Ok(medium(Page { renderers, file, number, size, num_bytes_held, failed: OnceLock::new() }))
    };
    sizes.iter().enumerate().map(page).collect()
}

/// The pages of a file, which are all of its parts.
struct Pages {
    renderers: Arc<Renderers>,
    file: Arc<PdfFile>,
    /// Units of each.
    sizes: Vec<(f32, f32)>,
    next: u32,
    numbers: PageNumbers,
    drawing: Drawing,
}

fn open(opening: &Opening<'_>) -> Result<Box<dyn Parts>, MediaError> {
    let renderers = Arc::clone(&opening.makers.renderers);
    let (file, sizes) = renderers.open(Origin::File(opening.path.to_owned()))?;
    let (numbers, drawing) = (opening.options.pages.clone(), opening.options.drawing);
    Ok(Box::new(Pages { renderers, file, sizes, next: 1, numbers, drawing }))
}

impl Parts for Pages {
    fn next_part(&mut self) -> Option<Part> {
        loop {
            let number = self.next;
            let size = *self.sizes.get(number as usize - 1)?;
            self.next += 1;
            if !self.numbers.has(number) {
                continue;
            }
            let medium = self.drawing.scale.size(size).map(|size| {
                let (renderers, file) = (Arc::clone(&self.renderers), Arc::clone(&self.file));
                medium(Page {
                    renderers,
                    file,
                    number,
                    size,
                    num_bytes_held: 0,
                    failed: OnceLock::new(),
                })
            });
            return Some(Part { fields: vec![("page", number.to_string())], medium });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_pdftoppm() {
        let size = |scale: PageScale, width, height| {
            let size = scale.size((width, height)).map_err(|error| error.code())?;
            Ok((size.width, size.height))
        };
        let default = PageScale::default();
        assert_eq!(size(default, 612.0, 792.0), Ok((996, 1288)));
        assert_eq!(size(default, 595.276, 841.89), Ok((911, 1288)));
        assert_eq!(size(default, 792.0, 612.0), Ok((1288, 996)));
        assert_eq!(size(default, 1e30, 1.0), Ok((1288, 1)));
        assert_eq!(size(PageScale::Dpi(72), 612.0, 792.0), Ok((612, 792)));
        assert_eq!(size(PageScale::Dpi(150), 595.276, 841.89), Ok((1241, 1754)));
        assert_eq!(size(PageScale::Dpi(300), 14400.0, 14400.0), Err("media_too_large"));
        assert_eq!(size(PageScale::LongestSide(99_999), 1.0, 1.0), Err("media_too_large"));
        for wrong in [(0.0, 1.0), (f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, -3.0)] {
            assert_eq!(size(default, wrong.0, wrong.1), Err("media_decode"), "{wrong:?}");
        }
    }
}
