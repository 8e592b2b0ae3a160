//! Images of rows that are not read as rows: those at URLs of rows that come later, and pictures
//! for people to look at.

use super::near_miss::NearMisses;
use super::{Named, RowParser, ask};
use crate::input::media::{FetchedImage, Named as NamedImage};
use crate::input::reader::Record;
use vllm_batch_media::Medium;

/// An image of a row, for people to look at.
#[derive(Debug)]
pub struct Picture {
    /// Of its file, or its number.
    pub name: String,
    /// The image, or the code of what is wrong with it.
    medium: Result<Medium, &'static str>,
}

impl Picture {
    /// A small PNG of it, at most `longest` pixels on the longer side.
    ///
    /// # Errors
    /// In a word, there is none: the image cannot be used, or has more than `most` pixels.
    pub fn png(&self, longest: usize, most: u64) -> Result<Vec<u8>, &'static str> {
        let medium = self.medium.as_ref().map_err(|why| *why)?;
        let Some(header) = medium.header().image() else { return Err("a recording") };
        if u64::from(header.width) * u64::from(header.height) > most {
            return Err("too large to be shown");
        }
        let pixels = medium.decode_image().map_err(|error| error.code())?;
        Ok(vllm_batch_media::thumbnail(&pixels, longest))
    }
}

impl RowParser {
    /// Takes images of the row that is parsed next as an earlier run fetched them.
    pub fn recall(&mut self, images: Vec<FetchedImage>) {
        self.builder.media_mut().recall(images);
    }

    /// Asks for no images ahead while it waits.
    pub fn wait(&mut self, waits: bool) {
        self.builder.media_mut().wait(waits);
    }

    /// Whether the shape of the rows is known.
    pub fn is_decided(&self) -> bool {
        self.shape.is_some()
    }

    /// Whether images of rows ahead may be asked for.
    pub fn may_ask_ahead(&self) -> bool {
        self.shape.is_some() && self.builder.media().may_ask()
    }

    /// Asks for the images at URLs of a row of this file that comes later, and says which these
    /// are.
    pub fn ask_ahead(&mut self, record: &Record) -> Vec<String> {
        let urls = self.named_images(record).iter().filter_map(NamedImage::url).collect::<Vec<_>>();
        self.builder.media_mut().ask(&urls);
        urls
    }

    /// The images of a row, which is not read further.
    pub fn pictures(&mut self, mut record: Record) -> Vec<Picture> {
        let members = record.take_members();
        self.builder.media_mut().attach(members);
        let images = self.named_images(&record);
        let media = self.builder.media();
        let picture = |(index, image): (usize, &NamedImage)| {
            let name = image.file_name().map(str::to_owned);
            let name = name.unwrap_or_else(|| format!("image {}", index + 1));
            Picture { name, medium: media.alone(image) }
        };
        images.iter().enumerate().map(picture).collect()
    }

    fn named_images(&self, record: &Record) -> Vec<NamedImage> {
        let Some(first) = &self.shape else { return Vec::new() };
        let Ok(Named::Row(named, _)) = self.name_fields(record.clone()) else { return Vec::new() };
        let other = match self.names {
            Some(_) => None,
            None => self.builder.other_shape(first, &named),
        };
        let shape = other.as_ref().unwrap_or(first);
        let tasks = (self.task, self.lines_decide.then_some(self.task));
        self.builder.media().seek(|| {
            let mut names = NearMisses::default();
            drop(ask(&self.builder, tasks, &mut names, (shape, &named), record.line));
        })
    }

    /// Forgets the images that were asked for with a row, which was read.
    pub fn release(&self, urls: &[String]) {
        self.builder.media().release(urls);
    }
}
