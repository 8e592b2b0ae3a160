//! Images at URLs of rows that come later: which they are, before the rows are read.

use super::near_miss::NearMisses;
use super::{Named, RowParser, ask};
use crate::input::media::FetchedImage;
use crate::input::reader::Record;

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
        let Some(first) = &self.shape else { return Vec::new() };
        let Ok(Named::Row(named, _)) = self.name_fields(record.clone()) else { return Vec::new() };
        let other = match self.names {
            Some(_) => None,
            None => self.builder.other_shape(first, &named),
        };
        let shape = other.as_ref().unwrap_or(first);
        let tasks = (self.task, self.lines_decide.then_some(self.task));
        let urls = self.builder.media().seek(|| {
            let mut names = NearMisses::default();
            drop(ask(&self.builder, tasks, &mut names, (shape, &named), record.line));
        });
        self.builder.media_mut().ask(&urls);
        urls
    }

    /// Forgets the images that were asked for with a row, which was read.
    pub fn release(&self, urls: &[String]) {
        self.builder.media().release(urls);
    }
}
