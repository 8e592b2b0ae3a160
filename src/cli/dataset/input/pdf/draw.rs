//! `OpenPdf`: a file that is parsed, and its pages as pixels on white, by the crate hayro. It runs
//! in a process of its own: what a file brings may end or occupy it.

use std::sync::Arc;

use hayro::hayro_interpret::InterpreterSettings;
use hayro::hayro_interpret::util::TransformExt;
use hayro::hayro_syntax::{DecryptionError, LoadPdfError, Pdf};
use hayro::kurbo::Affine;
use hayro::vello_cpu::color::palette::css::WHITE;
use hayro::vello_cpu::{Pixmap, RasterizerSettings, RenderContext, Resources, TargetInit};
use hayro::{RenderCache, RenderSettings, render_into};

use super::PageSize;
use super::frames::{MAX_PAGES, stride};

/// What is wrong with a file or a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not what a PDF is.
    Damaged(String),
    /// It is of a kind that is not read.
    Unread(String),
    /// It has more than is read.
    Large(String),
}

/// Pages after which a file is parsed anew: what was read of a page stays with it.
const MAX_DRAWN: u32 = 128;

/// A file that is parsed.
pub struct OpenPdf {
    bytes: Arc<Vec<u8>>,
    pdf: Pdf,
    num_drawn: u32,
}

impl OpenPdf {
    /// Parses a file; damaged tables are made anew from its objects.
    ///
    /// # Errors
    /// It is no PDF, needs a password, or has no pages or too many.
    pub fn new(bytes: Vec<u8>) -> Result<Self, Fault> {
        let damaged = |what: &str| Fault::Damaged(what.to_owned());
        let bytes = Arc::new(bytes);
        let pdf = Pdf::new(Arc::clone(&bytes)).map_err(|error| match error {
            LoadPdfError::Decryption(DecryptionError::PasswordProtected) => {
                Fault::Unread("the file is encrypted, and needs a password".to_owned())
            }
            LoadPdfError::Decryption(DecryptionError::UnsupportedAlgorithm) => {
                Fault::Unread("the file is encrypted in a way that is not read".to_owned())
            }
            LoadPdfError::Decryption(_) => damaged("what the file is encrypted with is damaged"),
            LoadPdfError::Invalid => damaged("the file is damaged, or no PDF"),
        })?;
        match pdf.pages().len() {
            0 => Err(damaged("the file has no pages")),
            pages if pages > MAX_PAGES => {
                let what = format!("the file has {pages} pages, and {MAX_PAGES} are the most");
                Err(Fault::Large(what))
            }
            _ => Ok(Self { bytes, pdf, num_drawn: 0 }),
        }
    }

    /// Width and height of each page, turned as it is read.
    pub fn sizes(&self) -> impl Iterator<Item = (f32, f32)> {
        self.pdf.pages().iter().map(|page| page.render_dimensions())
    }

    /// Rows of a page from 1, as a bitmap has them: blue, green, red, filled up to four bytes.
    ///
    /// # Errors
    /// There is no such page, or it is larger than what is drawn.
    pub fn rows(&mut self, page: u32, size: PageSize) -> Result<Vec<u8>, Fault> {
        if self.num_drawn == MAX_DRAWN
            && let Ok(pdf) = Pdf::new(Arc::clone(&self.bytes))
        {
            (self.pdf, self.num_drawn) = (pdf, 0);
        }
        self.num_drawn += 1;
        let found = (page as usize).checked_sub(1).and_then(|at| self.pdf.pages().get(at));
        let page = found.ok_or_else(|| Fault::Damaged("there is no such page".to_owned()))?;
        let sides = (u16::try_from(size.width), u16::try_from(size.height));
        let (Ok(width), Ok(height)) = sides else {
            return Err(Fault::Large("the page has too long a side".to_owned()));
        };
        let mut context = RenderContext::new(width, height);
        let transform = Affine::scale(size.scale) * page.initial_transform(true).to_kurbo();
        // A cache of its own, so that a page does not depend on those before it.
        let cache = RenderCache::new();
        let (interpreter, render) = (InterpreterSettings::default(), RenderSettings::default());
        render_into(page, &cache, &interpreter, &render, &mut context, transform);
        context.flush();
        let mut pixels = Pixmap::new(width, height);
        let settings =
            RasterizerSettings { target_init: TargetInit::Clear(WHITE), ..Default::default() };
        context.render_with(&mut pixels, &mut Resources::default(), settings);
        Ok(rows(pixels.data_as_u8_slice(), size))
    }
}

/// Rows of a bitmap from pixels of four bytes, which cover what is behind them.
fn rows(pixels: &[u8], size: PageSize) -> Vec<u8> {
    let stride = stride(size.width);
    let mut rows = vec![0; stride * size.height as usize];
    let sources = pixels.chunks_exact(size.width as usize * 4);
    for (row, source) in rows.chunks_exact_mut(stride).zip(sources) {
        for (pixel, rgba) in row.chunks_exact_mut(3).zip(source.chunks_exact(4)) {
            pixel.copy_from_slice(&[rgba[2], rgba[1], rgba[0]]);
        }
    }
    rows
}
